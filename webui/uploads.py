"""Uploaded files: a private folder of a bounded size."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import stat
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import BinaryIO

MAX_FILE_BYTES = 16 * 2**20  # of an image, or of a conversation to import
MAX_FOLDER_BYTES = 2**30
MAX_FILES = 4096
_MAX_STEM_LEN, _MAX_SUFFIX_LEN = 50, 10  # characters, of up to four bytes: file systems take 255 bytes
_PUNCTUATION = "-_. "
_saving = threading.Lock()


@cache
def folder() -> Path:
    """Return the folder of this process: open to its user alone, with a random name.

    The first call makes it, in ``GRADIO_TEMP_DIR`` or where temporary files go; the end of the process removes it.
    """
    made = Path(tempfile.mkdtemp(prefix="lmdeploy-page-", dir=os.environ.get("GRADIO_TEMP_DIR") or None)).resolve()
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def save(content: BinaryIO, name: str) -> Path:
    """Keep a file and return its path, which is random. Where there is no room, the oldest files make some."""
    with _saving:
        _make_room(content.seek(0, os.SEEK_END))
        content.seek(0)
        file = folder() / secrets.token_hex(16) / _safe(name)
        file.parent.mkdir(mode=0o700)
        with file.open("xb") as copy:
            shutil.copyfileobj(content, copy)
    return file


def find(path: object, below: Path | None = None) -> Path | None:
    """Return the uploaded file of this path; None: it is none, it is gone, or it is not a regular file.

    ``below`` is where uploaded files are, `folder` unless it is given.
    """
    if not isinstance(path, str):
        return None
    try:
        file = Path(path).resolve()
        return (
            file if file.is_relative_to((below or folder()).resolve()) and stat.S_ISREG(file.lstat().st_mode) else None
        )
    except (OSError, RuntimeError, ValueError):  # too long, a loop of links, a zero byte, half a character
        return None


def _safe(name: str) -> str:
    kept = Path("".join(char if char.isalnum() or char in _PUNCTUATION else "_" for char in Path(name).name))
    return f"{kept.stem[:_MAX_STEM_LEN].strip(_PUNCTUATION) or 'file'}{kept.suffix[:_MAX_SUFFIX_LEN]}"


def _make_room(size: int) -> None:
    files = sorted((file.lstat().st_mtime_ns, file.lstat().st_size, file) for file in folder().glob("*/*"))
    used, count = sum(size for _, size, _ in files), len(files)
    for _, freed, file in files:
        if used + size <= MAX_FOLDER_BYTES and count < MAX_FILES:
            return
        shutil.rmtree(file.parent, ignore_errors=True)
        used, count = used - freed, count - 1
