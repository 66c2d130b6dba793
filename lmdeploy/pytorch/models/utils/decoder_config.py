"""Fields of configurations that come in several shapes."""

from __future__ import annotations

from typing import Any


def head_dim_of(config: Any) -> int:
    """Return the channels of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def window_of(config: Any, layer: int) -> int | None:
    """Return how many positions a layer's tokens see; None: all."""
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[layer] != "sliding_attention":
        return None
    window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)
