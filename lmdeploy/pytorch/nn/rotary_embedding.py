"""Rotary position embedding: angles by position, and the rotation of queries and keys."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.nn import device as on
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.step_context import get_step_ctx_manager


class RopeType(enum.Enum):
    """How positions beyond the trained length are met."""

    Default = enum.auto()
    LinearScaling = enum.auto()
    DynamicNTKScaling = enum.auto()
    Llama3 = enum.auto()
    Yarn = enum.auto()


@dataclass(frozen=True)
class Llama3Parameters:
    """Of Llama 3.1: low frequencies are divided by the scaling factor, those between two bounds in part."""

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class YarnParameters:
    """Of YaRN (Peng et al., 2023)."""

    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    original_max_position_embeddings: int | None = None


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions.

    Parameters
    ----------
    inverse_frequencies
        ``[dim / 2]`` float32.
    factor
        Multiplies cosines and sines.
    """

    def __init__(self, inverse_frequencies: torch.Tensor, factor: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inverse_frequencies, persistent=False)
        self._factor = factor

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 cosines and sines ``[1, rows, dim]``, both halves equal, for positions ``[1, rows]``."""
        return self._turned(position_ids[..., None].float() * self.inv_freq.to(position_ids.device))

    def _turned(self, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * self._factor, angles.sin() * self._factor


class DynamicNtkRotaryEmbedding(RotaryEmbedding):
    """Beyond the trained length the base grows with a sequence's own prompt, whatever else is in the step."""

    def __init__(self, dim: int, base: float, factor: float, trained_length: int) -> None:
        super().__init__(_inverse_frequencies(dim, base))
        self._dim, self._base, self._growth, self._trained = dim, base, factor, trained_length

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines as `RotaryEmbedding.forward` does."""
        step = get_step_ctx_manager().current_context()
        prompts = step.kv_seqlens if step.prompt_lens is None else step.prompt_lens
        if int(prompts.max()) <= self._trained:
            return super().forward(x, position_ids)
        length = prompts.repeat_interleave(step.q_seqlens).clamp(min=self._trained).double()
        growth = self._growth * length / self._trained - (self._growth - 1)
        base = self._base * growth ** (self._dim / (self._dim - 2))
        exponent = torch.arange(0, self._dim, 2, device=base.device).double() / self._dim
        return self._turned(position_ids[..., None].float() * (base[:, None] ** -exponent)[None].float())


class ApplyRotaryEmb(nn.Module):
    """The rotation of queries and keys.

    Parameters
    ----------
    is_interleaved
        Whether a pair is of neighbours, or of channels half a rotation apart.
    """

    def __init__(self, is_interleaved: bool = False) -> None:
        super().__init__()
        self._kernels = build_context().kernels
        self._is_interleaved = is_interleaved

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inplace: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate the first channels of each head.

        Parameters
        ----------
        query, key
            ``[rows, heads, head size]``.
        cos, sin
            ``[rows, dim]`` of `RotaryEmbedding`; channels past ``dim`` are left as they are.
        inplace
            Whether the given tensors may be changed.

        Returns
        -------
        tuple[torch.Tensor, torch.Tensor]
            The rotated queries and keys.
        """
        if not inplace:
            query, key = query.clone(), key.clone()
        pairs = cos.shape[-1] // 2
        cos, sin = cos[..., :pairs], sin[..., :pairs]
        if on.runs_kernels(query):
            from lmdeploy.pytorch.kernels.rotary import apply_rotary

            apply_rotary(query, key, cos, sin, is_interleaved=self._is_interleaved)
        elif self._kernels is not None and query.dtype == key.dtype == cos.dtype == torch.float32:
            self._kernels.rope(query, key, cos, sin, is_interleaved=self._is_interleaved)
        else:
            self._rotate(query, cos[:, None], sin[:, None])
            self._rotate(key, cos[:, None], sin[:, None])
        return query, key

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        pairs = cos.shape[-1]
        part = x[..., : 2 * pairs]
        first, second = (part[..., 0::2], part[..., 1::2]) if self._is_interleaved else part.split(pairs, -1)
        if x.dtype != torch.float32:
            a, b = first.float(), second.float()
            first.copy_(a * cos - b * sin)
            second.copy_(b * cos + a * sin)
            return
        turned = torch.addcmul(first * cos, second, sin, value=-1)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(turned)


