"""Runs steps of sequences on a model without an engine, over a cache in plain float64."""

from typing import Any

import torch

from lmdeploy.pytorch.step_context import StepContext


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
            out.append(attention(call, query[rows].double(), k, v))
        return torch.cat(out).float()


def attention(call: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the attention of the last rows of a sequence."""
    rows, heads, _ = query.shape
    length = len(keys)
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (keys, values))
    scores = torch.einsum("ihd,jhd->hij", query, k) * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    behind = torch.arange(length - rows, length)[:, None] - torch.arange(length)[None]
    hidden = (behind < 0) | ((behind >= call.window) if call.window else False)
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


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
        q_lens = torch.tensor([counts[number] for number in present])
        starts = q_lens.cumsum(0) - q_lens
        tokens = [prompts[number][done[number] : done[number] + counts[number]] for number in present]
        positions = [torch.arange(done[number], done[number] + counts[number]) for number in present]
        step = StepContext(
            input_ids=torch.tensor([[token for part in tokens for token in part]], device=device),
            position_ids=torch.cat(positions)[None].to(device),
            q_start_loc=starts.to(device),
            q_seqlens=q_lens.to(device),
            kv_seqlens=(torch.tensor([done[number] for number in present]) + q_lens).to(device),
            block_offsets=torch.tensor(present, device=device)[:, None],
            kv_caches=cache,
            is_decoding=bool((q_lens == 1).all()),
            logits_indices=torch.arange(int(q_lens.sum()), device=device),
        )
        if isinstance(cache, ReferenceCache):
            cache.step = step
        got, hidden = model.forward(step)
        assert got.shape[0] == hidden.shape[0] == int(q_lens.sum())
        for number, part in zip(present, got.split(q_lens.tolist()), strict=True):
            logits[number].append(part)
            done[number] += counts[number]
    assert done == [len(prompt) for prompt in prompts]
    return [torch.cat(parts) for parts in logits]
