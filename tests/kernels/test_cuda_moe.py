"""Routing, experts and copies on a device, against the CPU's choice of experts and against float64."""

import numpy as np
import pytest
import torch

from lmdeploy.turbomind import ops
from lmdeploy.turbomind.spec_problems import ACTIVATIONS, GROUP_SCORES, ROUTER_SCORES
from tests.kernels.cuda_device import CudaModule
from tests.kernels.cuda_weights import SCALED, DeviceWeight, device_weight, scaled_weight, stored_codes_weight
from tests.kernels.test_moe import ROUTERS

EPS = 2.0**-24


def route(cuda: CudaModule, router: ops.Router, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    experts, weights = cuda.route(
        logits.numpy(), ROUTER_SCORES.index(router.score), router.mixer_jitter, router.num_groups, router.top_groups,
        GROUP_SCORES.index(router.group_score), None if router.choice_bias is None else router.choice_bias.numpy(),
        router.normalize, router.scale, np.empty((len(logits), router.top_k), np.int32),
        np.empty((len(logits), router.top_k), np.float32),
    )  # fmt: skip
    return torch.from_numpy(experts), torch.from_numpy(weights)


LARGE = {
    "eight of 128": ops.Router(128, 8, normalize=True),
    "DeepSeek-V3": ops.Router(
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


@pytest.mark.parametrize("name", [*ROUTERS, *LARGE])
@pytest.mark.parametrize("step", [0.0, 0.25])
def test_rows_go_where_the_cpu_sends_them(cuda: CudaModule, name: str, step: float) -> None:
    router = (ROUTERS | LARGE)[name]
    torch.manual_seed(1)
    logits = torch.randn(37, router.num_experts) * 2
    if step:  # many equal scores
        logits = (logits / step).round() * step
    logits[3] = float("nan")
    logits[5, -1] = float("nan")
    logits[6, 0] = float("inf")
    logits[7] = float("-inf")
    experts, weights = route(cuda, router, logits)
    expected, expected_weights = router(logits)
    assert torch.equal(experts, expected)
    # An exponential of the C library may be another rounding than ours of its float64 value.
    torch.testing.assert_close(weights, expected_weights, rtol=8 * EPS, atol=0, equal_nan=True)


def make_experts(cuda: CudaModule, kind: str, count: int, shape: tuple[int, int]) -> list[DeviceWeight]:
    if kind.startswith("stored"):
        return [
            stored_codes_weight(cuda, shape, 4, 8, shuffles_inputs=kind == "stored, shuffled") for _ in range(count)
        ]
    scale = shape[1] ** -0.5
    if kind in SCALED:
        return [
            scaled_weight(cuda, torch.randn(shape) * scale, kind, torch.randn(shape[0]) * 0.1) for _ in range(count)
        ]
    return [
        device_weight(cuda, torch.randn(shape) * scale, kind, 32, torch.randn(shape[0]) * 0.1) for _ in range(count)
    ]


def act(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate) * up


# What 16-bit activations and products leave of the precision, twice over; float32 for float32 weights.
LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 2e-3, "int4": 2e-3}


@pytest.mark.parametrize("kind", [*LIMITS, "stored", "stored, shuffled", *SCALED])
@pytest.mark.parametrize(
    ("rows", "count", "top_k", "size", "hidden"),
    [(1, 4, 2, 32, 48), (7, 8, 3, 24, 40), (12, 5, 5, 40, 64), (50, 6, 2, 40, 64), (200, 3, 2, 16, 24)],
)
def test_experts_give_the_weighted_sum_of_float64(
    cuda: CudaModule, rows: int, count: int, top_k: int, size: int, hidden: int, kind: str
) -> None:
    torch.manual_seed(rows)
    gate_up = make_experts(cuda, kind, count, (2 * size, hidden))
    down = make_experts(cuda, kind, count, (hidden, size))
    x, before = torch.randn(rows, hidden), torch.randn(rows, hidden)
    logits = torch.randn(rows, count)
    if rows == 50:
        logits[:, 4] = -100.0  # an expert nobody goes to
    activation = "silu" if rows % 2 else "gelu"
    chosen, weights = ops.Router(count, top_k, normalize=True)(logits)
    y = cuda.add_experts(
        [w.on_device for w in gate_up], [w.on_device for w in down], ACTIVATIONS.index(activation),
        x.numpy(), chosen.numpy(), weights.numpy(), before.numpy(),
    )  # fmt: skip
    exact = before.double()
    for e in range(count):
        row, rank = (chosen == e).nonzero(as_tuple=True)
        gate, up = (x[row].double() @ gate_up[e].exact.T + gate_up[e].bias).chunk(2, -1)
        out = act(gate, up, activation) @ down[e].exact.T + down[e].bias
        exact[row] += weights[row, rank].double()[:, None] * out
    error = (torch.from_numpy(y).double() - exact).norm() / (exact - before).norm()
    assert error < LIMITS.get(kind, 2e-3)


def test_the_same_rows_give_the_same_result_whatever_was_computed_before(cuda: CudaModule) -> None:
    torch.manual_seed(0)
    gate_up = make_experts(cuda, "int4", 6, (64, 64))
    down = make_experts(cuda, "int4", 6, (64, 32))
    x, before = torch.randn(20, 64).numpy(), np.zeros((20, 64), np.float32)
    chosen, weights = ops.Router(6, 3)(torch.randn(20, 6))
    arguments = ([w.on_device for w in gate_up], [w.on_device for w in down], 0, x, chosen.numpy(), weights.numpy())
    first = cuda.add_experts(*arguments, before)
    assert (cuda.add_experts(*arguments, before) == first).all()


def test_too_many_experts_of_a_row_are_refused(cuda: CudaModule) -> None:
    gate_up, down = make_experts(cuda, "float32", 40, (16, 8)), make_experts(cuda, "float32", 40, (8, 8))
    chosen = np.arange(40, dtype=np.int32)[None]
    with pytest.raises(RuntimeError, match="at most 32 experts"):
        cuda.add_experts(
            [w.on_device for w in gate_up], [w.on_device for w in down], 0, np.zeros((1, 8), np.float32), chosen,
            np.ones((1, 40), np.float32), np.zeros((1, 8), np.float32),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_rows_of_an_embedding_are_copied_and_scaled(cuda: CudaModule, kind: str) -> None:
    table = device_weight(cuda, torch.randn(50, 300), kind)
    tokens = np.array([3, 49, 0, 3], np.int32)
    y = cuda.embed(table.on_device, tokens, 1.5, np.empty((4, 300), np.float32))
    assert (torch.from_numpy(y).double() == (table.exact.float()[tokens] * 1.5).double()).all()


def test_rows_and_heads_are_copied(cuda: CudaModule) -> None:
    x = np.random.default_rng(0).standard_normal((9, 270), np.float32)
    indices = np.array([8, 0, 0, 4], np.int32)
    assert (cuda.gather_rows(x, indices, np.empty((4, 270), np.float32)) == x[indices]).all()
    heads = x.reshape(9, 3, 90)
    y = cuda.copy_heads(heads, np.zeros((9, 3, 100), np.float32))
    assert (y[..., :90] == heads).all()
    assert (y[..., 90:] == 0).all()
