"""Paged attention on CUDA against float64: shapes, chunks, neighbours, cache types, windows, caps, slopes, sinks."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.turbomind.ops import AttentionRule, HeadSizes, Span
from tests.kernels.cuda_device import CudaModule
from tests.kernels.reference import attention_reference, round_heads
from tests.kernels.sequences import Chunk, Sequences

Codes = npt.NDArray[np.uint8]

# A power of two: with queries of bfloat16 the scaled ones are bfloat16 too, so that rounding them changes nothing.
SCALE = 0.125
PLAIN = AttentionRule(SCALE)
SIZES = [
    HeadSizes(9, 3, 64, 64),
    HeadSizes(8, 1, 128, 128),  # with 4 bits, rows of 64 bytes
    HeadSizes(5, 1, 80, 80),  # int4 is padded to 96
    HeadSizes(7, 1, 72, 40),  # padded; copied 8 and 4 bytes at a time
    HeadSizes(4, 2, 96, 96),
    HeadSizes(40, 1, 24, 16),  # more rows of one token than a tile of 16
    HeadSizes(2, 2, 18, 18),  # no multiple of anything: the plain kernel for rounded caches
    HeadSizes(3, 1, 250, 256),
    HeadSizes(6, 1, 576, 512),  # latent attention: the plain kernel
]


class CudaAttention:
    """Like ``ops.PagedAttention``, on a device. ``spare`` more spans and tokens make the launch's shape larger."""

    def __init__(
        self,
        cuda: CudaModule,
        spare: int,
        blocks: int,
        sizes: HeadSizes,
        block_len: int,
        bits: int,
        rule: AttentionRule,
    ) -> None:
        self.cuda, self.spare, self.sizes, self.bits = cuda, spare, sizes, bits
        self.shape = (sizes.num_heads, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, block_len)
        self.rule = rule
        block_bytes = _turbomind.cache_block_bytes(bits, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, block_len)
        # Poison, not zeros: what was never written must never be read.
        self.pool = np.full(blocks * block_bytes, 0xFF, np.uint8)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: list[Span]) -> torch.Tensor:
        table: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        for first_row, count, first_position, own in spans:
            table.append((first_row, count, first_position, len(blocks)))
            blocks += own
        table += [(0, 0, 0, 0)] * self.spare
        out, self.pool = self.cuda.attention(
            *(x.numpy() for x in (q * self.rule.scale, k, v)),
            self.pool,
            self.bits,
            self.shape,
            np.array(table, np.int32),
            np.array(blocks, np.int32),
            max(count for _, count, _, _ in spans),
            max(count + first for _, count, first, _ in spans) + self.spare * 1000,
            self.rule.softcap,
            self.rule.window,
            *(None if x is None else x.numpy() for x in (self.rule.alibi_slopes, self.rule.sinks)),
            np.full((q.shape[0], self.sizes.num_heads, self.sizes.value_dim), np.nan, np.float32),
        )
        return torch.from_numpy(out)


def sequences(
    cuda: CudaModule,
    lengths: list[int],
    sizes: HeadSizes,
    bits: int,
    rule: AttentionRule,
    *,
    block_len: int = 32,
    spare: int = 0,
) -> Sequences:
    """Return sequences whose queries are bfloat16."""
    batch = Sequences(lengths, sizes, block_len, bits, rule, partial(CudaAttention, cuda, spare))
    batch.q = [q.bfloat16().float() for q in batch.q]
    return batch


