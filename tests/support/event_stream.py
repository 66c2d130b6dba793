"""A router's side of the engine's events: written from vLLM's format, not from our code."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import zmq

_TIMEOUT = 180
_SILENCE = 300  # milliseconds after which what is missing is asked for
_SEQUENCE = 8
_END = 2**64 - 1


class Event(msgspec.Struct, tag=True, omit_defaults=True):
    """vLLM's ``KVCacheEvent``."""


class BlockStored(Event):
    """Fields in vLLM's order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None


class BlockRemoved(Event):
    """Fields in vLLM's order."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    """Has none."""


class Batch(msgspec.Struct, array_like=True):
    """vLLM's ``KVEventBatch``."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None


def fnv(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def block_hash(parent: int | None, tokens: list[int], extra_keys: list[Any] | None = None) -> int:
    """Return the hash of a block as docs/deployment/operations.md describes it."""
    data = (parent or 0).to_bytes(8, "little") + b"".join(token.to_bytes(4, "little") for token in tokens)
    if extra_keys:
        data += json.dumps(extra_keys, separators=(",", ":"), ensure_ascii=False).encode()
    return fnv(data)


class Index:
    """Content of an engine's cache, from its events alone; missed ones are asked for at the replay socket."""

    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        self.media: dict[int, set[str | None]] = {}
        """Media by hash."""
        self.hashes_checked = 0
        self.clears = 0
        self._next = 0
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(b"kv@")
        self._events.connect(endpoint)
        self._replays = self._context.socket(zmq.DEALER)
        self._replays.connect(replay_endpoint)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def follow(self, batches: float) -> None:
        """Take in this many batches, from the engine's start."""
        end = time.monotonic() + _TIMEOUT
        while self._next < batches:
            assert time.monotonic() < end, f"batch {self._next} of {batches} did not come"
            if not self._events.poll(_SILENCE):
                self._poll()
                continue
            _, number, data = self._events.recv_multipart()
            sequence = int.from_bytes(number, "big")
            if sequence > self._next:
                self._poll()
            self._take(sequence, data)

    def count(self, medium: str) -> int:
        """Return how many blocks a medium holds."""
        return sum(medium in media for media in self.media.values())

    def found(self, prompt: list[int], block_size: int, lora_name: str | None = None) -> int:
        """Return how many of a prompt's tokens the engine need not compute: whole blocks, never the last token."""
        parent, extra = None, [lora_name] if lora_name else None
        for begin in range(0, len(prompt) - block_size, block_size):
            parent = block_hash(parent, prompt[begin : begin + block_size], extra)
            if not self.media.get(parent):
                return begin
        return (len(prompt) - 1) // block_size * block_size

    def _poll(self) -> None:
        self._replays.send_multipart([b"", self._next.to_bytes(_SEQUENCE, "big")])
        while True:
            assert self._replays.poll(1000 * _TIMEOUT), "no replay"
            empty, _, number, data = self._replays.recv_multipart()
            assert empty == b""
            sequence = int.from_bytes(number, "big")
            if sequence == _END:
                assert data == b""
                return
            self._take(sequence, data)

    def _take(self, sequence: int, data: bytes) -> None:
        if sequence < self._next:
            return
        batch = msgspec.msgpack.decode(data, type=Batch)
        assert batch.events
        assert batch.data_parallel_rank is None
        assert abs(batch.ts - time.time()) < 3600
        assert sequence == self._next or isinstance(batch.events[0], AllBlocksCleared)
        self._next = sequence + 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for removed in event.block_hashes:
                    self.media[removed].remove(event.medium)
                    if not self.media[removed]:
                        del self.media[removed]
            else:
                self.media.clear()
                self.clears += 1

    def _store(self, event: BlockStored) -> None:
        parent, size = event.parent_block_hash, event.block_size
        assert event.medium == "DISK" or parent is None or parent in self.media
        assert len(event.token_ids) == size * len(event.block_hashes)
        extra_keys = event.extra_keys or [None] * len(event.block_hashes)
        blocks = [event.token_ids[i : i + size] for i in range(0, len(event.token_ids), size)]
        for reported, tokens, extra in zip(event.block_hashes, blocks, extra_keys, strict=True):
            assert extra == ([event.lora_name] if event.lora_name else None)
            assert reported == block_hash(parent, tokens, extra)
            assert event.medium not in self.media.setdefault(reported, set())
            self.media[reported].add(event.medium)
            self.hashes_checked += 1
            parent = reported
