"""Length-dependent rotary scaling by each sequence's own prompt.

``transformers`` scales by the longest sequence of a batch, and again while a response grows. Here a sequence
keeps the rotation of its prompt, as on the TurboMind engine: keys in the cache stay right, and a response does not
depend on others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.step_context import get_step_ctx_manager

KINDS = ("dynamic", "longrope")


class PromptRotaryEmbedding(nn.Module):
    """In the place of a rotary embedding of ``transformers`` whose angles depend on a length.

    ``kind``: one of `KINDS`.
    """

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        # The text model's
        self._config, self._kind = config, kind
        self._made_by: Any = ROPE_INIT_FUNCTIONS[kind]
        rope = config.rope_parameters
        given = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        self._trained = int(given or config.max_position_embeddings)
        self._made: dict[tuple[int, torch.device], tuple[torch.Tensor, float]] = {}

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[1, rows, dim]`` of the type of ``x``, both halves equal."""
        step = get_step_ctx_manager().current_context()
        prompts = step.kv_seqlens if step.prompt_lens is None else step.prompt_lens
        lengths = prompts.repeat_interleave(step.q_seqlens).clamp(min=self._trained)
        if self._kind == "longrope":  # there are two rotations
            lengths = lengths.clamp(max=self._trained + 1)
        angles = cosines = sines = torch.empty(0)
        for length in lengths.unique().tolist():
            frequencies, factor = self._of(length, position_ids.device)
            angles = position_ids[..., None].float() * frequencies
            angles = torch.cat([angles, angles], -1)
            is_same = (lengths == length)[None, :, None]
            cos, sin = angles.cos() * factor, angles.sin() * factor
            cosines = cos if not cosines.numel() else torch.where(is_same, cos, cosines)
            sines = sin if not sines.numel() else torch.where(is_same, sin, sines)
        return cosines.to(x.dtype), sines.to(x.dtype)

    def _of(self, length: int, device: torch.device) -> tuple[torch.Tensor, float]:
        """Return inverse frequencies ``[dim / 2]`` float32 and what cosines and sines are multiplied with."""
        key = (length, device)
        if key not in self._made:
            if len(self._made) > 256:
                self._made.clear()
            frequencies, factor = self._made_by(self._config, device, seq_len=length)
            self._made[key] = (frequencies.float(), float(factor))
        return self._made[key]


def swap_rotaries(model: Any) -> bool:
    """Put ours in the place of a model's rotary embeddings that depend on a length; return whether there were any."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "rope_type", None) in KINDS and hasattr(module, "inv_freq")
    ]
    for name, module in found:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, PromptRotaryEmbedding(module.config, module.rope_type))
    return bool(found)
