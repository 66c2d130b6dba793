"""Routing and experts against float64."""

import pytest
import torch

from tests.kernels.arguments import Router
from tests.kernels.device import BF16_PRODUCTS, Device
from tests.kernels.weights import SCALED, Weight, group_quantized_weight, make_weight, scaled_weight

EPS = 2.0**-24


def brute_force_route(logits: torch.Tensor, router: Router) -> tuple[torch.Tensor, torch.Tensor]:
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
        scales = 1.0 if router.expert_scales is None else router.expert_scales.double()[chosen]
        rows.append((chosen, weights * router.scale * scales))
    return torch.tensor([chosen for chosen, _ in rows]), torch.stack([weights for _, weights in rows])


def sparse_mixer(row: torch.Tensor, router: Router) -> tuple[list[int], torch.Tensor]:
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
    "two of eight": Router(8, 2, normalize=True),
    "one expert": Router(1, 1),
    "a factor each": Router(16, 4, normalize=True, expert_scales=torch.linspace(-0.5, 2.0, 16)),
    "all experts": Router(5, 5, normalize=True),
    "not normalised, scaled": Router(60, 4, scale=2.5),
    "groups by their best": Router(16, 3, num_groups=4, top_groups=2, scale=16.0),
    "sigmoid": Router(16, 4, score="sigmoid", normalize=True),
    "sigmoid with bias and groups": Router(
        16, 4, "sigmoid", num_groups=4, top_groups=2, group_score="top2", choice_bias=BIAS, normalize=True, scale=2.5
    ),
    "sparse mixer": Router(16, 2, score="sparsemixer", mixer_jitter=0.01),
    "sparse mixer, wide": Router(16, 2, score="sparsemixer", mixer_jitter=0.3),
    "eight of 128": Router(128, 8, normalize=True),
    "DeepSeek-V3": Router(
        256,
        8,
        "sigmoid",
        num_groups=8,
        top_groups=4,
        group_score="top2",
        choice_bias=torch.linspace(-0.2, 0.2, 256),
        normalize=True,
        scale=2.5,
    ),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_rows_go_where_float64_sends_them(device: Device, name: str) -> None:
    router = ROUTERS[name]
    torch.manual_seed(1)
    logits = torch.randn(133, router.num_experts) * 2
    experts, weights = device.route(router, logits)
    expected, exact = brute_force_route(logits, router)
    assert torch.equal(experts.long(), expected)
    torch.testing.assert_close(weights.double(), exact, rtol=64 * EPS, atol=0)


@pytest.mark.parametrize("is_by_token", [False, True])
def test_square_roots_of_softplus_weigh_experts_that_scores_or_tokens_choose(cpu: Device, is_by_token: bool) -> None:
    torch.manual_seed(4)
    logits = torch.randn(33, 16) * 8
    table = torch.rand(50, 3).argsort().int() + torch.randint(0, 14, (50, 1)).int()
    tokens = torch.randint(0, 50, (33,)).int()
    given = {"token_experts": table, "tokens": tokens} if is_by_token else {"choice_bias": BIAS}
    experts, weights = cpu.route(Router(16, 3, "sqrt_softplus", normalize=True, scale=1.5, **given), logits)
    scores = torch.nn.functional.softplus(logits.double()).sqrt()
    expected = table[tokens.long()].long() if is_by_token else (scores + BIAS.double()).topk(3).indices
    assert torch.equal(experts.long(), expected)
    chosen = scores.gather(1, expected)
    torch.testing.assert_close(weights.double(), 1.5 * chosen / chosen.sum(1, keepdim=True), rtol=64 * EPS, atol=0)


def test_a_gpu_refuses_experts_of_tokens(cuda: Device) -> None:
    with pytest.raises(ValueError, match="router"):
        cuda.route(Router(16, 3, "sqrt_softplus"), torch.zeros(1, 16))


def test_equal_scores_go_to_the_lowest_experts(device: Device) -> None:
    experts, weights = device.route(Router(6, 3, normalize=True), torch.zeros(2, 6))
    assert experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("name", ROUTERS)