def build_rotary_embedding(
    dim: int = 128,
    max_position_embeddings: int = 2048,
    base: float = 10000.0,
    scaling_factor: float = 1.0,
    llama3_params: Llama3Parameters | None = None,
    yarn_params: YarnParameters | None = None,
    emb_type: RopeType = RopeType.Default,
) -> RotaryEmbedding:
    """Build the angles of a model.

    Parameters
    ----------
    dim
        Channels of a head that are rotated.
    max_position_embeddings
        The trained length.
    base
        Wavelengths go from 2 pi to 2 pi ``base``.
    scaling_factor
        By how much contexts are longer than those trained, for all types but the default.
    llama3_params, yarn_params
        What these types need alongside.
    emb_type
        The type.
    """
    unscaled = _inverse_frequencies(dim, base)
    if emb_type is RopeType.Default:
        return RotaryEmbedding(unscaled)
    if emb_type is RopeType.LinearScaling:
        return RotaryEmbedding(unscaled / scaling_factor)
    if emb_type is RopeType.DynamicNTKScaling:
        return DynamicNtkRotaryEmbedding(dim, base, scaling_factor, max_position_embeddings)
    if emb_type is RopeType.Llama3:
        return RotaryEmbedding(_llama3(unscaled, scaling_factor, llama3_params or Llama3Parameters()))
    return _yarn(dim, base, scaling_factor, max_position_embeddings, yarn_params or YarnParameters())


def build_rotary_embedding_from_config(config: Any, dim: int | None = None) -> RotaryEmbedding:
    """Build the angles that a configuration of ``transformers`` asks for.

    Raises
    ------
    UnsupportedModelError
        For a type of scaling that `RopeType` does not have.
    """
    given = getattr(config, "rope_parameters", None) or {}
    scaling: Mapping[str, Any] = given or getattr(config, "rope_scaling", None) or {}
    base = float(scaling.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if dim is None:
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dim = int(dim * (scaling.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0))
    length = config.max_position_embeddings
    original = scaling.get("original_max_position_embeddings")
    rope: dict[str, Any] = {"dim": dim, "max_position_embeddings": original or length, "base": base}
    if kind == "default":
        return build_rotary_embedding(**rope)
    rope["scaling_factor"] = float(scaling.get("factor", 1.0))
    if kind == "linear":
        return build_rotary_embedding(**rope, emb_type=RopeType.LinearScaling)
    if kind == "dynamic":
        return build_rotary_embedding(**rope, emb_type=RopeType.DynamicNTKScaling)
    if kind == "llama3":
        params = Llama3Parameters(scaling["low_freq_factor"], scaling["high_freq_factor"], original or length)
        return build_rotary_embedding(**rope, llama3_params=params, emb_type=RopeType.Llama3)
    if kind == "yarn":
        names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
        chosen = {name: scaling[name] for name in names if scaling.get(name) is not None}
        return build_rotary_embedding(**rope, yarn_params=YarnParameters(**chosen), emb_type=RopeType.Yarn)
    raise UnsupportedModelError(f"rope_type {kind!r} is not supported by models of lmdeploy.pytorch")


def _inverse_frequencies(dim: int, base: float) -> torch.Tensor:
    return (base ** -(torch.arange(0, dim, 2).double() / dim)).float()


def _llama3(unscaled: torch.Tensor, factor: float, params: Llama3Parameters) -> torch.Tensor:
    turns = params.original_max_position_embeddings * unscaled / (2 * math.pi)
    between = (turns - params.low_freq_factor) / (params.high_freq_factor - params.low_freq_factor)
    kept = between.clamp(0, 1)
    return unscaled * (kept + (1 - kept) / factor)


def _yarn(dim: int, base: float, factor: float, length: int, params: YarnParameters) -> RotaryEmbedding:
    unscaled = _inverse_frequencies(dim, base)
    length = params.original_max_position_embeddings or length

    def pair_of(turns: float) -> float:
        """Return the pair that turns so often over the trained length."""
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_of(params.beta_fast)), 0)
    high = min(math.ceil(pair_of(params.beta_slow)), dim - 1)
    stretched = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    frequencies = unscaled * (1 - stretched) + unscaled / factor * stretched

    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention = params.attention_factor
    if attention is None:
        attention = magnitude(params.mscale) / (magnitude(params.mscale_all_dim) if params.mscale_all_dim else 1.0)
    return RotaryEmbedding(frequencies, attention)
