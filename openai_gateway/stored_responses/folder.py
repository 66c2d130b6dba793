"""Responses in a folder, over restarts, and for all processes that use it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from pathlib import Path

from openai_gateway.batches.disk import make_private, now, remove_abandoned, write_whole
from openai_gateway.batches.store import owner_name
from openai_gateway.stored_responses.record import Bounds, StoredResponse, is_response_id

logger = logging.getLogger(__name__)

_LOOK_EVERY = 16  # responses written between two looks at all that an API key has
_SUFFIX = ".json"


class FolderStore:
    """Keeps a file a response, in a folder an API key. A file's date is when it was last used.

    Parameters
    ----------
    folder
        It is made when something is first kept.
    bounds
        For each API key; they are exceeded by what is written between two looks.
    """

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._written: Counter[Path] = Counter()

    async def put(self, key: str | None, stored: StoredResponse) -> bool:
        """Keep a response; as `ResponseStore.put`. Raises `OSError` where it cannot be written."""
        return await asyncio.to_thread(self._put, self._of(key), stored)

    async def get(self, key: str | None, response_id: str) -> bytes | None:
        """Return a response; as `ResponseStore.get`."""
        return await asyncio.to_thread(self._get, self._of(key), response_id)

    async def delete(self, key: str | None, response_id: str) -> bool:
        """Forget a response; as `ResponseStore.delete`."""
        return await asyncio.to_thread(self._delete, self._of(key), response_id)

    async def clean(self) -> None:
        """Remove what has expired, also of keys that are gone, and what broken off writes left."""
        await asyncio.to_thread(self._clean)

    def _of(self, key: str | None) -> Path:
        return self._folder / owner_name(key, of="responses")

    def _put(self, folder: Path, stored: StoredResponse) -> bool:
        text = stored.encoded()
        if len(text) > self._bounds.owner_bytes:
            return False
        make_private(folder)
        write_whole(folder / f"{stored.id}{_SUFFIX}", text)
        if self._written[folder] % _LOOK_EVERY == 0:
            self._drop_old(folder)
        self._written[folder] += 1
        return True

    def _get(self, folder: Path, response_id: str) -> bytes | None:
        path = folder / f"{response_id}{_SUFFIX}"
        try:
            if not is_response_id(response_id) or path.stat().st_mtime <= now() - self._bounds.seconds:
                return None
            text = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:  # dropped meanwhile
            return None
        except OSError as error:
            logger.error("a stored response cannot be read: %s", error)
            return None
        return text

    def _delete(self, folder: Path, response_id: str) -> bool:
        if self._get(folder, response_id) is None:
            return False
        (folder / f"{response_id}{_SUFFIX}").unlink(missing_ok=True)
        return True

    def _clean(self) -> None:
        try:
            for folder in [path for path in self._folder.iterdir() if path.is_dir()]:
                self._drop_old(folder)
                remove_abandoned(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.error("the folder of responses cannot be used: %s", error)

    def _drop_old(self, folder: Path) -> None:
        """Remove what has expired, and of the rest what was not used for longest until the bounds are kept."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        seen = entry.stat()
                        found.append((seen.st_mtime, seen.st_size, entry.path))
        kept, size, expired = 0, 0, now() - self._bounds.seconds
        for used, length, path in sorted(found, reverse=True):
            kept, size = kept + 1, size + length
            if used <= expired or kept > self._bounds.owner_count or size > self._bounds.owner_bytes:
                Path(path).unlink(missing_ok=True)
