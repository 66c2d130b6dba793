"""Products on tiles (AMX): bitwise those in vectors where sums are integers, and bitwise those that the manual defines.

The instructions run where the machine has them; plain code stands for them on any machine with AVX-512.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.arguments import AttentionRule, HeadSizes
from tests.kernels.device import BF16_TILES, Device, host_module, opened
from tests.kernels.sequences import Sequences
from tests.kernels.weights import Weight, group_minima_weight, group_quantized_weight, make_weight, quantized_weight

STEP = 32  # inputs that one product of bfloat16 takes


def tiles_here() -> list[str]:
    """Return the tables with tiles that run on this machine."""
    return [isa for isa in host_module().supported_isas() if isa in BF16_TILES]


@pytest.fixture(params=BF16_TILES)
def tiles(request: pytest.FixtureRequest) -> str:
    """Return a table with tiles."""
    if request.param not in tiles_here():
        pytest.skip("this processor has no AMX" if request.param == "amx" else "this processor has no AVX-512")
    return str(request.param)


MAKERS: dict[str, Callable[[Device, int, int, int, int], Weight]] = {
    "rounded": lambda device, bits, group, outs, ins: make_weight(device, torch.randn(outs, ins), f"int{bits}", group),
    "zero points": lambda device, bits, group, outs, ins: group_quantized_weight(
        device, (outs, ins), bits, group, shuffles_inputs=False
    ),
    "minima": lambda device, bits, group, outs, ins: group_minima_weight(
        device, (outs, -(-ins // group) * group), bits, group
    )[0],
    "shared minima": lambda device, bits, group, outs, ins: group_minima_weight(
        device, (outs, -(-ins // (2 * group)) * 2 * group), bits, group, scale_groups=2
    )[0],
}


# Kinds of codes, their bits and groups, which are made of whole vectors of codes; only 8 and 4 bits are rounded to.
FORMATS = [
    (kind, bits, group)
    for kind in sorted(MAKERS)
    for bits, unit in {8: 8, 4: 8, 6: 16, 5: 32}.items()
    for group in (8, 24, 32, 64, 96, 128)
    if group % unit == 0 and (kind != "rounded" or bits in (8, 4))
]


@settings(deadline=None, max_examples=100)
@given(
    stored_format=st.sampled_from(FORMATS),
    rows=st.integers(1, 150),
    outs=st.integers(1, 70),
    ins=st.integers(1, 300),
    seed=st.integers(0, 2**16),
)
def test_rounded_products_are_bitwise_those_of_every_instruction_set(
    stored_format: tuple[str, int, int], rows: int, outs: int, ins: int, seed: int
) -> None:
    kind, bits, group = stored_format
    results = {}
    for isa in [name for name in host_module().supported_isas() if name != "scalar"]:  # which adds without fma
        with opened(f"cpu-{isa}") as device:
            torch.manual_seed(seed)
            weight = MAKERS[kind](device, bits, group, outs, ins)
            x = torch.randn(rows, weight.exact.shape[1]) * torch.rand(rows, 1)
            results[isa] = device.linear(weight, x, torch.randn(rows, outs) if seed % 2 else None)
    expected = results.pop("avx2") if "avx2" in results else next(iter(results.values()))
    for isa, y in results.items():
        assert torch.equal(y, expected), isa


def multiplied_by_steps(x: torch.Tensor, weight: torch.Tensor) -> np.ndarray:
    """Return ``x w^T`` of bfloat16 numbers as TDPBF16PS adds them (Intel SDM, volume 2).

    Of each 32 inputs the even and the odd ones gather apart, each by fused multiply-adds in float32; their sum is added
    to what was there. A product of bfloat16 and its sum with a float32 near it are exact in float64.
    """
    total = np.zeros((len(x), len(weight)), np.float32)
    for first in range(0, x.shape[1], STEP):
        parts = []
        for parity in (0, 1):
            part = np.zeros_like(total)
            for k in range(first + parity, min(first + STEP, x.shape[1]), 2):
                product = x[:, k].double().numpy()[:, None] * weight[:, k].double().numpy()[None, :]
                part = (part.astype(np.float64) + product).astype(np.float32)
            parts.append(part)
        total = total + (parts[0] + parts[1])
    return total


@pytest.mark.parametrize(("rows", "outs", "ins"), [(1, 16, 32), (3, 70, 64), (17, 33, 40), (40, 130, 100), (90, 64, 7)])
def test_bfloat16_products_are_added_in_the_order_of_the_manual(tiles: str, rows: int, outs: int, ins: int) -> None:
    torch.manual_seed(ins)
    x, weight = torch.randn(rows, ins).bfloat16(), torch.randn(outs, ins)
    with opened(f"cpu-{tiles}") as device:
        y = device.linear(make_weight(device, weight, "bfloat16"), x.float())
    assert np.array_equal(y.numpy(), multiplied_by_steps(x, weight.bfloat16()))


@pytest.mark.parametrize(("rows", "outs", "ins"), [(1, 16, 32), (20, 33, 96), (130, 40, 64)])
def test_float8_products_are_those_of_the_numbers_as_bfloat16(tiles: str, rows: int, outs: int, ins: int) -> None:
    torch.manual_seed(ins)
    x = torch.randn(rows, ins).bfloat16()
    quantized = torch.randint(0, 256, (outs, ins), dtype=torch.uint8)
    quantized[quantized % 128 == 127] = 0  # the two that are no numbers
    numbers = quantized.view(torch.float8_e4m3fn)
    with opened(f"cpu-{tiles}") as device:
        y = device.linear(quantized_weight(device, numbers, torch.ones(1, 1), (1 << 20, 1 << 20)), x.float())
    assert np.array_equal(y.numpy(), multiplied_by_steps(x, numbers.to(torch.bfloat16)))


@pytest.mark.skipif("amx" not in tiles_here(), reason="this processor has no AMX to compare its emulation with")
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("sizes", [HeadSizes(9, 3, 64, 64), HeadSizes(7, 1, 72, 40), HeadSizes(40, 1, 24, 16)], ids=str)
def test_attention_comes_to_the_bits_of_its_emulation(sizes: HeadSizes, bits: int) -> None:
    results = []
    for isa in BF16_TILES:
        with opened(f"cpu-{isa}") as device:
            torch.manual_seed(1)
            batch = Sequences(device, [1, 70, 600], sizes, 64, bits, AttentionRule(0.125))
            results.append(batch.run([[(s, 0, len(q)) for s, q in enumerate(batch.q)]]))
    for sequence, out in results[0].items():
        assert torch.equal(out, results[1][sequence])
