"""A part of a file, between two lines that mark it, that is written anew while the rest is kept."""

from __future__ import annotations


def replaced(text: str, comment: str, part: str, lines: list[str], indent: str = "  ") -> str:
    """Return `text` with `lines` between the marks of `part`.

    Raises
    ------
    ValueError
        The marks are not there.
    """
    begin = f"{indent}{comment} begin: {part} (written by `make fields`)\n"
    end = f"{indent}{comment} end: {part}\n"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"no lines that mark the part {part!r}")
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after
