"""Products whose weights depend on the row: experts, against float64 row by row."""

import pytest
import torch

from lmdeploy.pytorch.kernels.fused_moe import fused_moe


@pytest.mark.parametrize("is_one_for_all", [False, True])  # rows of one expert fill several tiles
def test_rows_get_the_weighted_sum_of_their_experts(
    is_one_for_all: bool, random: torch.Generator, device: torch.device
) -> None:
    rows, hidden, inner, experts, top = (70, 16, 16, 8, 1) if is_one_for_all else (9, 40, 24, 4, 2)
    x = torch.randn(rows, hidden, generator=random)
    gate_up = torch.randn(experts, 2 * inner, hidden, generator=random) / hidden**0.5
    down = torch.randn(experts, hidden, inner, generator=random) / inner**0.5
    weights = torch.rand(rows, top, generator=random)
    if is_one_for_all:
        ids = torch.full((rows, top), 5)
    else:
        ids = torch.stack([torch.randperm(experts - 1, generator=random)[:top] for _ in range(rows)])  # the last: none
        ids[4, 0], ids[5, 1] = -1, experts  # of other ranks
    expected = torch.zeros(rows, hidden, dtype=torch.float64)
    for row in range(rows):
        for weight, expert in zip(weights[row].double(), ids[row].tolist(), strict=True):
            if 0 <= expert < experts:
                gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
                expected[row] += weight * (down[expert].double() @ (torch.nn.functional.silu(gate) * up))
    got = fused_moe(*(t.to(device) for t in (x, gate_up, down, weights, ids)))
    assert got.double().cpu() == pytest.approx(expected, abs=1e-5)
