"""API keys from command lines, files and the environment, and their transfer to child processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_SEPARATORS = re.compile(r"[,\n]")


def split_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the keys in some texts; one text may hold several, with commas or line ends between."""
    return tuple(key.strip() for text in texts for key in _SEPARATORS.split(text) if key.strip())


def read_keys(file: str | Path) -> tuple[str, ...]:
    """Return the keys of a file, one a line.

    Raises `ValueError` if it cannot be read, or holds none: a server would then be open to everybody.
    """
    try:
        keys = split_keys([Path(file).expanduser().read_text(encoding="utf-8")])
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} must be UTF-8 text with a key a line") from None
    if not keys:
        raise ValueError(f"{file} holds no key; write one a line")
    return keys


def variable_of(option: str) -> str:
    """Return the environment variable of an option, for example ``LMDEPLOY_API_KEYS`` of ``api-keys``."""
    return f"LMDEPLOY_{option.replace('-', '_').upper()}"


def environment_of(keys: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the variables that hand keys, by the names of their options, on to a process that we start."""
    return {variable_of(option): "\n".join(values) for option, values in keys.items()}
