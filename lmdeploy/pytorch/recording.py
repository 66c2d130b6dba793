"""A cache that remembers what layers ask of it, and attends within the step: how a model's shapes are found out."""

from __future__ import annotations

import numpy as np
import torch

from lmdeploy import _turbomind
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.paged import AttentionCall, LayerShape, LayerState, StateShape
from lmdeploy.pytorch.step_context import StepContext


class RecordingCache:
    """In place of a `PagedCache`, for a step with one sequence from its beginning."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int] = {}
        self.states: dict[int, StateShape] = {}
        self.looked_at: dict[int, LayerShape] = {}
        self._images: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(self, tokens: torch.Tensor, wanted: torch.Tensor, kernels: Kernels | None) -> StepContext:
        """Return a step with one sequence from its beginning; tokens int64 ``[tokens]``, wanted int64: places."""
        rows = len(tokens)
        if kernels is not None:
            span = np.array([[0, rows, 0, rows, 0, 0, rows, -1]], dtype=np.int32)
            kernels.set_states(span, np.zeros(1, dtype=np.int32), 1)
        one = torch.tensor([rows], device=tokens.device)
        return StepContext(
            input_ids=tokens[None], position_ids=torch.arange(rows, device=tokens.device)[None],
            q_start_loc=torch.zeros_like(one), q_seqlens=one, kv_seqlens=one,
            block_offsets=torch.zeros_like(one)[None], kv_caches=self, is_decoding=False, wanted=wanted,
        )  # fmt: skip

    def state_of(self, layer: int, shape: StateShape) -> LayerState:
        """Return memory for a recurrent layer's state, which nobody looks at afterwards."""
        self.states[layer] = shape
        return shape.in_page(_turbomind.PageArena(shape.state_bytes, 1), 0, 0)

    def fill(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep what tokens look at."""
        self.looked_at[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self._images[layer] = key.float(), value.float()

    def look(self, layer: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Return what queries see of all rows of images."""
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in self._images[layer])
        scores = torch.einsum("qhd,khd->hqk", query.float() * scale, key)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)

    def attend(
        self, layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return what queries see of the step's own keys.

        Raises
        ------
        ValueError
            If a layer attends twice: the cache has room for one set of keys and values a layer.
        """
        if layer in self.shapes:
            raise ValueError(f"layer {layer} attends more than once a token")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.windows[layer] = call.window
        return attend_within(call, query, key, value)


def attend_within(call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention among the tokens of one sequence, in plain PyTorch: float32 ``[tokens, heads, size]``.

    Parameters
    ----------
    call
        How.
    query, key, value
        ``[tokens, heads, size]``; a key and value head serves as many query heads as there are more of those.
    """
    rows, heads, _ = query.shape
    group = heads // key.shape[1]
    q, k, v = (x.to(torch.float32).transpose(0, 1) for x in (query, key, value))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = torch.arange(rows, device=query.device)
    distance = position[:, None] - position[None, :]
    if call.alibi_slopes is not None:
        scores = scores - call.alibi_slopes.to(scores.device)[:, None, None] * distance
    hidden = distance < 0
    if call.window:
        hidden |= distance >= call.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.to(torch.float32).reshape(-1, 1, 1).expand(-1, rows, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :rows]
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)