def test_a_broken_row_gets_different_valid_experts_and_spoils_no_other(device: Device, name: str) -> None:
    router = ROUTERS[name]
    torch.manual_seed(2)
    logits = torch.randn(40, router.num_experts)
    clean_experts, clean_weights = device.route(router, logits)
    broken = logits.clone()
    broken[7] = float("nan")
    broken[20, 0] = float("inf")
    experts, weights = device.route(router, broken)
    others = [i for i in range(40) if i not in (7, 20)]
    assert torch.equal(experts[others], clean_experts[others])
    assert torch.equal(weights[others], clean_weights[others])
    assert all(len(set(row)) == router.top_k for row in experts.tolist())
    assert 0 <= experts.min() <= experts.max() < router.num_experts


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("step", [0.0, 0.25])
def test_rows_go_where_the_cpu_sends_them(cuda: Device, name: str, step: float) -> None:
    router = ROUTERS[name]
    torch.manual_seed(1)
    logits = torch.randn(37, router.num_experts) * 2
    if step:  # many equal scores
        logits = (logits / step).round() * step
    logits[3] = float("nan")
    logits[5, -1] = float("nan")
    logits[6, 0] = float("inf")
    logits[7] = float("-inf")
    experts, weights = cuda.route(router, logits)
    expected, expected_weights = Device("cpu").route(router, logits)
    assert torch.equal(experts, expected)
    # An exponential of the C library may be another rounding than ours of its float64 value.
    torch.testing.assert_close(weights, expected_weights, rtol=8 * EPS, atol=0, equal_nan=True)


def make_experts(device: Device, kind: str, count: int, shape: tuple[int, int]) -> list[Weight]:
    if kind.startswith("codes"):
        is_shuffled = kind == "codes, shuffled"
        return [group_quantized_weight(device, shape, 4, 8, shuffles_inputs=is_shuffled) for _ in range(count)]
    made = []
    for _ in range(count):
        values, bias = torch.randn(shape) * shape[1] ** -0.5, torch.randn(shape[0]) * 0.1
        scaled = kind in SCALED
        made.append(
            scaled_weight(device, values, kind, bias) if scaled else make_weight(device, values, kind, 32, bias)
        )
    return made


def act(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    function = torch.nn.functional.silu if activation == "silu" else torch.nn.functional.gelu
    return function(gate) * up


# Tolerances, twice the loss of precision: on CUDA by 16-bit activations and products, on the CPU by activations of 8
# bits, or, with float8 and on tiles, of bfloat16.
CUDA_LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 2e-3, "int4": 2e-3}
KINDS = [*CUDA_LIMITS, "codes", "codes, shuffled", *SCALED]


def limit_of(device: Device, kind: str) -> float:
    """Return the relative error that the sum may have."""
    if device.is_cuda:
        return CUDA_LIMITS.get(kind, 2e-3)
    if kind == "bfloat16" and device.isa in BF16_PRODUCTS:
        return 1e-2
    if kind in ("float32", "bfloat16", "float16"):
        return 1e-5
    return 1e-2 if kind.startswith("float8") else 2e-2


SHAPES = [(1, 4, 2, 32, 48), (7, 8, 3, 24, 40), (12, 5, 5, 40, 64), (50, 6, 2, 40, 64), (200, 3, 2, 16, 24)]
GATED = [(shape, "silu" if shape[0] % 2 else "gelu", kind) for shape in SHAPES for kind in KINDS]
UNGATED_KINDS = ["float32", "bfloat16", "int8", "int4", "codes, shuffled"]
UNGATED = [((rows, 6, 2, 40, 64), "relu2", kind) for rows in (7, 200) for kind in UNGATED_KINDS]


@pytest.mark.parametrize(("shape", "activation", "kind"), [*GATED, *UNGATED])
def test_experts_give_the_weighted_sum_of_float64(
    device: Device, shape: tuple[int, int, int, int, int], activation: str, kind: str
) -> None:
    rows, count, top_k, size, hidden = shape
    is_gated = activation != "relu2"
    torch.manual_seed(rows)
    up = make_experts(device, kind, count, (2 * size if is_gated else size, hidden))
    down = make_experts(device, kind, count, (hidden, size))
    x, before = torch.randn(rows, hidden), torch.randn(rows, hidden)
    logits = torch.randn(rows, count)
    if rows == 50:
        logits[:, 4] = -100.0  # an expert nobody goes to
    chosen, weights = device.route(Router(count, top_k, normalize=True), logits)
    y = device.add_experts(up, down, activation, x, (chosen, weights), before)
    exact = before.double()
    for e in range(count):
        row, rank = (chosen == e).nonzero(as_tuple=True)
        inner = x[row].double() @ up[e].exact.T + up[e].bias
        inner = act(*inner.chunk(2, -1), activation) if is_gated else inner.relu().square()
        exact[row] += weights[row, rank].double()[:, None] * (inner @ down[e].exact.T + down[e].bias)
    error = (y.double() - exact).norm() / (exact - before).norm()
    # A square doubles the relative error of what goes into it.
    assert error < (1 if is_gated else 2) * limit_of(device, kind)


