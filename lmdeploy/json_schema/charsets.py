"""Sets of Unicode characters, as sorted ranges of code points that do not touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from unicodedata import category

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
EVERY: Ranges = ((0, 0xD7FF), (0xE000, LAST))
"""All characters: code points but the surrogates."""

_CASED = ((0x41, 0x3000), (0xA640, 0xAC00), (0xFB00, 0x11A00), (0x16E00, 0x17000), (0x1E900, 0x1EA00))

PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST))
"""Characters of a JSON string without an escape."""

PLAIN_ASCII: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))
"""Those of them that are ASCII."""


def union(*sets: Ranges) -> Ranges:
    """Return the characters that are in any of `sets`."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(bounds for ranges in sets for bounds in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters that are in both."""
    if one == other:
        return one
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    found, start = [], 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        found.append((start, LAST))
    return intersection(tuple(found), EVERY)


def in_any_case(ranges: Ranges) -> Ranges:
    """Return these characters, and those that differ from them in their case alone."""
    points, others = _other_cases()
    found = [code for low, high in ranges for code in points[bisect_left(points, low) : bisect_right(points, high)]]
    return union(ranges, *(others[code] for code in found))


@cache
def _other_cases() -> tuple[list[int], dict[int, Ranges]]:
    """Return characters that have other cases, in order, and these."""
    classes: dict[str, list[str]] = {}
    for code in (code for low, high in _CASED for code in range(low, high)):
        upper = chr(code).upper()
        lower = (upper if len(upper) == 1 else chr(code)).lower()
        classes.setdefault(lower if len(lower) == 1 else chr(code), []).append(chr(code))
    found = {ord(one): of(cased) for cased in classes.values() if len(cased) > 1 for one in cased}
    return sorted(found), found


@cache
def of_categories() -> dict[str, Ranges]:
    """Return the characters of each general category of Unicode (``Lu``) and each group of categories (``L``)."""
    found: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, run in groupby(map(category, map(chr, range(LAST + 1)))):
        end = start + sum(1 for _ in run)
        for key in (name, name[0]):
            found.setdefault(key, []).append((start, end - 1))
        start = end
    return {name: intersection(union(tuple(ranges)), EVERY) for name, ranges in found.items()}


def of(characters: Iterable[str]) -> Ranges:
    """Return the set of some characters."""
    return union(tuple((ord(char), ord(char)) for char in characters))


def holds(ranges: Ranges, character: str) -> bool:
    """Return whether a character is in the set."""
    index = bisect_right(ranges, (ord(character), LAST))
    return index > 0 and ord(character) <= ranges[index - 1][1]


def size(ranges: Ranges) -> int:
    """Return how many characters there are."""
    return sum(high - low + 1 for low, high in ranges)
