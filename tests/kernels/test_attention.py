"""Paged attention against float64: shapes, chunks, neighbours, cache types, windows, caps, slopes, sinks."""

import pytest
import torch

from lmdeploy.turbomind.ops import AttentionRule, HeadSizes, PagedAttention
from tests.kernels.sequences import Chunk, Sequences

SIZES = [
    HeadSizes(9, 3, 64, 64),
    HeadSizes(4, 4, 32, 32),
    HeadSizes(8, 1, 128, 128),
    HeadSizes(5, 1, 80, 80),
    HeadSizes(2, 2, 18, 18),
    HeadSizes(7, 1, 72, 40),
    HeadSizes(64, 1, 24, 16),
]
# Relative to values of about 1: the cache's own rounding is in the reference; what is left is float32 sums, and with
# avx512bf16 over a bfloat16 cache the rounding of queries and softmax weights.
TOLERANCE = {32: 2e-5, 16: 2e-5}
TOLERANCE_BFLOAT16_PRODUCTS = 1e-2


def tolerance_of(bits: int, isa: str) -> float:
    """Return how far from float64 a result may be."""
    return TOLERANCE_BFLOAT16_PRODUCTS if bits == 16 and isa == "avx512bf16" else TOLERANCE[bits]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("bits", "block_len"), [(32, 16), (16, 64)])
def test_it_agrees_with_float64_and_ignores_chunks_and_neighbours(
    sizes: HeadSizes, bits: int, block_len: int, isa: str
) -> None:
    torch.manual_seed(sizes.key_dim)
    lengths = [1, 17, 640]  # the last spans two partitions
    batch = Sequences(lengths, sizes, block_len, bits, AttentionRule(sizes.key_dim**-0.5))
    whole = batch.run([[(s, 0, n) for s, n in enumerate(lengths)]])
    for index, length in enumerate(lengths):
        tolerance = tolerance_of(bits, isa)
        torch.testing.assert_close(whole[index].double(), batch.exact(index), rtol=tolerance, atol=tolerance)
        assert torch.equal(whole[index], batch.run([[(index, 0, length)]])[index])
    pieces = batch.run(
        [[(2, 0, 597)], [(2, 597, 33), (0, 0, 1)], *[[(2, p, 1)] for p in range(630, 640)], [(1, 0, 17)]]
    )
    for index in range(len(lengths)):
        assert torch.equal(whole[index], pieces[index])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_rounded_cache_attends_over_the_rounded_keys_and_values(sizes: HeadSizes, bits: int) -> None:
    torch.manual_seed(bits)
    batch = Sequences([150], sizes, 64, bits, AttentionRule(0.125))
    out = batch.run([[(0, 0, 150)]])[0]
    error = (out.double() - batch.exact(0)).abs()
    # A value on the edge between two codes may fall either way: one step of one key or value.
    assert (error <= 2e-4).double().mean() > 0.97
    assert error.max() < (0.02 if bits == 8 else 0.3)
    assert torch.equal(batch.run([[(0, 0, 71)], [(0, 71, 1)], [(0, 72, 78)]])[0], out)


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("name", ["window", "wide window", "softcap", "alibi", "sinks", "all"])
def test_windows_caps_slopes_and_sinks_agree_with_float64(name: str, bits: int, isa: str) -> None:
    torch.manual_seed(1)
    sizes, length = HeadSizes(6, 2, 32, 32), 1100  # three partitions
    slopes, sinks = torch.rand(6) * 0.1, torch.randn(6) * 3
    rule = {
        "window": AttentionRule(0.3, window=70),
        "wide window": AttentionRule(0.3, window=700),
        "softcap": AttentionRule(1.0, softcap=5.0),
        "alibi": AttentionRule(0.3, alibi_slopes=slopes),
        "sinks": AttentionRule(0.3, sinks=sinks),
        "all": AttentionRule(1.0, 5.0, 130, slopes, sinks),
    }[name]
    batch = Sequences([length], sizes, 64, bits, rule)
    out = batch.run([[(0, 0, length)]])[0]
    tolerance = 2e-3 if bits == 8 else 5 * tolerance_of(bits, isa)
    wrong = (out.double() - batch.exact(0)).abs() > tolerance * (1 + batch.exact(0).abs())
    assert wrong.double().mean() <= (0.03 if bits == 8 else 0)
    steps = [[(0, 0, 500)], [(0, 500, 595)], *[[(0, position, 1)] for position in range(1095, length)]]
    assert torch.equal(batch.run(steps)[0], out)


def test_blocks_outside_the_window_are_never_read() -> None:
    batch = Sequences([300], HeadSizes(2, 1, 16, 16), 16, 32, AttentionRule(0.25, window=40))
    attend = PagedAttention(len(batch.blocks[0]), batch.sizes, 16, 32, batch.rule)
    q, k, v = (x[0] for x in (batch.q, batch.k, batch.v))
    attend(q[:299], k[:299], v[:299], [(0, 299, 0, batch.blocks[0])])
    seen = (299 - 39) // 16
    gone = [10**6] * seen + batch.blocks[0][seen:]  # reading one of these would be far outside the pool
    out = attend(q[299:], k[299:], v[299:], [(0, 1, 299, gone)])
    torch.testing.assert_close(out[0].double(), batch.exact(0)[299], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_a_broken_row_spoils_neither_earlier_rows_nor_other_sequences(bits: int) -> None:
    torch.manual_seed(0)
    batch = Sequences([100, 50], HeadSizes(6, 2, 32, 32), 64, bits, AttentionRule(0.2))
    steps: list[list[Chunk]] = [[(0, 0, 100), (1, 0, 50)]]
    clean = batch.run(steps)
    for tensor in (batch.q, batch.k, batch.v):
        tensor[0][77] = float("nan")
    broken = batch.run(steps)
    assert torch.equal(broken[0][:77], clean[0][:77])
    assert torch.equal(broken[1], clean[1])
    assert not broken[0][77:].isfinite().any()
