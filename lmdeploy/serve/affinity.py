"""Prefix affinity: the index of which replica has which session or prompt prefix.

A router that sends requests where their beginning was computed before spares that work. Nothing depends on it: an
answer is the same from every replica.

What a router remembers is a table from keys to replicas. A prompt has a key for each multiple of `PIECE` bytes that it
is long, made of everything up to there:

    prompt   |---- PIECE ----|---- PIECE ----|---- PIECE ----|-- rest --|
    keys                     k1              k2              k3
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

PIECE = 256  # bytes: about the 64 tokens of a block in the engine's cache
MAX_PIECES = 128  # what comes after reveals nothing more
MAX_KEYS = 200_000  # remembered
SLACK = 8  # requests that a replica may have beyond the least loaded one, and still be preferred for what it holds
_HOLDERS = 4  # of a key, the latest ones
_DIGEST = 8  # bytes

Replica = TypeVar("Replica", bound=Hashable)


def session_key(session: str) -> int:
    """Return the key of a session."""
    return _key(session, b"session")


def model_key(model: str) -> int:
    """Return the key of a model's weights in memory, such as an adapter's."""
    return _key(model, b"model")


def _key(name: str, kind: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=_DIGEST, person=kind).digest(), "big")


def prefix_keys(prompt: bytes, model: str = "") -> tuple[int, ...]:
    """Return the keys of a prompt's prefixes, the shortest first; none for a prompt shorter than `PIECE`.

    ``prompt``: what the prompt is made of, written so that a longer conversation begins like a shorter one. ``model``:
    the model or adapter that is asked: caches of one are of no use to another.
    """
    so_far = hashlib.blake2b(model.encode(), digest_size=_DIGEST, person=b"prefix")
    keys = []
    for end in range(PIECE, min(len(prompt), PIECE * MAX_PIECES) + 1, PIECE):
        so_far.update(prompt[end - PIECE : end])
        keys.append(int.from_bytes(so_far.copy().digest(), "big"))
    return tuple(keys)


class Affinity(Generic[Replica]):
    """Prefix affinity: a router's record of where it sent requests."""

    def __init__(self, slack: int = SLACK, max_keys: int = MAX_KEYS) -> None:
        self._slack = slack
        self._max_keys = max_keys  # as `MAX_KEYS`; the keys that were not used for longest are forgotten
        self._holders: OrderedDict[int, tuple[Replica, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def preferred(
        self, keys: Collection[int], session: int | None, loads: Mapping[Replica, int], min_load: int
    ) -> tuple[Replica | None, int]:
        """Return the replica that should get a request, if any, and how many of its pieces are held there.

        A session stays where it is. The holder of a prefix is preferred unless it is too busy; then the holder of a
        shorter part of it may be. ``session``: its key, if the request has a session. ``loads``: open requests of each
        replica that could take it. ``min_load``: the least of them.
        """
        if session is not None:
            holders = self._holders_of(session, loads)
            if holders:
                return holders[0], 0
        bound = min_load + self._slack
        for pieces, key in zip(range(len(keys), 0, -1), reversed(tuple(keys)), strict=True):
            fit = [replica for replica in self._holders_of(key, loads) if loads[replica] <= bound]
            if fit:
                return min(fit, key=loads.__getitem__), pieces
        return None, 0

    def sent(self, keys: Collection[int], session: int | None, replica: Replica) -> None:
        """Remember that a replica got a request."""
        if session is not None:
            self._put(session, (replica,))
        for key in keys:
            others = (other for other in self._holders.get(key, ()) if other != replica)
            self._put(key, (replica, *others)[:_HOLDERS])
        while len(self._holders) > self._max_keys:
            self._holders.popitem(last=False)

    def _put(self, key: int, holders: tuple[Replica, ...]) -> None:
        self._holders[key] = holders
        self._holders.move_to_end(key)

    def _holders_of(self, key: int, among: Collection[Replica]) -> list[Replica]:
        """Return the holders of a key that are there still, the latest first."""
        return [replica for replica in self._holders.get(key, ()) if replica in among]
