"""Warm-up of a worker on a GPU: steps of every kind, before the first real one.

Kernels in the Triton language are compiled for what does not change from step to step, and for few sizes of tiles;
libraries load their code and take their memory. Graphs are captured for each number of sequences. After this, requests
wait for none of it, and a step of the largest size has shown that memory is enough.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lmdeploy.pytorch.graphs import MAX_TOKENS, padded_tokens
from lmdeploy.pytorch.step_context import StepContext
from lmdeploy.pytorch.step_devices import memory_for

_SKIP = "LMDEPLOY_SKIP_WARMUP"
_NEWS_SECONDS = 10.0
_ADVICE = "lower cache_max_entry_count, max_prefill_token_num or max_batch_size"


@dataclass(frozen=True)
class StepSizes:
    """Upper bounds of a step.

    ``tokens``, ``sequences``: of a step. ``sequence_blocks``: blocks of a sequence: those that its tokens take, and
    one. ``block_count``, ``block_len``: blocks of the cache, and tokens of a block.
    """

    tokens: int
    sequences: int
    sequence_blocks: int
    block_count: int
    block_len: int


def is_skipped() -> bool:
    """Return whether the environment says that the first requests shall wait instead."""
    return os.environ.get(_SKIP, "").lower() in ("1", "true", "yes", "on")


def decoding_sizes(sequences: int) -> list[int]:
    """Return how many sequences the steps of decoding have that are run, the largest first."""
    captured = {padded_tokens(count) for count in range(1, min(sequences, MAX_TOKENS) + 1)}
    return sorted(captured | {sequences}, reverse=True)


def prompt_sizes(tokens: int) -> list[int]:
    """Return how many tokens the steps with a prompt have that are run: all, then powers of two."""
    powers = (1 << power for power in range(tokens.bit_length() - 1, 0, -1))
    return [tokens, *(size for size in powers if size < tokens)]


def steps_of(sizes: StepSizes, cache: Any, device: torch.device) -> Iterator[StepContext]:
    """Yield steps of every kind; they write to the first blocks of an empty cache."""
    context = sizes.sequence_blocks * sizes.block_len
    for size in prompt_sizes(min(sizes.tokens, sizes.sequences * context)):
        counts = [min(context, size - begin) for begin in range(0, size, context)]
        yield _step(counts, sizes, cache, device)
    for sequences in decoding_sizes(min(sizes.sequences, sizes.tokens)):
        yield _step([1] * sequences, sizes, cache, device)


def warm_up(forward: Callable[[StepContext], object], sizes: StepSizes, cache: Any, device: torch.device) -> None:
    """Run steps of every kind, and say on stderr how far it is.

    Raises `ValueError` if the memory is not enough for the largest step. ``forward``: runs a step; nobody needs what it
    returns.
    """
    begin = last_report = time.monotonic()
    done = 0
    for step in steps_of(sizes, cache, device):
        with memory_for(f"a step of {step.input_ids.numel()} tokens", _ADVICE):
            forward(step)
        done += 1
        if time.monotonic() - last_report > _NEWS_SECONDS:
            last_report = time.monotonic()
            _say(f"{done} sizes of steps prepared in {last_report - begin:.0f} s")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    _say(f"{done} sizes of steps prepared in {time.monotonic() - begin:.1f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"pytorch: {text}\n")
    sys.stderr.flush()


def _step(counts: list[int], sizes: StepSizes, cache: Any, device: torch.device) -> StepContext:
    """Return a step of sequences that begin with it; ``counts``: their tokens."""
    # As wide as the longest sequence makes it, whose place may be any.
    blocks = (torch.arange(-(-max(counts) // sizes.block_len)) % sizes.block_count).expand(len(counts), -1).contiguous()
    tokens = torch.zeros(sum(counts), dtype=torch.int64, device=device)
    step = StepContext.of_sequences(tokens, counts, cache, block_offsets=blocks.to(device))
    # A table of learned positions may end where a sequence must.
    step.position_ids.clamp_(max=max(0, sizes.sequence_blocks - 2) * sizes.block_len)
    step.prompt_lens, step.logits_indices = step.q_seqlens, step.q_start_loc + step.q_seqlens - 1
    return step
