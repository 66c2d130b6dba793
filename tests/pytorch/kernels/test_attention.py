"""Attention over the paged cache against float64, over what the cache's codes stand for."""

from dataclasses import dataclass

import pytest
import torch

from lmdeploy.pytorch.kernels.decoding_attention import decoding_attention
from lmdeploy.pytorch.kernels.prompt_attention import prompt_attention
from tests.kernels.reference import attention_of_last
from tests.pytorch.kernels.steps import Cache, Step


@dataclass(frozen=True)
class Case:
    """A kind of attention."""

    bits: int = 16
    heads: int = 4
    kv_heads: int = 2
    dims: tuple[int, int] = (32, 32)
    block_len: int = 16
    dtype: torch.dtype = torch.float32
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    is_causal: bool = True


CASES = {
    "8 bit": Case(bits=8),
    "half": Case(dtype=torch.float16),
    "4 bit, window, soft cap, sinks": Case(bits=4, window=19, softcap=5.0, has_sinks=True),
    "window": Case(window=11),
    "heads of 40 in 4 bit, one key head": Case(heads=2, kv_heads=1, dims=(40, 40), bits=4),
    "narrower values, blocks of 24, a key head a query head": Case(heads=2, kv_heads=2, dims=(48, 32), block_len=24),
}
# Of the query's type: sums are float32 over tens of values near 1.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3}


def run(case: Case, spans: list[tuple[int, int]], random: torch.Generator, device: torch.device, kernel: str) -> None:
    """Compare a step's attention with the reference."""
    step = Step(
        random, spans, kv_heads=case.kv_heads, dims=case.dims, block_len=case.block_len, dtype=case.dtype, device=device
    )
    cache = Cache(case.bits, step.blocks, case.block_len, case.kv_heads, case.dims, case.dtype, device)
    step.fill(cache)
    rows = sum(step.q_lens)
    # Heads of a wider tensor, as the joined projection gives them.
    fused = torch.randn(rows, case.heads + 2, case.dims[0], generator=random).to(device, case.dtype)
    query = fused[:, 1:-1]
    sinks = torch.randn(case.heads, generator=random).to(device) if case.has_sinks else None
    rule = {"scale": case.dims[0] ** -0.5, "window": case.window, "softcap": case.softcap, "sinks": sinks}
    scales = {"k_scales": cache.k_scales, "v_scales": cache.v_scales, "bits": cache.bits, "v_dim": case.dims[1]}
    if kernel == "prompt":
        got = prompt_attention(
            query,
            cache.k,
            cache.v,
            step.q_start_loc,
            step.q_seqlens,
            step.kv_seqlens,
            step.block_offsets,
            max_q_len=max(step.q_lens),
            is_causal=case.is_causal,
            **rule,
            **scales,
        )
    else:
        got = decoding_attention(
            query, cache.k, cache.v, step.kv_seqlens, step.block_offsets, splits=4, **rule, **scales
        )
    first = 0
    for span, count in enumerate(step.q_lens):
        expected = attention_of_last(
            query[first : first + count], *step.cached(span, case.bits), **rule, is_causal=case.is_causal
        )
        assert got[first : first + count].double().cpu() == pytest.approx(expected, abs=TOLERANCE[case.dtype]), span
        first += count


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_chunks_of_prompts_see_what_is_cached_and_themselves(
    case: Case, random: torch.Generator, device: torch.device
) -> None:
    # A whole prompt, a later chunk, and one row.
    run(case, [(7, 7), (5, 42), (1, 17)], random, device, "prompt")


def test_a_long_chunk_goes_over_several_tiles(random: torch.Generator, device: torch.device) -> None:
    run(Case(heads=1, kv_heads=1, window=20, softcap=2.0), [(37, 70), (3, 3)], random, device, "prompt")


def test_rows_see_each_other_where_attention_is_not_causal(random: torch.Generator, device: torch.device) -> None:
    run(Case(heads=2, kv_heads=1, is_causal=False), [(9, 9), (4, 30)], random, device, "prompt")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_decoding_joins_the_parts_of_a_context(case: Case, random: torch.Generator, device: torch.device) -> None:
    # Shorter than a part, parts that stay empty, and all parts in use.
    run(case, [(1, 1), (1, 33), (1, 90)], random, device, "decoding")


def test_more_query_heads_than_a_tile_holds_share_a_key_head(random: torch.Generator, device: torch.device) -> None:
    run(Case(heads=20, kv_heads=1, dims=(136, 128)), [(1, 40)], random, device, "decoding")


def test_a_padding_span_without_context_gives_zeros(random: torch.Generator, device: torch.device) -> None:
    step = Step(random, [(1, 5), (1, 1)], kv_heads=1, dims=(16, 16), block_len=8, dtype=torch.float32, device=device)
    cache = Cache(16, step.blocks, 8, 1, (16, 16), torch.float32, device)
    step.fill(cache)
    lengths = torch.tensor([5, 0], device=device)
    query = torch.randn(2, 2, 16, generator=random).to(device)
    got = decoding_attention(query, cache.k, cache.v, lengths, step.block_offsets, v_dim=16, scale=0.25, splits=2)
    assert got[0].abs().max() > 0
    assert torch.equal(got[1], torch.zeros_like(got[1]))
