"""Kernels against float64, over shapes that do and do not fill vectors and tiles."""

import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.turbomind import ops  # registers torch.ops.turbomind
from tests.kernels.reference import attention_reference, round_activations, round_weight

# A float32 dot product of n terms in any order is within n 2^-24 sum |x w| of the exact one (Higham, 2002, 3.5).
EPS = 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 7, 5), (3, 64, 64), (6, 129, 100), (53, 96, 576), (200, 33, 31)]
)
def test_linear_is_within_the_rounding_bound_of_float64(
    rows: int, out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, in_features)
    weight = torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features)
    y = torch.ops.turbomind.linear(x, weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    bound = (in_features + 1) * EPS * (x.double().abs() @ weight.double().abs().T + bias.double().abs())
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_linear_is_bitwise_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(101, 600)
    weight = torch.randn(70, 600).to(dtype)
    together = torch.ops.turbomind.linear(x, weight, None)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 60), (60, 101)]:
        assert torch.equal(torch.ops.turbomind.linear(x[first:last].contiguous(), weight, None), together[first:last])


SHAPES = [(1, 16, 32), (2, 7, 40), (9, 40, 576), (50, 33, 100), (3, 130, 1536)]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("group", [32, 64])
def test_a_rounded_linear_is_the_product_of_the_rounded_values(
    rows: int, out_features: int, in_features: int, group: int, bits: int
) -> None:
    torch.manual_seed(rows + bits)
    x = torch.randn(rows, in_features) * torch.rand(rows, 1)
    weight = torch.randn(out_features, in_features)
    y = torch.ops.turbomind.rounded_linear(x, weight, bits, group)
    rounded_x, rounded_weight = round_activations(x, group), round_weight(weight, bits, group)
    exact = rounded_x @ rounded_weight.T
    # Exact inside a group; the sum over groups is float32. A value on the edge between two codes may fall either way.
    edge = rounded_x.abs().amax() / 127 * rounded_weight.abs().amax() * 2
    bound = 8 * EPS * (rounded_x.abs() @ rounded_weight.abs().T) + 1e-6
    assert ((y.double() - exact).abs() <= bound + edge).all()
    assert ((y.double() - exact).abs() <= bound).double().mean() > 0.98


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.008), (4, 0.09)])
def test_rounding_keeps_the_product_close_to_the_exact_one(bits: int, limit: float) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(20, 1024), torch.randn(200, 1024)
    exact = x.double() @ weight.double().T
    y = torch.ops.turbomind.rounded_linear(x, weight, bits, 32).double()
    assert (y - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt() < limit


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_of_a_rounded_linear_is_bitwise_the_same_alone_and_beside_broken_rows(bits: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(70, 200), torch.randn(50, 200)
    together = torch.ops.turbomind.rounded_linear(x, weight, bits, 32)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 70)]:
        part = torch.ops.turbomind.rounded_linear(x[first:last].contiguous(), weight, bits, 32)
        assert torch.equal(part, together[first:last])
    x[5, 3], x[6, 100] = float("nan"), float("inf")
    broken = torch.ops.turbomind.rounded_linear(x, weight, bits, 32)
    clean = [row for row in range(70) if row not in (5, 6)]
    assert torch.equal(broken[clean], together[clean])
    assert broken[5].isnan().all()
    assert not broken[6].isfinite().any()


def test_not_a_number_stays_in_its_own_row() -> None:
    x = torch.ones(9, 40)
    x[4, 7] = float("nan")
    x[5, 7] = float("inf")
    y = torch.ops.turbomind.linear(x, torch.ones(12, 40), None)
    clean = [row for row in range(9) if row not in (4, 5)]
    assert torch.equal(y[clean], torch.full((7, 12), 40.0))
    assert y[4].isnan().all()


