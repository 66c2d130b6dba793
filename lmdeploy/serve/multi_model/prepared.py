"""Prepared model, with an estimate of its memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdeploy.serve.multi_model.memory import Need


@dataclass(frozen=True)
class PreparedModel:
    """A model that the engine can load."""

    name: str  # what callers call it
    engine_dir: str  # its engine directory
    older_name: str  # what Triton clients of LMDeploy up to 0.5.1 receive
    chat_template: str  # as in `RequestedModel`
    engine: Mapping[str, Any]  # settings of the engine
    device: str  # ``cpu`` or ``cuda``
    # As in `Need`
    weights: int
    block: int
    max_blocks: int
    idle_timeout: float | None = None  # as in `RequestedModel`

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
