"""What callers send, in a line of the log."""

from __future__ import annotations


def one_line(text: str, most: int = 200) -> str:
    """Return the beginning of a text with everything escaped that is no visible character, or could end a line."""
    shown = text[:most]
    escaped = "".join(char if char.isprintable() and char != "\\" else _escape(char) for char in shown)
    return escaped if len(text) <= most else escaped + "..."


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
