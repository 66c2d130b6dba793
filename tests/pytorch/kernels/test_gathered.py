"""Products whose weights depend on the row: experts and adapters, against float64 row by row."""

import pytest
import torch

from lmdeploy.pytorch.kernels.fused_moe import fused_moe
from lmdeploy.pytorch.kernels.grouped_lora import add_lora


@pytest.mark.parametrize("is_gelu", [False, True])
def test_rows_get_the_weighted_sum_of_their_experts(
    is_gelu: bool, random: torch.Generator, device: torch.device
) -> None:
    rows, hidden, inner, experts, top = 9, 40, 24, 4, 2
    x = torch.randn(rows, hidden, generator=random)
    gate_up = torch.randn(experts, 2 * inner, hidden, generator=random) / hidden**0.5
    down = torch.randn(experts, hidden, inner, generator=random) / inner**0.5
    weights = torch.rand(rows, top, generator=random)
    ids = torch.stack([torch.randperm(experts - 1, generator=random)[:top] for _ in range(rows)])  # the last has none
    ids[4, 0], ids[5, 1] = -1, experts  # of other ranks
    activate = (lambda g: torch.nn.functional.gelu(g, approximate="tanh")) if is_gelu else torch.nn.functional.silu
    expected = torch.zeros(rows, hidden, dtype=torch.float64)
    for row in range(rows):
        for weight, expert in zip(weights[row].double(), ids[row].tolist(), strict=True):
            if 0 <= expert < experts:
                gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
                expected[row] += weight * (down[expert].double() @ (activate(gate) * up))
    got = fused_moe(*(t.to(device) for t in (x, gate_up, down, weights, ids)), is_gelu=is_gelu)
    assert got.double().cpu() == pytest.approx(expected, abs=1e-5)


def test_one_expert_for_all_rows_fills_several_tiles(random: torch.Generator, device: torch.device) -> None:
    x = torch.randn(70, 16, generator=random)
    gate_up = torch.randn(8, 32, 16, generator=random) / 4
    down = torch.randn(8, 16, 16, generator=random) / 4
    ids = torch.full((70, 1), 5)
    gate, up = (x.double() @ gate_up[5].double().T).chunk(2, -1)
    expected = (torch.nn.functional.silu(gate) * up) @ down[5].double().T
    got = fused_moe(*(t.to(device) for t in (x, gate_up, down, torch.ones(70, 1), ids)))
    assert got.double().cpu() == pytest.approx(expected, abs=1e-5)


def test_segments_add_the_products_of_their_adapters(random: torch.Generator, device: torch.device) -> None:
    inputs, outputs, ranks = 72, 80, [4, 8, 6]
    lengths, adapters = [3, 1, 20, 2], [2, 0, 1, -1]
    rows = sum(lengths)
    x, base = torch.randn(rows, inputs, generator=random), torch.randn(rows, outputs, generator=random)
    lora_a = torch.zeros(3, 8, inputs)
    lora_b = torch.zeros(3, outputs, 8)
    for adapter, rank in enumerate(ranks):
        lora_a[adapter, :rank] = torch.randn(rank, inputs, generator=random) / inputs**0.5
        lora_b[adapter, :, :rank] = torch.randn(outputs, rank, generator=random)
    scalings = torch.tensor([0.5, 2.0, 1.5])
    expected = base.double()
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    for start, length, adapter in zip(starts.tolist(), lengths, adapters, strict=True):
        if adapter >= 0:
            part = slice(start, start + length)
            a, b = lora_a[adapter].double(), lora_b[adapter].double()
            expected[part] += x[part].double() @ a.T @ b.T * scalings[adapter].double()
    got = add_lora(
        base.to(device),
        *(t.to(device) for t in (x, lora_a, lora_b, scalings)),
        *(torch.as_tensor(t).to(device) for t in (starts, lengths, adapters)),
        max_length=20,
    )
    assert got.double().cpu() == pytest.approx(expected, abs=1e-5)
    assert torch.equal(got[-2:].cpu(), base[-2:])