@pytest.mark.parametrize("size", [1, 7, 16, 49152])
def test_argmax_is_the_first_of_the_largest(size: int) -> None:
    torch.manual_seed(size)
    logits = torch.randn(size).mul(4).round()
    want = int((logits == logits.max()).nonzero()[0])
    assert _turbomind.argmax(logits.data_ptr(), size) == want
    logits[size // 2] = float("inf")
    assert _turbomind.argmax(logits.data_ptr(), size) == size // 2


def test_argmax_refuses_nan_and_a_row_that_allows_nothing() -> None:
    logits = torch.zeros(100)
    logits[63] = float("nan")
    assert _turbomind.argmax(logits.data_ptr(), 100) == -1
    logits[:] = float("-inf")
    assert _turbomind.argmax(logits.data_ptr(), 100) == -1


CASES = [(9, 3, 64), (4, 4, 32), (8, 1, 128), (5, 1, 80), (2, 2, 18)]  # query heads, key/value heads, head_dim


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), CASES)
@pytest.mark.parametrize("block_len", [16, 64])
def test_paged_attention_agrees_with_float64_and_ignores_chunks_and_neighbours(
    heads: int, kv_heads: int, head_dim: int, block_len: int
) -> None:
    torch.manual_seed(head_dim)
    lengths = [1, 17, 640]  # the last spans two partitions
    width = (heads + 2 * kv_heads) * head_dim
    sequences = [torch.randn(length, width) for length in lengths]
    angles = [torch.rand(length, head_dim // 2) * 6 for length in lengths]
    free = torch.randperm(sum(-(-n // block_len) for n in lengths)).tolist()
    blocks_of = [[free.pop() for _ in range(-(-length // block_len))] for length in lengths]
    scale = head_dim**-0.5

    def run(chunks: list[list[tuple[int, int, int]]]) -> dict[int, torch.Tensor]:
        """Run steps of (sequence, first position, tokens); return each sequence's rows."""
        attend = ops.PagedAttention(sum(map(len, blocks_of)), heads, kv_heads, head_dim, block_len, 32)
        pieces: list[list[torch.Tensor]] = [[] for _ in lengths]
        for step in chunks:
            spans, rows, first = [], [], 0
            for sequence, start, count in step:
                spans.append((first, count, start, blocks_of[sequence]))
                rows.append((sequence, slice(start, start + count)))
                first += count
            angle = torch.cat([angles[s][part] for s, part in rows])
            out = attend(torch.cat([sequences[s][part] for s, part in rows]), angle.cos(), angle.sin(), scale, spans)
            for (sequence, _), part in zip(rows, out.split([count for _, _, count in step]), strict=True):
                pieces[sequence].append(part)
        return {index: torch.cat(part) for index, part in enumerate(pieces) if part}

    whole = run([[(s, 0, n) for s, n in enumerate(lengths)]])
    for index, length in enumerate(lengths):
        exact = attention_reference(sequences[index], angles[index], heads, kv_heads, head_dim, scale)
        torch.testing.assert_close(whole[index].double(), exact, rtol=2e-5, atol=2e-5)
        assert whole[index].shape[0] == length
    alone = [run([[(index, 0, length)]])[index] for index, length in enumerate(lengths)]
    one_by_one = run([[(2, 0, 600)], [(2, 600, 30), (0, 0, 1)], *[[(2, p, 1)] for p in range(630, 640)], [(1, 0, 17)]])
    for index in range(len(lengths)):
        assert torch.equal(whole[index], alone[index])
        assert torch.equal(whole[index], one_by_one[index])


def test_a_bfloat16_cache_rounds_keys_and_values_and_nothing_else() -> None:
    torch.manual_seed(3)
    heads, kv_heads, head_dim, length = 4, 2, 64, 100
    qkv, angle = torch.randn(length, (heads + 2 * kv_heads) * head_dim), torch.rand(length, head_dim // 2)
    attend = ops.PagedAttention(2, heads, kv_heads, head_dim, 64, 16)
    out = attend(qkv, angle.cos(), angle.sin(), 0.125, [(0, length, 0, [1, 0])])
    exact = attention_reference(qkv, angle, heads, kv_heads, head_dim, 0.125, cache_dtype=torch.bfloat16)
    torch.testing.assert_close(out.double(), exact, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 2e-4), (4, 2e-4)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 32), (8, 1, 128)])
def test_a_rounded_cache_attends_over_the_rounded_keys_and_values(
    heads: int, kv_heads: int, head_dim: int, bits: int, tolerance: float
) -> None:
    torch.manual_seed(bits)
    length = 150
    qkv, angle = torch.randn(length, (heads + 2 * kv_heads) * head_dim), torch.rand(length, head_dim // 2)
    whole = ops.PagedAttention(3, heads, kv_heads, head_dim, 64, bits)
    out = whole(qkv, angle.cos(), angle.sin(), 0.125, [(0, length, 0, [2, 0, 1])])
    exact = attention_reference(qkv, angle, heads, kv_heads, head_dim, 0.125, cache_bits=bits)
    # A value on the edge between two codes may fall either way: one step of one key or value.
    assert ((out.double() - exact).abs() <= tolerance).double().mean() > 0.97
    assert (out.double() - exact).abs().max() < (0.02 if bits == 8 else 0.3)
    stepwise = ops.PagedAttention(3, heads, kv_heads, head_dim, 64, bits)
    pieces = []
    for first, last in [(0, 70), (70, 71), (71, 150)]:
        part = slice(first, last)
        spans = [(0, last - first, first, [2, 0, 1])]
        pieces.append(stepwise(qkv[part].contiguous(), angle[part].cos(), angle[part].sin(), 0.125, spans))
    assert torch.equal(torch.cat(pieces), out)
