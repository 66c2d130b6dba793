"""Recording cache for the check at start: it attends within the step and finds out a model's shapes.

Where two runs of a model differ, the module that makes the difference has a name here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from lmdeploy import _turbomind
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.paged import AttentionCall, LayerShape, LayerState, StateShape
from lmdeploy.pytorch.step_context import StepContext


class RecordingCache:
    """In place of a `PagedCache`, for a step with one or two sequences from their beginning."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int] = {}
        self.states: dict[int, StateShape] = {}
        self._lengths: list[int] = []  # of the sequences; empty: one has all rows

    def step(
        self, tokens: torch.Tensor, logits_indices: torch.Tensor, kernels: Kernels | None, neighbour: int = 0
    ) -> StepContext:
        """Return a step with a sequence from its beginning; tokens int64 ``[tokens]``, logits_indices int64: places.

        The first tokens, ``neighbour`` of them, are another sequence.
        """
        lengths = self._lengths = [count for count in (neighbour, len(tokens) - neighbour) if count]
        starts = [0, neighbour] if neighbour else [0]
        if kernels is not None:
            spans = [
                [start, count, 0, count, i, 0, count, -1]
                for i, (start, count) in enumerate(zip(starts, lengths, strict=True))
            ]
            kernels.set_states(np.array(spans, dtype=np.int32), np.arange(len(lengths), dtype=np.int32), 1)
        return StepContext.of_sequences(tokens, lengths, self, logits_indices=logits_indices, is_decoding=False)

    def state_of(self, layer: int, shape: StateShape) -> LayerState:
        """Return memory for a recurrent layer's state, which nobody looks at afterwards."""
        self.states[layer] = shape
        return shape.in_page(_turbomind.PageArena(shape.state_bytes, 2), 0, 0)

    def attention(
        self, layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return attention of queries over the step's own keys.

        Raises `ValueError` if a layer attends twice: the cache has room for one set of keys and values a layer.
        """
        if layer in self.shapes:
            raise ValueError(f"layer {layer} attends more than once a token")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.windows[layer] = call.window
        parts = (x.split(self._lengths or [len(x)]) for x in (query, key, value))
        return torch.cat([self_attention(call, *sequence) for sequence in zip(*parts, strict=True)])


def failing_module(model: nn.Module, error: Exception) -> str:
    """Return the name of the innermost module of a model whose code an error comes from; empty: of none."""
    names = {id(module): name for name, module in model.named_modules()}
    found, frame = "", error.__traceback__
    while frame is not None:
        found = names.get(id(frame.tb_frame.f_locals.get("self")), "") or found
        frame = frame.tb_next
    return found


def differing_module(
    model: nn.Module, packed: Callable[[], object], alone: Callable[[], object], neighbour: int, tolerance: float
) -> str:
    """Return the name of the first module that makes something else of the same inputs in two runs; empty: none does.

    ``packed``, ``alone``: run the model on a sequence after ``neighbour`` tokens of another one, and without them.
    ``tolerance``: of the largest number of an output.
    """
    with torch.inference_mode():
        packed_seen, alone_seen = _seen(model, packed), _seen(model, alone)
    for name, (given, made) in packed_seen.items():
        if name in alone_seen:
            their_given, their_made = alone_seen[name]
            if _are_near(given, their_given, neighbour, tolerance) and not _are_near(
                made, their_made, neighbour, tolerance
            ):
                return name
    return ""


_Tensors = list[torch.Tensor]


def _seen(model: nn.Module, run: Callable[[], object]) -> dict[str, tuple[_Tensors, _Tensors]]:
    """Return inputs and outputs of each module of a run, in the order in which they end."""
    found: dict[str, tuple[_Tensors, _Tensors]] = {}

    def keep(name: str, _: nn.Module, given: Any, named: Any, output: Any) -> None:
        found[name] = [*_tensors((given, named))], [x.clone() for x in _tensors(output)]

    hooks = [
        module.register_forward_hook(partial(keep, name), with_kwargs=True) for name, module in model.named_modules()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _are_near(packed: _Tensors, alone: _Tensors, neighbour: int, tolerance: float) -> bool:
    """Return whether tensors are equal but for rounding, those of the neighbour left out."""
    for x, y in zip(packed, alone, strict=False):
        for axis in range(x.dim() if x.dim() == y.dim() else 0):
            if x.shape[axis] == y.shape[axis] + neighbour:
                x = x.narrow(axis, neighbour, y.shape[axis])
        if x.shape == y.shape and not (x - y).abs().max() <= tolerance * y.abs().max().clamp_min(1e-30):
            return False
    return True


def self_attention(call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention among the tokens of one sequence, in plain PyTorch: float32 ``[tokens, heads, size]``.

    ``query``, ``key``, ``value``: ``[tokens, heads, size]``; a key and value head serves as many query
    heads as there are more of those.
    """
    tokens, heads, _ = query.shape
    group = heads // key.shape[1]
    q, k, v = (x.to(torch.float32).transpose(0, 1) for x in (query, key, value))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = torch.arange(tokens, device=query.device)
    distance = position[:, None] - position[None, :]
    if call.alibi_slopes is not None:
        scores = scores - call.alibi_slopes.to(scores.device)[:, None, None] * distance
    hidden = distance < 0
    if call.window:
        hidden |= distance >= call.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.to(torch.float32).reshape(-1, 1, 1).expand(-1, tokens, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :tokens]
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)
