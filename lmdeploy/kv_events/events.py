"""KV cache events, with the names and the order of fields that vLLM publishes (``vllm/distributed/kv_events.py``)."""

from typing import Any

import msgspec


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that can be found from now on."""

    block_hashes: list[int]  # of blocks that follow each other (docs/deployment/operations.md)
    parent_block_hash: int | None  # of the block before the first; None: there is none
    token_ids: list[int]  # of these blocks
    block_size: int
    lora_id: int | None  # always None; LoRA adapters are named by ``lora_name``
    # ``GPU``: the engine's own memory, whatever the device; ``CPU``: the host's blocks alongside it; ``DISK``: files of
    # ``cache_dir``
    medium: str | None
    lora_name: str | None
    # Of each block what distinguishes it alongside its tokens, or None
    extra_keys: list[list[Any] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that are no longer in a medium."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """Nothing is held any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Step(msgspec.Struct):
    """The events of a step, as the engine writes them: a line of JSON (backend_cpp/engine/events/cache_event.h)."""

    sequence: int
    events: list[Event]


_MSGPACK = msgspec.msgpack.Encoder()
_AS_STEP = msgspec.json.Decoder(Step)


def read_step(line: bytes) -> Step:
    """Return the events of a line."""
    return _AS_STEP.decode(line)


def payload(step: Step, event_format: str, now: float) -> bytes:
    """Return the msgpack form of a step: time, events, and nil for the rank among data-parallel engines.

    ``event_format``: ``map``: events are maps with a member ``type``; ``array``: their type and all their fields in
    order. ``now``: unix time in seconds.
    """
    events: list[Any] = list(step.events)
    if event_format == "array":
        events = [[type(event).__name__, *msgspec.structs.astuple(event)] for event in events]
    return _MSGPACK.encode([now, events, None])
