"""Support check for models of ``transformers``, by their configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmdeploy.errors import UnsupportedModelError

# Ropes whose angles depend on the longest sequence of a batch.
_BATCH_ROPES = ("dynamic", "longrope")
_STATES = {"linear_attention", "hybrid", "hybrid_sliding"}  # of layers with a state
# Models whose states TurboMind alone keeps: gated delta networks, Kimi delta attention, lightning attention.
_OTHER_STATES = {"kimi_linear", "minimax", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
KEEPS_NOTHING = {"mlp", "moe"}
_LAYERS = {"full_attention", "sliding_attention"} | _STATES | KEEPS_NOTHING


def reject_unsupported(checkpoint: Path, config: Any) -> None:
    """Raise ``UnsupportedModelError`` for what can be seen without the weights."""
    text = config.get_text_config()
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in [part for part in ropes.values() if isinstance(part, dict)]:  # of one kind of layers
        if rope.get("rope_type") in _BATCH_ROPES:
            raise UnsupportedModelError(
                f"{checkpoint}: {rope['rope_type']} positions stretch with the longest sequence of a batch, so that "
                "a response would depend on others"
            )
    if text.model_type in _OTHER_STATES:
        raise UnsupportedModelError(f"{checkpoint}: its layers keep a state of a kind that is not supported")
    other = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYERS)
    if other:
        raise UnsupportedModelError(f"{checkpoint}: layers of {', '.join(other)} are not supported")


def model_class_of(config: Any) -> Any:
    """Return the class that ``transformers`` runs a configuration with.

    Raises `UnsupportedModelError` if there is none, it is another than config.json names, or it does not take our
    attention.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    names = ", ".join(getattr(config, "architectures", None) or [type(config).__name__])
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModelError(f"{names}: transformers has no class that writes text with it")
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if found.__name__ not in (getattr(config, "architectures", None) or ()):
        raise UnsupportedModelError(f"config.json names {names}, but its model_type is that of {found.__name__}")
    has_states = not _STATES.isdisjoint(getattr(config.get_text_config(), "layer_types", None) or ())
    if not has_states and not getattr(found, "_supports_attention_backend", False):  # not said of hybrid models
        raise UnsupportedModelError(f"{names}: its code in transformers takes no other attention than its own")
    return found
