"""Prepared model, with an estimate of its memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PreparedModel:
    """A model that the engine can load."""

    name: str  # what callers call it
    engine_dir: str  # its engine directory
    older_name: str  # what Triton clients of LMDeploy up to 0.5.1 receive
    chat_template: str  # as in `RequestedModel`
    engine: Mapping[str, Any]  # settings of the engine
    device: str  # ``cpu`` or ``cuda``
    weights: int  # bytes, and those of the states of sequences, whose number is fixed
    block: int  # bytes of a block of the cache
    max_blocks: int  # more blocks are of no use to it
    idle_timeout: float | None = None  # as in `RequestedModel`

    @property
    def cache(self) -> float | None:
        """``cache_max_entry_count``: below 1 a share of what all weights leave, else blocks; None: not said."""
        return self.engine.get("cache_max_entry_count")

    @property
    def fixed_blocks(self) -> int | None:
        """Blocks that it was asked to have; None: a share."""
        return int(self.cache) if self.cache is not None and self.cache >= 1 else None

    def to_json(self) -> str:
        """Return it as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PreparedModel:
        """Return the inverse of `to_json`."""
        return cls(**json.loads(text))
