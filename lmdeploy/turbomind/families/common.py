"""What families share: facts about the checkpoint, and the rotary embedding."""

import math
from dataclasses import dataclass
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.spec import RopeSpec

# The kinds whose frequencies do not change with the length of the sequence.
STATIC_ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Checkpoint:
    """What config.json alone does not say (or not reliably)."""

    architecture: str
    model_name: str
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def rope_of(config: Any) -> RopeSpec:
    """Return the rotary embedding of a ``transformers`` config, computed by ``transformers`` itself.

    Raises
    ------
    UnsupportedModelError
        If the frequencies depend on the sequence length, or differ from layer to layer.
    """
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type")
    if kind not in STATIC_ROPE_KINDS:
        raise UnsupportedModelError(f"rope type {kind!r} is not supported; supported: {', '.join(STATIC_ROPE_KINDS)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"partial_rotary_factor {parameters['partial_rotary_factor']} is not supported, only 1.0"
        )
    embedding = LlamaRotaryEmbedding(config)
    inv_freq = tuple(float(f) for f in embedding.inv_freq)
    if not all(0 < f < math.inf for f in inv_freq):
        raise ValueError(f"rope parameters {dict(parameters)} give frequencies that are not finite and > 0")
    return RopeSpec(float(parameters["rope_theta"]), inv_freq, float(embedding.attention_scaling))


def refuse_unless(condition: bool, what: str) -> None:
    """Raise ``UnsupportedModelError`` saying that ``what`` is not supported, unless ``condition`` holds."""
    if not condition:
        raise UnsupportedModelError(f"{what} is not supported")
