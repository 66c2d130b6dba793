"""The folder of files and batches: a folder an owner in it, so that nobody can reach what is another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from openai_gateway.batches.disk import make_private, take_lock
from openai_gateway.batches.files import Files, Limits
from openai_gateway.batches.records import Batches

_EVERYBODY = "everybody"  # owns all where there are no API keys


class Owned:
    """What belongs to one API key.

    Parameters
    ----------
    folder
        Of this owner.
    limits
        What it may have.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.files = Files(folder / "files", limits)
        self.batches = Batches(folder / "batches", limits)


class Store:
    """The whole folder, which several processes may use at once.

    Parameters
    ----------
    folder
        It is made when something is first kept.
    limits
        What each owner may have.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self.limits = limits

    def of(self, key: str | None) -> Owned:
        """Return what belongs to the holder of an API key; None: to everybody."""
        return Owned(self._folder / owner_name(key), self.limits)

    def lock(self) -> int | None:
        """Return a descriptor that makes its holder the one who runs batches; None: another process does.

        Raises
        ------
        OSError
            The folder cannot be used.
        """
        make_private(self._folder)
        return take_lock(self._folder, waits=False)

    def clean(self) -> None:
        """Remove what has expired, also of keys that are gone."""
        for owned in self._all():
            owned.files.clean()
            owned.batches.clean()

    def _all(self) -> Iterator[Owned]:
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            yield Owned(folder, self.limits)


def owner_name(key: str | None, of: str = "files") -> str:
    """Return the name of an owner's folder for one kind of things, which does not reveal the key."""
    return _EVERYBODY if key is None else hashlib.sha256(f"{of} of {key}".encode()).hexdigest()[:32]
