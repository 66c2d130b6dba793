"""Paged attention against float64: shapes, chunks, neighbours, cache types, windows, caps, slopes, sinks."""

import itertools
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.kernels.arguments import AttentionRule, HeadSizes
from tests.kernels.device import Attention, Device
from tests.kernels.linear_bounds import MANY_ROWS
from tests.kernels.reference import round_heads
from tests.kernels.sequences import Chunk, Sequences, cached
from tests.kernels.weights import weight_of_kind

Bytes = npt.NDArray[np.uint8]

SCALE = 0.125
UNMODIFIED = AttentionRule(SCALE)
SIZES = [
    HeadSizes(9, 3, 64, 64),
    HeadSizes(4, 4, 32, 32),
    HeadSizes(8, 1, 128, 128),  # on CUDA with 4 bits, rows of 64 bytes
    HeadSizes(12, 1, 64, 64),  # on CUDA two tiles of 8 query rows
    HeadSizes(5, 1, 80, 80),  # int4 is padded to 96
    HeadSizes(7, 1, 72, 40),  # padded; copied 8 and 4 bytes at a time
    HeadSizes(4, 2, 96, 96),
    HeadSizes(40, 1, 24, 16),  # more rows of one token than a tile of 16
    HeadSizes(64, 1, 24, 16),
    HeadSizes(2, 2, 18, 18),  # no multiple of anything: CUDA's plain kernel for quantized caches
    HeadSizes(3, 1, 250, 256),
    HeadSizes(6, 1, 576, 512),  # latent attention: CUDA's plain kernel
]
BITS = [32, 16, 8, 4]


