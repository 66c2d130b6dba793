"""Check for symbolic links out of a model folder: no link in it leads to another file of the machine.

A checkpoint or an adapter of a stranger could otherwise name any file as its chat template, which callers then read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lmdeploy.errors import CheckpointError
from lmdeploy.paths import cache_root

_WEIGHTS = {".safetensors", ".gguf", ".bin", ".pt", ".pth"}  # may lie elsewhere: nobody reads them as text


def reject_outside_links(folder: Path) -> None:
    """Refuse a model folder with links out of it, or with devices and pipes in it.

    Links to the blobs of the hub's cache are its own, and weights may be links to weights. What we wrote into our cache
    is not looked at. Raises `CheckpointError`: names each such file.
    """
    root = folder.resolve()
    if root.is_relative_to(cache_root().resolve()) or not root.is_dir():
        return
    if problems := list(_problems(root)):
        raise CheckpointError(folder, problems)


def _problems(root: Path) -> Iterator[str]:
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    for path in (*sorted(root.glob("[!.]*")), *sorted(root.glob("[!.]*/*"))):  # no reader looks deeper
        target = path.resolve()
        if path.is_symlink() and not (
            target.is_relative_to(root)
            or target.parent == blobs
            or (path.suffix in _WEIGHTS and target.suffix == path.suffix)
        ):
            yield f"{path.relative_to(root)} is a link to a file outside of the folder; copy the file into it"
        elif target.exists() and not (target.is_file() or target.is_dir()):
            yield f"{path.relative_to(root)} is no regular file"
