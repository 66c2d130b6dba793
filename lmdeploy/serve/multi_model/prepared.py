"""Prepared model, with an estimate of its memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdeploy.serve.multi_model.memory import Need


@dataclass(frozen=True)
class PreparedModel:
    """A model that the engine can load.

    Attributes
    ----------
    name
        What callers call it.
    engine_dir
        Its engine directory.
    older_name
        What Triton clients of LMDeploy up to 0.5.1 receive.
    chat_template
        As in `RequestedModel`.
    engine
        Settings of the engine.
    idle_timeout
        As in `RequestedModel`.
    device
        ``cpu`` or ``cuda``.
    weights, block, max_blocks
        As in `Need`.
    """

    name: str
    engine_dir: str
    older_name: str
    chat_template: str
    engine: Mapping[str, Any]
    device: str
    weights: int
    block: int
    max_blocks: int
    idle_timeout: float | None = None

    @property
    def need(self) -> Need:
        """Memory that it takes of its device."""
        cache = self.engine.get("cache_max_entry_count")
        return Need(self.name, self.device, self.weights, self.block, self.max_blocks, cache)

    def to_json(self) -> str:
        """Return it as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PreparedModel:
        """Return the inverse of `to_json`."""
        return cls(**json.loads(text))
