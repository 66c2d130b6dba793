"""Runs steps of sequences on a model without an engine, over a cache in plain float64."""

from typing import Any

import torch

from lmdeploy.pytorch.step_context import StepContext
from tests.kernels.reference import attention_of_last


class ReferenceCache:
    """Keys and values of sequences, of each layer, one after the other; a sequence is known by its first block."""

    def __init__(self) -> None:
        self.step: StepContext | None = None
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def attention(
        self, layer: int, call: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Keep the step's keys and values, and attend."""
        assert self.step is not None
        out = []
        for start, count, blocks in zip(
            self.step.q_start_loc.tolist(), self.step.q_seqlens.tolist(), self.step.block_offsets.tolist(), strict=True
        ):
            rows = slice(start, start + count)
            now = key[rows].double(), value[rows].double()
            before = self._kept.get((layer, blocks[0]))
            k, v = now if before is None else (torch.cat(pair) for pair in zip(before, now, strict=True))
            self._kept[layer, blocks[0]] = k, v
            rule = {"scale": call.scale, "window": call.window, "softcap": call.softcap}
            out.append(attention_of_last(query[rows], k, v, **rule))
        return torch.cat(out).float()


def run_chunks(
    model: Any, prompts: list[list[int]], chunks: list[list[int]], cache: Any = None, device: torch.device | str = "cpu"
) -> list[torch.Tensor]:
    """Return the logits of every token of each prompt; a sequence has one block of the cache, that of its number.

    ``model``: with ``forward(step)``. ``prompts``: tokens of each sequence. ``chunks``: a step: how many tokens of each
    sequence it has; 0 for none. ``cache``: where keys and values go; default: a `ReferenceCache`. ``device``: where the
    model is.
    """
    cache = ReferenceCache() if cache is None else cache
    done = [0] * len(prompts)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    for counts in chunks:
        present = [number for number, count in enumerate(counts) if count]
        present_counts = [counts[number] for number in present]
        lengths = [done[number] + counts[number] for number in present]
        tokens = [prompts[number][done[number] : length] for number, length in zip(present, lengths, strict=True)]
        step = StepContext.of_sequences(
            torch.tensor([token for part in tokens for token in part], device=device), present_counts, cache, lengths,
            torch.tensor(present, device=device)[:, None],
        )  # fmt: skip
        if isinstance(cache, ReferenceCache):
            cache.step = step
        got, hidden = model.forward(step)
        assert got.shape[0] == hidden.shape[0] == sum(counts)
        for number, part in zip(present, got.split(present_counts), strict=True):
            logits[number].append(part)
            done[number] += counts[number]
    assert done == [len(prompt) for prompt in prompts]
    return [torch.cat(parts) for parts in logits]