def decoded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: AttentionRule
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention with sinks of one row ``[heads, dim]`` that sees all keys, in float64, and of ``v.abs()``."""
    assert rule.sinks is not None
    k, v = (x.double().repeat_interleave(len(q) // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("hd,jhd->hj", q.double(), k) * rule.scale
    weights = torch.cat([scores, rule.sinks.double()[:, None]], -1).softmax(-1)[:, :-1]
    return torch.einsum("hj,jhd->hd", weights, v), torch.einsum("hj,jhd->hd", weights, v.abs())


def in_pieces(length: int) -> list[list[Chunk]]:
    """Return the steps of one sequence, the first: most of it, some more, and the last three one by one."""
    cut = length * 2 // 3
    return [[(0, 0, cut)], [(0, cut, length - 3 - cut)], *[[(0, p, 1)] for p in range(length - 3, length)]]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_agrees_with_float64_whole_and_in_pieces(device: Device, sizes: HeadSizes, bits: int) -> None:
    torch.manual_seed(sizes.key_dim)
    lengths = [1, 17, 100]
    batch = Sequences(device, lengths, sizes, 32, bits, UNMODIFIED)
    whole = batch.run([[(s, 0, n) for s, n in enumerate(lengths)]])
    pieces = batch.run([[(2, 0, 70)], [(2, 70, 27), (0, 0, 1), (1, 0, 16)], [(2, 97, 1), (1, 16, 1)], [(2, 98, 2)]])
    for index in range(len(lengths)):
        batch.check(index, whole[index])
        if device.is_cuda:
            batch.check(index, pieces[index])
        else:
            assert torch.equal(whole[index], pieces[index])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("sizes", [HeadSizes(4, 2, 64, 32), HeadSizes(6, 2, 64, 64)], ids=str)
def test_rows_rotated_as_they_are_cached_come_to_the_bits_of_those_rotated_before(
    device: Device, sizes: HeadSizes, bits: int, *, is_interleaved: bool
) -> None:
    torch.manual_seed(bits)
    batch = Sequences(device, [40], sizes, 16, bits, UNMODIFIED)
    (q,), (k,), (v,) = batch.q, batch.k, batch.v
    angles, factors = torch.rand(40, 24) * 6, torch.rand(40) + 0.5
    cos, sin = angles.cos(), angles.sin()
    attention, rotated_attention = batch.new_cache(), batch.new_cache()
    steps = [(0, 33), (33, 6), (39, 1)]
    for first, count in steps:
        rows = slice(first, first + count)
        spans = [(0, count, first, batch.blocks[0])]
        rotation = cos[rows], sin[rows], factors[rows], is_interleaved
        turned_q = device.rope(q[rows], cos[rows], sin[rows], factors[rows], is_interleaved=is_interleaved)
        turned_k = device.rope(k[rows], cos[rows], sin[rows], is_interleaved=is_interleaved)
        expected = attention(turned_q, turned_k, v[rows], spans)
        assert torch.equal(rotated_attention(q[rows], k[rows], v[rows], spans, rotation), expected)
    assert torch.equal(rotated_attention.pool, attention.pool)


@pytest.mark.alike
@pytest.mark.parametrize("block_len", [16, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_a_context_split_over_blocks_is_put_together(device: Device, bits: int, block_len: int) -> None:
    torch.manual_seed(block_len)
    rule = AttentionRule(SCALE, sinks=torch.randn(4))
    batch = Sequences(device, [630, 300], HeadSizes(4, 1, 64, 64), block_len, bits, rule)
    out = batch.run([[(0, 0, 600)], [(1, 0, 299)], [(0, 600, 20)], *[[(0, p, 1)] for p in range(620, 629)]])
    last = batch.run([[(0, 0, 629)], [(1, 0, 299)], [(0, 629, 1), (1, 299, 1)]])
    batch.check(0, torch.cat([out[0], last[0][629:]]))
    batch.check(1, last[1])


def test_more_query_heads_than_a_decoding_tile_holds_share_a_split_context(device: Device) -> None:
    torch.manual_seed(0)
    rule = AttentionRule(SCALE, window=540)
    batch = Sequences(device, [560], HeadSizes(20, 1, 40, 64), 32, 16, rule)
    batch.check(0, batch.run([[(0, 0, 556)], *[[(0, p, 1)] for p in range(556, 560)]])[0])


@pytest.mark.alike
@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("name", ["window", "wide window", "softcap", "alibi", "sinks", "all"])
@pytest.mark.parametrize("dim", [32, 64])
def test_windows_caps_slopes_and_sinks_agree_with_float64(device: Device, name: str, bits: int, dim: int) -> None:
    torch.manual_seed(1)
    length = 600 if device.is_cuda else 1100  # on the CPU three partitions
    slopes, sinks = torch.rand(3) * 0.1, torch.randn(3) * 3
    rule = {
        "window": AttentionRule(SCALE, window=70),
        "wide window": AttentionRule(SCALE, window=500),
        "softcap": AttentionRule(1.0, softcap=5.0),
        "alibi": AttentionRule(SCALE, alibi_slopes=slopes),
        "sinks": AttentionRule(SCALE, sinks=sinks),
        "all": AttentionRule(1.0, 5.0, 130, slopes, sinks),
    }[name]
    batch = Sequences(device, [length], HeadSizes(3, 1, dim, dim), 32, bits, rule)
    whole, pieces = batch.run([[(0, 0, length)]])[0], batch.run(in_pieces(length))[0]
    batch.check(0, whole)
    if device.is_cuda:
        batch.check(0, pieces)
    else:
        assert torch.equal(whole, pieces)


@pytest.mark.alike
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ["alibi", "biases"])
def test_distances_to_both_sides_agree_with_float64(device: Device, name: str, bits: int) -> None:
    torch.manual_seed(4)
    length = 150
    rule = {
        "alibi": AttentionRule(SCALE, alibi_slopes=torch.rand(6) * 0.1, images=((0, length),)),
        "biases": AttentionRule(SCALE, distance_biases=torch.randn(6, 2 * 50 + 1), images=((0, length),)),
    }[name]
    batch = Sequences(device, [length], HeadSizes(6, 6, 32, 32), 64, bits, rule)
    batch.check(0, batch.run([[(0, 0, length)]])[0])


@pytest.mark.alike
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("window", [0, 30])
def test_rows_of_an_image_see_all_of_it(device: Device, window: int, bits: int) -> None:
    torch.manual_seed(2)
    length = 640  # on the CPU the last image reaches into a second partition
    rule = AttentionRule(SCALE, window=window, images=((3, 20), (20, 84), (130, 131), (500, 632)))
    batch = Sequences(device, [length], HeadSizes(3, 1, 64, 64), 32, bits, rule)
    whole = batch.run([[(0, 0, length)]])[0]
    # The last step begins within an image, whose first rows are cached.
    pieces = batch.run([[(0, 0, 84)], [(0, 84, 46)], [(0, 130, 1)], [(0, 131, 501)], [(0, 632, 8)]])[0]
    batch.check(0, whole)
    batch.check(0, pieces)
    attention = batch.new_cache()
    q, k, v = (x[0] for x in (batch.q, batch.k, batch.v))
    attention(q[:632], k[:632], v[:632], [(0, 632, 0, batch.blocks[0])])
    again = attention(q[629:632], k[629:632], v[629:632], [(0, 3, 629, batch.blocks[0])])  # all but 3 rows were cached
    batch.check(0, torch.cat([whole[:629], again]))
    assert device.is_cuda or torch.equal(again, whole[629:632])


@pytest.mark.parametrize("group", range(1, 9))
def test_any_number_of_query_heads_share_a_key_head(device: Device, group: int) -> None:
    torch.manual_seed(group)
    batch = Sequences(device, [40], HeadSizes(2 * group, 2, 64, 64), 32, 16, UNMODIFIED)
    batch.check(0, batch.run([[(0, 0, 33)], [(0, 33, 5)], [(0, 38, 1)], [(0, 39, 1)]])[0])


@pytest.mark.parametrize("group", [7, 9, 12])
def test_splits_of_a_context_are_added_up_by_threads_that_make_no_whole_group(cuda: Device, group: int) -> None:
    torch.manual_seed(group)
    batch = Sequences(cuda, [640], HeadSizes(group, 1, 64, 64), 32, 16, UNMODIFIED)
    batch.check(0, batch.run([[(0, 0, 639)], [(0, 639, 1)]])[0])


@pytest.mark.parametrize("kind", ["bfloat16", "float8 by tensor"])
@pytest.mark.parametrize(("bits", "length"), [(32, 40), (16, 250), (8, 200)])
def test_attention_goes_into_its_linear_layer_in_bfloat16(cuda: Device, bits: int, length: int, kind: str) -> None:
    torch.manual_seed(bits)
    rows, sizes = length - 1, HeadSizes(4, 2, 32, 32)
    batch = Sequences(cuda, [length, 20], sizes, 16, bits, AttentionRule(0.25))
    attention = batch.new_cache()
    q, k, v = (torch.cat(parts) for parts in (batch.q, batch.k, batch.v))
    spans = [(0, length, 0, batch.blocks[0]), (length, 20, 0, batch.blocks[1])]
    attention(q, k, v, spans)
    # The last row of the first sequence decodes; its prompt is a span too, as one of many rows.
    parts = [(0, rows, 0, batch.blocks[0]), (rows, 1, rows, batch.blocks[0]), (length, 20, 0, batch.blocks[1])]
    expected = attention(q, k, v, parts).flatten(1)
    weight = weight_of_kind(cuda, torch.randn(48, expected.shape[1]), kind)
    if kind == "bfloat16" or len(q) >= MANY_ROWS:
        expected = expected.bfloat16().float()
    assert torch.equal(attention.project(q, parts, weight), cuda.linear(weight, expected))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [3, 9])
def test_sequences_that_decode_together_do_not_depend_on_how_many_they_are(
    device: Device, count: int, bits: int
) -> None:
    """On CUDA a step of 3 or 9 rows is launched as one of 4 or 16: what is spare changes nothing."""
    torch.manual_seed(count)
    lengths = [130 - 11 * s for s in range(count)]
    batch = Sequences(device, lengths, HeadSizes(6, 2, 64, 64), 32, bits, UNMODIFIED)
    out = batch.run([[(s, 0, n - 1) for s, n in enumerate(lengths)], [(s, n - 1, 1) for s, n in enumerate(lengths)]])
    for index in range(count):
        batch.check(index, out[index])


@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("bits", BITS)
def test_blocks_outside_the_window_are_never_read(device: Device, bits: int, dim: int) -> None:
    torch.manual_seed(0)
    batch = Sequences(device, [300], HeadSizes(2, 1, dim, dim), 16, bits, AttentionRule(SCALE, window=40))
    attention = batch.new_cache()
    q, k, v = (x[0] for x in (batch.q, batch.k, batch.v))
    first = attention(q[:299], k[:299], v[:299], [(0, 299, 0, batch.blocks[0])])
    seen = (299 - 39) // 16
    gone = [10**6] * seen + batch.blocks[0][seen:]  # reading one of these would be far outside the pool
    out = attention(q[299:], k[299:], v[299:], [(0, 1, 299, gone)])
    batch.check(0, torch.cat([first, out]))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [32, 64])
def test_a_broken_row_spoils_no_other_sequence(device: Device, dim: int, bits: int) -> None:
    torch.manual_seed(0)
    batch = Sequences(device, [100, 50], HeadSizes(6, 2, dim, dim), 64, bits, UNMODIFIED)
    steps: list[list[Chunk]] = [[(0, 0, 60), (1, 0, 40)], [(0, 60, 39), (1, 40, 9)], [(0, 99, 1), (1, 49, 1)]]
    clean = batch.run(steps)
    for tensor in (batch.q, batch.k, batch.v):
        tensor[0][77] = float("nan")
    broken = batch.run(steps)
    unharmed = 60 if device.is_cuda else 77  # on the CPU earlier rows of the same step too
    assert torch.equal(broken[0][:unharmed], clean[0][:unharmed])
    assert torch.equal(broken[1], clean[1])
    assert not broken[0][77:].isfinite().any()


# ---- what the CPU promises beyond ----


@pytest.mark.parametrize("sizes", [SIZES[i] for i in (0, 1, 2, 4, 5, 8, 9)], ids=str)
@pytest.mark.parametrize(("bits", "block_len"), [(32, 16), (16, 64), (8, 64), (4, 64)])
def test_chunks_and_neighbours_change_no_bit(cpu: Device, sizes: HeadSizes, bits: int, block_len: int) -> None:
    torch.manual_seed(sizes.key_dim)
    lengths = [1, 17, 640]  # the last spans two partitions
    last = lengths[2]
    batch = Sequences(cpu, lengths, sizes, block_len, bits, AttentionRule(sizes.key_dim**-0.5))
    whole = batch.run([[(s, 0, n) for s, n in enumerate(lengths)]])
    for index, length in enumerate(lengths):
        assert torch.equal(whole[index], batch.run([[(index, 0, length)]])[index])
    cut = last - 43
    pieces = batch.run(
        [[(2, 0, cut)], [(2, cut, 33), (0, 0, 1)], *[[(2, p, 1)] for p in range(cut + 33, last)], [(1, 0, 17)]]
    )
    for index in range(len(lengths)):
        assert torch.equal(whole[index], pieces[index])


# ---- what CUDA promises beyond ----


@pytest.mark.parametrize("bits", [32, 16])
@pytest.mark.parametrize("sizes", [SIZES[2], SIZES[4], SIZES[11]], ids=str)
def test_no_launch_needs_a_larger_workspace_than_the_largest(cuda: Device, sizes: HeadSizes, bits: int) -> None:
    shape = (sizes.num_heads, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, 32)
    needed = 0
    for spans, rows, context in itertools.product(range(1, 260), (1, 2, 3, 17, 100, 1000), (512, 1000, 20000, 200000)):
        native, limit = cuda.native.attention_workspaces(bits, shape, spans, rows, context, 0)
        needed = max(needed, native)
    assert 0.4 * limit < needed <= limit


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_decoding_contexts_are_split_where_they_are_few_and_long(cuda: Device, bits: int) -> None:
    shape = (4, 1, 128, 128, 64)

    def cut(contexts: int, seen: int, rows: int = 4) -> tuple[int, int]:
        warps, splits = cuda.native.decode_cut(bits, shape, rows, contexts, seen)
        assert warps in ((16, 8, 4) if rows <= 8 else (8, 4))
        return warps, splits

    assert cut(1, 64)[1] == 1
    assert cut(10**5, 10**5)[1] == 1
    for rows in (4, 16):
        warps, splits = cut(1, 10**5, rows)
        assert splits > 1
        assert splits * warps * 16 <= 10**5


@pytest.mark.parametrize("block_len", [16, 64])
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("sizes", [HeadSizes(3, 1, 128, 128), HeadSizes(16, 1, 64, 64)], ids=str)
def test_long_contexts_of_one_decoding_sequence_agree_with_float64(
    cuda: Device, sizes: HeadSizes, bits: int, block_len: int
) -> None:
    torch.manual_seed(bits)
    length = 3900
    rule = AttentionRule(SCALE, sinks=torch.randn(sizes.num_heads))
    assert cuda.native.decode_cut(bits, (*astuple(sizes), block_len), sizes.num_heads, 1, length)[1] > 1
    batch = Sequences(cuda, [length], sizes, block_len, bits, rule)
    (q,), (k,), (v,), blocks = batch.q, batch.k, batch.v, batch.blocks[0]
    attention = batch.new_cache()
    attention.write(k[:-1], v[:-1], [(0, length - 1, 0, blocks)])
    out = attention(q[-1:], k[-1:], v[-1:], [(0, 1, length - 1, blocks)])
    exact, magnitude = decoded(q[-1], cached(k, bits), cached(v, bits), rule)
    assert ((out[0].double() - exact).abs() <= 4e-5 * (1 + magnitude) + 2**-8 * magnitude).all()


@pytest.mark.parametrize(
    ("bits", "unpack"),
    [
        (8, lambda quantized: quantized),
        (4, lambda quantized: np.stack([quantized & 15, quantized >> 4], -1).reshape(*quantized.shape[:-1], -1)),
    ],
)
def test_codes_lie_token_by_token_and_scales_and_zeros_after_them(
    cuda: Device, bits: int, unpack: Callable[[Bytes], Bytes]
) -> None:
    torch.manual_seed(bits)
    dim, block_len = 24, 16
    attention = Attention(cuda, 2, HeadSizes(1, 1, dim, dim), block_len, bits, UNMODIFIED)
    q, k, v = torch.randn(21, 1, dim), torch.randn(21, 1, dim), torch.randn(21, 1, dim)
    attention(q, k, v, [(0, 21, 0, [1, 0])])
    areas = attention.pool.numpy().reshape(2, 2, -1)[[1, 0]]  # in the sequence's order: [block, key or value, bytes]
    for x, area in ((k, areas[:, 0]), (v, areas[:, 1])):
        quantized_bytes = block_len * dim * bits // 8
        quantized = unpack(area[:, :quantized_bytes].reshape(2 * block_len, -1))[:21].astype(np.float64)
        scale = area[:, quantized_bytes : quantized_bytes + 2 * block_len].copy().view(np.float16).reshape(-1)[:21]
        zero = area[:, quantized_bytes + 2 * block_len :].reshape(-1)[:21]
        values = (quantized - zero[:, None]) * scale[:, None].astype(np.float64)
        assert np.array_equal(values, round_heads(x[:, 0], bits).numpy())


def test_impossible_caches_are_refused(cuda: Device) -> None:
    row = torch.zeros(1, 1, 15)
    with pytest.raises(ValueError, match="even dimensions, got 15"):
        Attention(cuda, 1, HeadSizes(1, 1, 15, 15), 16, 4, UNMODIFIED)(row, row, row, [(0, 1, 0, [0])])
    with pytest.raises(ValueError, match="power of two from 16 on, got 48"):
        Attention(cuda, 1, HeadSizes(1, 1, 15, 15), 48, 16, UNMODIFIED)(row, row, row, [(0, 1, 0, [0])])
