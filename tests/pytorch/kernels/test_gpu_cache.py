"""A sequence that is fed to the cache of GPUs in chunks, then token by token, sees what float64 sees."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lmdeploy.pytorch.gpu_cache import GpuPagedCache
from lmdeploy.pytorch.paged import AttentionCall, LayerShape
from lmdeploy.pytorch.start.attention import uses_native
from lmdeploy.pytorch.step_context import StepContext, get_step_ctx_manager
from tests.kernels.reference import attention_of_last, round_heads

BLOCK_LEN = 8
# Positions of two sequences that each step begins and ends with.
STEPS = [[(0, 5), (0, 11)], [(5, 18), (11, 12)], [(18, 19), (12, 13)], [(19, 20), (13, 14)]]


@pytest.fixture(params=["own", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Attention kernels: ours, or flex attention."""
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", f"attention={request.param}")
    uses_native.cache_clear()
    yield request.param
    uses_native.cache_clear()


@pytest.mark.alike
@pytest.mark.parametrize("quant_policy", [0, 8, 4])
def test_chunks_and_tokens_see_all_that_came_before(
    quant_policy: int, kernels: str, random: torch.Generator, device: torch.device
) -> None:
    shape, heads = LayerShape(1, 32, 16), 2
    cache = GpuPagedCache({0: shape, 3: shape}, quant_policy, torch.float32, device)
    cache.allocate(8, BLOCK_LEN, 3)
    assert uses_native(shape, torch.float32, device) == (kernels == "own")
    table = torch.tensor([[6, 1, 3], [2, 7, 0]], device=device)
    lengths = [20, 14]
    queries, keys, values = (
        [torch.randn(length, count, dim, generator=random).to(device) for length in lengths]
        for count, dim in ((heads, 32), (1, 32), (1, 16))
    )
    call = AttentionCall(scale=0.2, window=9, softcap=4.0)
    for spans in STEPS:
        if spans == STEPS[2]:  # blocks leave for the host and come back to other places
            cache.move(np.array([[6, 9], [2, 10], [1, 8], [9, 2], [8, 4], [10, 6]], np.int32))
            table[0, :2], table[1, 0] = torch.tensor([2, 4]), 6
        counts, ends = [end - begin for begin, end in spans], [end for _, end in spans]
        tokens = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        step = StepContext.of_sequences(tokens, counts, cache, ends, table)
        parts = [
            torch.cat([x[slice(*span)] for x, span in zip(of, spans, strict=True)]) for of in (queries, keys, values)
        ]
        with get_step_ctx_manager().context(step):
            got = cache.attention(3, call, *parts).cpu()
        for number, (begin, end) in enumerate(spans):
            kept = [x[number][:end].cpu() for x in (keys, values)]
            kept = [round_heads(x, quant_policy) if quant_policy else x.double() for x in kept]
            expected = attention_of_last(queries[number][begin:end], *kept, scale=0.2, window=9, softcap=4.0)
            first = int(step.q_start_loc[number])
            # A code in the middle between two may be the one or the other.
            tolerance = {0: 2e-5, 8: 1e-3, 4: 2e-2}[quant_policy]
            assert got[first : first + end - begin].double() == pytest.approx(expected, abs=tolerance)


def test_a_block_takes_the_bytes_of_its_tensors(device: torch.device) -> None:
    shapes = {0: LayerShape(2, 32, 16), 1: LayerShape(1, 64, 64)}
    for quant_policy, dtype in ((0, torch.float16), (8, torch.float16), (4, torch.bfloat16)):
        cache = GpuPagedCache(shapes, quant_policy, dtype, device)
        cache.allocate(5, BLOCK_LEN)
        tensors = [t for layer in cache._layers.values() for t in vars(layer).values() if t is not None]
        assert cache.block_bytes(BLOCK_LEN) * 5 == sum(t.nbytes for t in tensors)