def cached(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return what a cache of ``bits`` bits holds for keys or values ``[rows, heads, dim]``."""
    if bits == 32:
        return x
    return x.bfloat16() if bits == 16 else round_heads(x, bits)


def check_rows(batch: Sequences, index: int, out: torch.Tensor) -> None:
    """Check a sequence's rows.

    Tensor cores take softmax weights rounded to bfloat16, so a result is off by at most 2^-8 sum weight |value|; on top
    come sums in float32, and 2^x within 2^-22, of scores up to about 20, whose own error is 20 2^-24 of a weight. With
    caps and slopes scores are larger, so 4e-5 is asked for.
    """
    k, v = (cached(x[index], batch.bits) for x in (batch.k, batch.v))
    exact = attention_reference(batch.q[index], k, v, batch.rule)
    magnitude = attention_reference(batch.q[index], k, v.abs(), batch.rule)
    bound = 4e-5 * (1 + magnitude) + (2**-8 * magnitude if batch.bits < 32 else 0)
    assert ((out.double() - exact).abs() <= bound).all(), ((out.double() - exact).abs() / bound).max()


def in_pieces(length: int) -> list[list[Chunk]]:
    """Return the steps of one sequence, the first: most of it, some more, and the last three one by one."""
    cut = length * 2 // 3
    return [[(0, 0, cut)], [(0, cut, length - 3 - cut)], *[[(0, p, 1)] for p in range(length - 3, length)]]


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_agrees_with_float64_whole_and_in_pieces(cuda: CudaModule, sizes: HeadSizes, bits: int) -> None:
    torch.manual_seed(sizes.key_dim)
    lengths = [1, 17, 100]
    batch = sequences(cuda, lengths, sizes, bits, PLAIN)
    whole = batch.run([[(s, 0, n) for s, n in enumerate(lengths)]])
    pieces = batch.run([[(2, 0, 70)], [(2, 70, 27), (0, 0, 1), (1, 0, 16)], [(2, 97, 1), (1, 16, 1)], [(2, 98, 2)]])
    for index in range(len(lengths)):
        check_rows(batch, index, whole[index])
        check_rows(batch, index, pieces[index])


@pytest.mark.parametrize("block_len", [16, 64, 128])
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_context_split_over_blocks_is_put_together(cuda: CudaModule, bits: int, block_len: int) -> None:
    torch.manual_seed(block_len)
    sizes, length = HeadSizes(4, 1, 64, 64), 630
    batch = sequences(cuda, [length, 300], sizes, bits, AttentionRule(SCALE, sinks=torch.randn(4)), block_len=block_len)
    out = batch.run([[(0, 0, 600)], [(1, 0, 299)], [(0, 600, 20)], *[[(0, p, 1)] for p in range(620, 629)]])
    last = batch.run([[(0, 0, 629)], [(1, 0, 299)], [(0, 629, 1), (1, 299, 1)]])
    check_rows(batch, 0, torch.cat([out[0], last[0][629:]]))
    check_rows(batch, 1, last[1])


def test_more_query_heads_than_a_decoding_tile_holds_share_a_split_context(cuda: CudaModule) -> None:
    torch.manual_seed(0)
    rule = AttentionRule(SCALE, window=540)
    batch = sequences(cuda, [560], HeadSizes(20, 1, 40, 64), 16, rule)
    check_rows(batch, 0, batch.run([[(0, 0, 556)], *[[(0, p, 1)] for p in range(556, 560)]])[0])


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("name", ["window", "wide window", "softcap", "alibi", "sinks", "all"])
def test_windows_caps_slopes_and_sinks_agree_with_float64(cuda: CudaModule, name: str, bits: int) -> None:
    torch.manual_seed(1)
    sizes, length = HeadSizes(6, 2, 32, 32), 600
    slopes, sinks = torch.rand(6) * 0.1, torch.randn(6) * 3
    rule = {
        "window": AttentionRule(SCALE, window=70),
        "wide window": AttentionRule(SCALE, window=500),
        "softcap": AttentionRule(1.0, softcap=5.0),
        "alibi": AttentionRule(SCALE, alibi_slopes=slopes),
        "sinks": AttentionRule(SCALE, sinks=sinks),
        "all": AttentionRule(1.0, 5.0, 130, slopes, sinks),
    }[name]
    batch = sequences(cuda, [length], sizes, bits, rule)
    check_rows(batch, 0, batch.run([[(0, 0, length)]])[0])
    check_rows(batch, 0, batch.run(in_pieces(length))[0])


@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_query_heads_share_a_key_head(cuda: CudaModule, group: int) -> None:
    torch.manual_seed(group)
    batch = sequences(cuda, [40], HeadSizes(2 * group, 2, 64, 64), 16, PLAIN)
    check_rows(batch, 0, batch.run([[(0, 0, 33)], [(0, 33, 5)], [(0, 38, 1)], [(0, 39, 1)]])[0])


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_larger_shape_than_the_step_needs_changes_nothing(cuda: CudaModule, bits: int) -> None:
    torch.manual_seed(0)
    batch = sequences(cuda, [130, 9], HeadSizes(6, 2, 64, 64), bits, PLAIN, spare=3)
    out = batch.run([[(0, 0, 129), (1, 0, 8)], [(0, 129, 1), (1, 8, 1)]])
    check_rows(batch, 0, out[0])
    check_rows(batch, 1, out[1])


@pytest.mark.parametrize("bits", [32, 16])
@pytest.mark.parametrize("sizes", [SIZES[1], SIZES[2], SIZES[8]], ids=str)
def test_no_launch_needs_a_larger_workspace_than_the_largest(cuda: CudaModule, sizes: HeadSizes, bits: int) -> None:
    shape = (sizes.num_heads, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, 32)
    needed = 0
    for spans, rows, context in itertools.product(range(1, 260), (1, 2, 3, 17, 100, 1000), (512, 1000, 20000, 200000)):
        own, most = cuda.attention_workspaces(bits, shape, spans, rows, context, 0)
        needed = max(needed, own)
    assert 0.4 * most < needed <= most


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_blocks_outside_the_window_are_never_read(cuda: CudaModule, bits: int) -> None:
    torch.manual_seed(0)
    batch = sequences(cuda, [300], HeadSizes(2, 1, 16, 16), bits, AttentionRule(SCALE, window=40), block_len=16)
    attend = CudaAttention(cuda, 0, len(batch.blocks[0]), batch.sizes, 16, bits, batch.rule)
    q, k, v = (x[0] for x in (batch.q, batch.k, batch.v))
    first = attend(q[:299], k[:299], v[:299], [(0, 299, 0, batch.blocks[0])])
    seen = (299 - 39) // 16
    gone = [10**6] * seen + batch.blocks[0][seen:]  # reading one of these would be far outside the pool
    out = attend(q[299:], k[299:], v[299:], [(0, 1, 299, gone)])
    check_rows(batch, 0, torch.cat([first, out]))


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_broken_row_spoils_no_other_sequence(cuda: CudaModule, bits: int) -> None:
    torch.manual_seed(0)
    batch = sequences(cuda, [100, 50], HeadSizes(6, 2, 32, 32), bits, PLAIN)
    steps: list[list[Chunk]] = [[(0, 0, 60), (1, 0, 40)], [(0, 60, 40), (1, 40, 10)]]
    clean = batch.run(steps)
    for tensor in (batch.q, batch.k, batch.v):
        tensor[0][77] = float("nan")
    broken = batch.run(steps)
    assert torch.equal(broken[0][:60], clean[0][:60])
    assert torch.equal(broken[1], clean[1])
    assert not broken[0][77:].isfinite().any()


@pytest.mark.parametrize(
    ("bits", "unpack"),
    [
        (8, lambda codes: codes),
        (4, lambda codes: np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)),
    ],
)
def test_codes_lie_token_by_token_and_scales_and_zeros_behind_them(
    cuda: CudaModule, bits: int, unpack: Callable[[Codes], Codes]
) -> None:
    torch.manual_seed(bits)
    dim, block_len = 24, 16
    attend = CudaAttention(cuda, 0, 2, HeadSizes(1, 1, dim, dim), block_len, bits, PLAIN)
    q, k, v = torch.randn(21, 1, dim), torch.randn(21, 1, dim), torch.randn(21, 1, dim)
    attend(q, k, v, [(0, 21, 0, [1, 0])])
    areas = attend.pool.reshape(2, 2, -1)[[1, 0]]  # in the sequence's order: [block, key or value, bytes]
    for x, area in ((k, areas[:, 0]), (v, areas[:, 1])):
        code_bytes = block_len * dim * bits // 8
        codes = unpack(area[:, :code_bytes].reshape(2 * block_len, -1))[:21].astype(np.float64)
        scale = area[:, code_bytes : code_bytes + 2 * block_len].copy().view(np.float16).reshape(-1)[:21]
        zero = area[:, code_bytes + 2 * block_len :].reshape(-1)[:21]
        values = (codes - zero[:, None]) * scale[:, None].astype(np.float64)
        assert np.array_equal(values, round_heads(x[:, 0], bits).numpy())


def test_impossible_caches_are_refused(cuda: CudaModule) -> None:
    row = torch.zeros(1, 1, 15)
    with pytest.raises(ValueError, match="even dimensions, got 15"):
        CudaAttention(cuda, 0, 1, HeadSizes(1, 1, 15, 15), 16, 4, PLAIN)(row, row, row, [(0, 1, 0, [0])])
    with pytest.raises(ValueError, match="power of two from 16 on, got 48"):
        CudaAttention(cuda, 0, 1, HeadSizes(1, 1, 15, 15), 48, 16, PLAIN)(row, row, row, [(0, 1, 0, [0])])
