"""LoRA adapters as callers see them: models of their own names, some with an owner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from lmdeploy.serve.client import TritonClient, TritonRequestError

MAX_NAME_LEN = 256  # bytes (backend_cpp/engine/adapters/adapter_pool.cc)


class Adapters:
    """Asks the engine each time: other gateways load and unload adapters too.

    An adapter may be bound to API keys; who has none of them neither sees nor uses it. The engine keeps digests of
    these keys as the adapter's note.
    """

    def __init__(self, client: TritonClient) -> None:
        self._client = client

    async def visible(self, *keys: str | None) -> list[str]:
        """Return the names of the adapters that the holder of these API keys may use; None is no key."""
        try:
            adapters = await self._client.adapters()
        except TritonRequestError:  # an older engine, or one that was started with another control key
            return []
        return [name for name, note in adapters.items() if _may_use(note, keys)]

    async def load(self, name: str, path: str, keys: Sequence[str]) -> None:
        """Load an adapter, for the holders of some API keys; without any, for everybody.

        Raises `TritonRequestError` if the engine refused.
        """
        note = json.dumps([_digest(key) for key in keys]) if keys else ""
        await self._client.load_adapter(name, path, note)

    async def unload(self, name: str) -> None:
        """Refuse later requests for an adapter; raise `TritonRequestError` if there is none of that name."""
        await self._client.unload_adapter(name)


def _digest(key: str) -> str:
    return hashlib.sha256(b"adapter of " + key.encode()).hexdigest()


def _may_use(note: str, keys: Sequence[str | None]) -> bool:
    return not note or any(key is not None and _digest(key) in json.loads(note) for key in keys)
