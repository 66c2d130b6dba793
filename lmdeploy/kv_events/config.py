"""Fields of ``kv_events_config``: those of vLLM's ``--kv-events-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.extras import MissingExtraError, require
from lmdeploy.fields import field

SCHEMES = ("tcp://", "ipc://")


@field.documented
@dataclass
class KvEventsConfig:
    """Where and how the events of the block cache are published."""

    enable_kv_cache_events: bool = field.boolean(False, "Publish them.")
    publisher: str = field.string("zmq", "How; null: not.", choices=("zmq", "null"))
    endpoint: str = field.string(
        "tcp://*:5557",
        "Of the PUB socket. With a `*` or `::`, and with ipc://, it is bound, else connected to.",
    )
    replay_endpoint: str | None = field.string(
        None, "Of a ROUTER socket that sends batches once more, for readers that missed some; default: none."
    )
    topic: str = field.string("", "First frame of each message; llm-d's router wants kv@POD@MODEL.")
    hwm: int = field.integer(100_000, "Messages kept for a reader that is slow; more are dropped. 0: all are kept.")
    buffer_steps: int = field.integer(10_000, "Batches kept for replay.")
    event_format: str = field.string(
        "map", "Events as maps, or as arrays, as vLLM sent them up to 0.23.", choices=("map", "array")
    )
    max_queue_size: int = field.integer(
        100_000, "Of vLLM's queue.", no_effect="what waits to be published is bounded by its bytes"
    )

    def __post_init__(self) -> None:
        field.require_valid(self, [_endpoint_problem(name, getattr(self, name)) for name in _ENDPOINTS])

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> KvEventsConfig:
        """Return the configuration that a JSON object holds.

        Raises `ValueError` if it holds another field, or a value that is none of a field's.
        """
        return field.from_object(cls, given)

    @property
    def publishes(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher != "null"


_ENDPOINTS = ("endpoint", "replay_endpoint")


def _endpoint_problem(name: str, value: object) -> str | None:
    if isinstance(value, str) and not value.startswith(SCHEMES):
        return f"{name} must begin with {' or '.join(SCHEMES)}, got {value!r}"
    return None


def kv_events_problems(given: object, enable_prefix_caching: bool) -> list[str | None]:
    """Return the error of an engine's ``kv_events_config``."""
    if not isinstance(given, Mapping):
        return []
    try:
        config = KvEventsConfig.of(given)
        if config.publishes:
            require("events", "it")
    except (ValueError, MissingExtraError) as error:
        return [f"kv_events_config: {error}"]
    if config.publishes and not enable_prefix_caching:
        return ["kv_events_config needs enable_prefix_caching: without it no request finds what others left"]
    return []
