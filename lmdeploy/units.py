"""Parsing of durations and sizes (``5m``, ``8GB``)."""

from __future__ import annotations

import contextlib
import math
import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}  # Go's units
_MAX_SECONDS = 1e10  # seconds, three centuries: as long as a duration of Go's can be
_DURATION = re.compile(r"([-+]?)((?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+)")
_PART = re.compile(r"([\d.]+)(\D+)")
_PREFIXES = "kmgt"
_SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?(?:([{_PREFIXES}])(i?))?b?", re.IGNORECASE)


def duration(name: str, value: str | float) -> float:
    """Return the seconds of a number, or of a text such as ``90``, ``5m``, ``1h30m`` or ``-1``.

    Raises `ValueError`: it is neither; the text begins with `name`.
    """
    seconds = math.nan
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        sign = -1.0 if found[1] == "-" else 1.0
        seconds = sign * sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(found[2]))
    elif not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            seconds = float(value)
    if not abs(seconds) <= _MAX_SECONDS:
        raise ValueError(f"{name} must be seconds or a duration such as 5m, 1h30m or -1, got {value!r}")
    return seconds


def byte_count(name: str, text: str) -> int:
    """Return the bytes of a text such as ``8GB``, ``512MiB`` or ``1.5g``.

    Raises `ValueError`: it is no size above 0; the text begins with `name`.
    """
    found = _SIZE.fullmatch(text.strip())
    count = 0.0
    if found:
        power = _PREFIXES.index(found[2].lower()) + 1 if found[2] else 0
        count = float(found[1]) * (1024 if found[3] else 1000) ** power
    if count < 1:
        raise ValueError(f"{name} must be a size such as 8GB, 512MiB or 2000000000, got {text!r}")
    return int(count)


def size_text(count: float) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
