"""Content of the cache after a step, byte for byte as the layout is described."""

import pytest
import torch

from lmdeploy.pytorch.kernels.cache_layout import slot_mapping
from lmdeploy.pytorch.kernels.fill_cache import fill_cache
from tests.kernels.reference import round_heads
from tests.pytorch.kernels.steps import Cache


def test_rows_go_to_the_slots_of_their_positions(device: torch.device) -> None:
    # Two spans of blocks of 4: three rows after 3 cached tokens, two rows of a new one; then padding.
    slots = slot_mapping(
        torch.tensor([0, 3], device=device),
        torch.tensor([3, 2], device=device),
        torch.tensor([6, 2], device=device),
        torch.tensor([[5, 2], [7, 0]], device=device),
        7,
        4,
    )
    assert slots.tolist() == [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 7 * 4, 7 * 4 + 1, -1, -1]


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("dims", [(32, 32), (40, 24)])
def test_codes_stand_for_the_rounded_heads_and_nothing_else_is_touched(
    bits: int, dims: tuple[int, int], random: torch.Generator, device: torch.device
) -> None:
    rows, kv_heads, block_len = 5, 3, 4
    cache = Cache(bits, 4, block_len, kv_heads, dims, torch.float32, device)
    before = [x.clone() for x in (cache.k, cache.v)]
    # Of a wider tensor, as the joined projection gives them; one head all above 0, one all 0.
    fused = torch.randn(rows, kv_heads, dims[0] + dims[1], generator=random).to(device)
    fused[1, 1] = fused[1, 1].abs() + 3
    fused[2, 2] = 0
    key, value = fused[..., : dims[0]], fused[..., dims[0] :]
    slots = torch.tensor([13, 2, 7, -1, 8], device=device)
    fill_cache(key, value, cache.k, cache.v, slots, k_scales=cache.k_scales, v_scales=cache.v_scales, bits=bits)

    written = slots[slots >= 0]
    for x, stored, scales, old in (
        (key, cache.k, cache.k_scales, before[0]),
        (value, cache.v, cache.v_scales, before[1]),
    ):
        flat = stored.flatten(0, 1)
        others = torch.tensor([slot for slot in range(16) if slot not in written.tolist()])
        assert torch.equal(flat[others].nan_to_num(), old.flatten(0, 1)[others].nan_to_num())
        rows_in = x[slots >= 0].cpu()
        if bits == 16:
            assert torch.equal(flat[written].cpu(), rows_in)
            continue
        quantized = flat[written].cpu().int()
        if bits == 4:
            quantized = torch.cat([quantized & 15, quantized >> 4], -1)
        assert scales is not None
        scale, zero = scales.flatten(0, 1)[written].cpu().double().unbind(-1)
        meant = (quantized - zero[..., None]) * scale[..., None]
        # A value in the middle of two codes may go to either: float32 products differ in their last bit.
        expected = round_heads(rows_in, bits).nan_to_num()
        assert (meant - expected).abs().max() <= 1e-6 + scale.max() * ((quantized != 0).any().double())
        assert ((meant - expected).abs() < 1e-6).double().mean() > 0.99
        assert torch.equal(meant[rows_in == 0], torch.zeros_like(meant[rows_in == 0]))
