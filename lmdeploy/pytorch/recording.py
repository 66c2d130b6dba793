"""A cache that remembers what layers ask of it, and attends within the step: how a model's shapes are found out."""

from __future__ import annotations

import torch

from lmdeploy.pytorch.paged import AttentionCall, LayerShape


class RecordingCache:
    """In place of a `PagedCache`, for a step with one sequence from its beginning."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int] = {}

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
    """Return causal attention among the rows of one sequence, in plain PyTorch: float32 ``[rows, heads, value size]``.

    Parameters
    ----------
    call
        How.
    query, key, value
        ``[rows, heads, size]``; a key and value head serves as many query heads as there are more of those.
    """
    rows, heads, _ = query.shape
    group = heads // key.shape[1]
    q, k, v = (x.to(torch.float32).transpose(0, 1) for x in (query, key, value))
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * call.scale
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = torch.arange(rows, device=query.device)
    distance = position[:, None] - position[None, :]
    hidden = distance < 0
    if call.window:
        hidden |= distance >= call.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.to(torch.float32).reshape(-1, 1, 1).expand(-1, rows, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :rows]
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)
