"""Routing and expert kernels against float64."""

import pytest
import torch

from lmdeploy.turbomind import ops

EPS = 2.0**-24


def brute_force_route(logits: torch.Tensor, router: ops.Router) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose and weigh the experts of each row in float64, the obvious way, one row at a time."""
    rows = []
    for row in logits.double():
        if router.score == "sparsemixer":
            rows.append(sparse_mixer(row, router))
            continue
        scores = row.softmax(0) if router.score == "softmax" else row.sigmoid()
        choice = scores + (0 if router.choice_bias is None else router.choice_bias.double())
        groups = choice.view(router.num_groups, -1)
        count = 2 if router.group_score == "top2" else 1
        by_group = groups.sort(descending=True).values[:, :count].sum(1)
        kept = by_group.argsort(descending=True)[: router.top_groups]
        size = router.num_experts // router.num_groups
        allowed = [e for e in range(router.num_experts) if e // size in kept.tolist()]
        chosen = sorted(allowed, key=lambda e: -float(choice[e]))[: router.top_k]
        weights = scores[chosen]
        if router.normalize:
            weights = weights / weights.sum()
        rows.append((chosen, weights * router.scale))
    return torch.tensor([chosen for chosen, _ in rows]), torch.stack([weights for _, weights in rows])


def sparse_mixer(row: torch.Tensor, router: ops.Router) -> tuple[list[int], torch.Tensor]:
    chosen: list[int] = []
    weights = []
    for _ in range(router.top_k):
        left = [e for e in range(router.num_experts) if e not in chosen]
        best = max(left, key=lambda e: float(row[e]))
        top = float(row[best])
        near = [e for e in left if (top - float(row[e])) / max(abs(float(row[e])), top) <= 2 * router.mixer_jitter]
        weights.append(1 / (row[near] - top).exp().sum())
        chosen.append(best)
    return chosen, torch.stack(weights)


BIAS = torch.linspace(-0.4, 0.4, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(3))]
ROUTERS = {
    "two of eight": ops.Router(8, 2, normalize=True),
    "one expert": ops.Router(1, 1),
    "all experts": ops.Router(5, 5, normalize=True),
    "not normalised, scaled": ops.Router(60, 4, scale=2.5),
    "groups by their best": ops.Router(16, 3, num_groups=4, top_groups=2, scale=16.0),
    "sigmoid": ops.Router(16, 4, score="sigmoid", normalize=True),
    "sigmoid with bias and groups": ops.Router(
        16,
        4,
        "sigmoid",
        num_groups=4,
        top_groups=2,
        group_score="top2",
        choice_bias=BIAS,
        normalize=True,
        scale=2.5,
    ),
    "sparse mixer": ops.Router(16, 2, score="sparsemixer", mixer_jitter=0.01),
    "sparse mixer, wide": ops.Router(16, 2, score="sparsemixer", mixer_jitter=0.3),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_rows_go_where_float64_sends_them(name: str) -> None:
    router = ROUTERS[name]
    torch.manual_seed(1)
    logits = torch.randn(133, router.num_experts) * 2
    experts, weights = router(logits)
    expected, exact = brute_force_route(logits, router)
    assert torch.equal(experts.long(), expected)
    torch.testing.assert_close(weights.double(), exact, rtol=64 * EPS, atol=0)


def test_equal_scores_go_to_the_lowest_experts() -> None:
    experts, weights = ops.Router(6, 3, normalize=True)(torch.zeros(2, 6))
    assert experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("name", ROUTERS)
def test_a_broken_row_gets_different_valid_experts_and_spoils_no_other(name: str) -> None:
    router = ROUTERS[name]
    torch.manual_seed(2)
    logits = torch.randn(40, router.num_experts)
    clean_experts, clean_weights = router(logits)
    broken = logits.clone()
    broken[7] = float("nan")
    broken[20, 0] = float("inf")
    experts, weights = router(broken)
    others = [i for i in range(40) if i not in (7, 20)]
    assert torch.equal(experts[others], clean_experts[others])
    assert torch.equal(weights[others], clean_weights[others])
    assert all(len(set(row)) == router.top_k for row in experts.tolist())
    assert 0 <= experts.min() <= experts.max() < router.num_experts


def layer(count: int, size: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 2 * size, hidden) / hidden**0.5, torch.randn(count, hidden, size) / size**0.5


@pytest.mark.parametrize(
    ("rows", "count", "top_k", "size", "hidden"), [(1, 4, 2, 32, 48), (7, 8, 3, 20, 33), (130, 6, 6, 40, 64)]
)
def test_experts_give_the_weighted_sum_of_float64(rows: int, count: int, top_k: int, size: int, hidden: int) -> None:
    torch.manual_seed(rows)
    gate_up, down = layer(count, size, hidden)
    x = torch.randn(rows, hidden)
    chosen, weights = ops.Router(count, top_k, normalize=True)(torch.randn(rows, count))
    y = ops.experts(x, gate_up, down, chosen, weights, "gelu")
    gate, up = torch.einsum("rh,eih->rei", x.double(), gate_up.double()).chunk(2, -1)
    each = torch.einsum("rei,ehi->reh", torch.nn.functional.gelu(gate) * up, down.double())
    exact = (each.gather(1, chosen.long()[..., None].expand(-1, -1, hidden)) * weights.double()[..., None]).sum(1)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [0, 8, 4])
def test_each_expert_is_the_linear_kernel_on_its_rows_and_sums_go_by_expert(bits: int) -> None:
    torch.manual_seed(bits)
    gate_up, down = layer(5, 32, 64)
    x = torch.randn(23, 64)
    chosen, weights = ops.Router(5, 3)(torch.randn(23, 5))

    def product(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.linear(value, weight) if bits == 0 else ops.rounded_linear(value, weight, bits, 32)

    expected = torch.zeros_like(x)
    for e in range(5):
        rows, ranks = (chosen == e).nonzero(as_tuple=True)
        out = product(ops.activate(product(x[rows], gate_up[e]), "silu", True), down[e])
        expected[rows] = torch.addcmul(expected[rows], weights[rows, ranks][:, None], out)
    y = ops.experts(x, gate_up, down, chosen, weights, bits=bits)
    torch.testing.assert_close(y, expected, rtol=4 * EPS, atol=1e-6)


@pytest.mark.parametrize("bits", [0, 8])
def test_a_row_is_bitwise_the_same_alone_and_among_others(bits: int) -> None:
    torch.manual_seed(4)
    gate_up, down = layer(8, 24, 40)
    x, logits = torch.randn(101, 40), torch.randn(101, 8)
    router = ops.Router(8, 3, normalize=True)
    together = ops.experts(x, gate_up, down, *router(logits), bits=bits)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 60), (60, 101)]:
        part = ops.experts(
            x[first:last].contiguous(), gate_up, down, *router(logits[first:last].contiguous()), bits=bits
        )
        assert torch.equal(part, together[first:last])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "out_features", "in_features"), [(1, 3, 20, 17), (60, 4, 33, 64)])
def test_head_linear_is_each_heads_own_linear(
    rows: int, heads: int, out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, heads, in_features)
    weight = torch.randn(heads, out_features, in_features).to(dtype)
    y = ops.head_linear(x, weight)
    for head in range(heads):
        assert torch.equal(y[:, head], ops.linear(x[:, head].contiguous(), weight[head]))
    exact = torch.einsum("rhi,hoi->rho", x.double(), weight.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-4)


def test_bad_choices_are_refused() -> None:
    gate_up, down = layer(2, 8, 8)
    with pytest.raises(ValueError, match="chosen must lie in"):
        ops.experts(torch.zeros(1, 8), gate_up, down, torch.tensor([[2]], dtype=torch.int32), torch.ones(1, 1))