@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_the_same_rows_give_the_same_result_whatever_was_computed_before(device: Device, kind: str) -> None:
    torch.manual_seed(0)
    gate_up, down = make_experts(device, kind, 6, (64, 64)), make_experts(device, kind, 6, (64, 32))
    x, before = torch.randn(20, 64), torch.zeros(20, 64)
    routed = device.route(Router(6, 3), torch.randn(20, 6))
    first = device.add_experts(gate_up, down, "silu", x, routed, before)
    assert torch.equal(device.add_experts(gate_up, down, "silu", x, routed, before), first)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int4", "codes, shuffled"])
@pytest.mark.parametrize("rows", [9, 21])
def test_rows_that_fill_a_step_go_to_no_expert(cuda: Device, kind: str, rows: int) -> None:
    torch.manual_seed(rows)
    padded, router = (rows + 7) // 8 * 8, Router(6, 3, normalize=True)
    gate_up, down = make_experts(cuda, kind, 6, (64, 32)), make_experts(cuda, kind, 6, (32, 32))
    x, before, logits = torch.randn(padded, 32), torch.randn(padded, 32), torch.randn(padded, 6)
    logits[rows:, :3] = 100.0
    logits[:rows, :3] = -100.0
    everybody = cuda.route(router, logits)
    expected = cuda.add_experts(gate_up, down, "silu", x, everybody, before)
    cuda.native.set_spans([(0, rows, 0, [0])], rows)
    chosen, weights = cuda.route(router, logits)
    assert (chosen[rows:] == -1).all()
    assert (weights[rows:] == 0).all()
    assert torch.equal(chosen[:rows], everybody[0][:rows])
    y = cuda.add_experts(gate_up, down, "silu", x, (chosen, weights), before)
    assert torch.equal(y[rows:], before[rows:])
    assert torch.equal(y[:rows], expected[:rows])


def test_too_many_experts_of_a_row_are_refused(cuda: Device) -> None:
    gate_up, down = make_experts(cuda, "float32", 40, (16, 8)), make_experts(cuda, "float32", 40, (8, 8))
    routed = torch.arange(40, dtype=torch.int32)[None], torch.ones(1, 40)
    with pytest.raises(RuntimeError, match="at most 32 experts"):
        cuda.add_experts(gate_up, down, "silu", torch.zeros(1, 8), routed, torch.zeros(1, 8))


# ---- what the CPU promises beyond ----


@pytest.mark.parametrize("kind", ["float32", "int8", "int4"])
def test_each_expert_is_the_linear_operator_on_its_rows_and_sums_go_by_expert(cpu: Device, kind: str) -> None:
    torch.manual_seed(len(kind))
    gate_up, down = make_experts(cpu, kind, 5, (64, 64)), make_experts(cpu, kind, 5, (64, 32))
    x = torch.randn(23, 64)
    chosen, weights = cpu.route(Router(5, 3), torch.randn(23, 5))
    expected = torch.zeros_like(x)
    for e in range(5):
        rows, ranks = (chosen == e).nonzero(as_tuple=True)
        activated = cpu.activate(cpu.linear(gate_up[e], x[rows]), "silu", is_gated=True)
        out = cpu.linear(down[e], activated)
        expected[rows] = torch.addcmul(expected[rows], weights[rows, ranks][:, None], out)
    y = cpu.add_experts(gate_up, down, "silu", x, (chosen, weights), torch.zeros_like(x))
    torch.testing.assert_close(y, expected, rtol=4 * EPS, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_a_row_is_bitwise_the_same_alone_and_among_others(cpu: Device, kind: str) -> None:
    torch.manual_seed(4)
    gate_up, down = make_experts(cpu, kind, 8, (48, 40)), make_experts(cpu, kind, 8, (40, 24))
    x, logits = torch.randn(101, 40), torch.randn(101, 8)

    def run(first: int, last: int) -> torch.Tensor:
        routed = cpu.route(Router(8, 3, normalize=True), logits[first:last])
        return cpu.add_experts(gate_up, down, "silu", x[first:last], routed, torch.zeros(last - first, 40))

    together = run(0, 101)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 60), (60, 101)]:
        assert torch.equal(run(first, last), together[first:last])
