"""Positions: rotary embeddings with the frequencies that ``transformers`` computes, and slopes of ALiBi."""

import dataclasses
import math
import struct
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.spec import RopeSpec, StretchSpec

KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def rope_of(config: Any, layer_type: str | None = None, *, is_interleaved: bool = False) -> RopeSpec:
    """Return the rotary embedding of a config, or of its layers of one type.

    Raises `UnsupportedModelError` if the engine does not have this kind of scaling.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    if layer_type is not None:
        parameters = parameters[layer_type]
    kind = parameters.get("rope_type")
    if kind not in KINDS:
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    theta = float(parameters["rope_theta"])
    if kind == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dimensions = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        # Of a GGUF file no published buffer is met, and the import of torch takes longer than all the rest.
        unscaled = (exact_rope if getattr(config, "model_format", "") == "gguf" else default_rope)(theta, dimensions)
        return dataclasses.replace(unscaled, is_interleaved=is_interleaved)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    compute = ROPE_INIT_FUNCTIONS[kind]
    inv_freq, scaling = compute(config, "cpu", layer_type=layer_type)
    stretch = None
    if kind == "dynamic":
        stretch = StretchSpec("dynamic", config.max_position_embeddings, float(parameters["factor"]))
    elif kind == "longrope":
        trained = parameters["original_max_position_embeddings"]
        longer, _ = compute(config, "cpu", seq_len=trained + 1, layer_type=layer_type)
        stretch = StretchSpec("long", trained, inv_freq=_frequencies(longer))
    return RopeSpec(theta, _frequencies(inv_freq), float(scaling), is_interleaved, stretch)


def ropes_by_kind(config: Any) -> dict[str, Any]:
    """Return the fields of a spec of which layers with and without a window each have a rotation of their own."""
    kinds = [kind for kind in ("full_attention", "sliding_attention") if kind in config.layer_types]
    layers = tuple(kinds.index(kind) if kind in kinds else -1 for kind in config.layer_types)
    return {"ropes": tuple(rope_of(config, kind) for kind in kinds), "layer_ropes": layers}


def default_rope(theta: float, dimensions: int) -> RopeSpec:
    """Return the rotation of the first ``dimensions`` of a head by ``theta ** (-2 i / dimensions)`` a position."""
    import torch

    _check(theta)
    exponents = torch.arange(0, dimensions, 2, dtype=torch.int64).float() / dimensions
    return RopeSpec(theta, _frequencies(1.0 / (theta**exponents)))


def exact_rope(theta: float, dimensions: int) -> RopeSpec:
    """Return :func:`default_rope` with each frequency rounded once: a last bit may differ."""
    _check(theta)
    count = (dimensions + 1) // 2
    exact = [theta ** (-2 * i / dimensions) for i in range(count)]
    return RopeSpec(theta, struct.unpack(f"{count}f", struct.pack(f"{count}f", *exact)))


def _check(theta: float) -> None:
    if not 0 < theta < math.inf:
        raise ValueError(f"rope_theta must be a finite number > 0, got {theta}")


def _frequencies(inv_freq: Any) -> tuple[float, ...]:
    return tuple(float(frequency) for frequency in inv_freq)


# Slopes of ALiBi (Press et al., 2022): attention with linear biases instead of rotation.
def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the slope of each head: powers of 2^(-8 / n), n a power of 2; further heads are between them."""
    power = 1 << int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * (num_heads - power), 2)]
    return tuple(slopes + between)
