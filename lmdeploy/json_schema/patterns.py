"""Regular expressions as languages.

Those of JSON Schema (ECMA-262) are looked for anywhere in a string, as the standard says; those of whole texts may have
flags. Where ECMA-262 and Python's `re` disagree about a character class, it is read as what both allow.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, NoReturn

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges
from lmdeploy.json_schema.languages import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Chars,
    Concatenation,
    Language,
    choice,
    concatenation,
    expanded_size,
    has_empty,
    repeat,
)

MAX_LENGTH = 2000
MAX_EXPANSION = 20_000  # characters with repetitions written out, which sets of texts take
_MAX_DEPTH = 40  # of groups
_MAX_COUNT_LEN = 40  # characters
_MAX_VARIANTS = 64  # of where anchors are

_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
# Supersets of Python's digits, letters and spaces: a class without them is right for both.
_ALL_DIGITS = charsets.union(
    _DIGITS, ((0x660, 0x1FFF), (0x3000, 0x303F), (0xA620, 0xABFF), (0xFF00, 0x1F2FF), (0x1F900, charsets.LAST))
)
_ALL_WORD = charsets.union(_WORD, ((0x80, charsets.LAST),))
_ALL_SPACE = charsets.union(_SPACE, ((0x1C, 0x20), (0x85, 0x85), (0xFEFF, 0xFEFF)))
# Class -> the characters that are surely in it, and those that may be.
_CLASSES = {
    "d": (_DIGITS, _ALL_DIGITS),
    "w": (_WORD, _ALL_WORD),
    "s": (_SPACE, _ALL_SPACE),
    "D": (charsets.complement(_ALL_DIGITS), charsets.complement(_DIGITS)),
    "W": (charsets.complement(_ALL_WORD), charsets.complement(_WORD)),
    "S": (charsets.complement(_ALL_SPACE), charsets.complement(_SPACE)),
}
_DOT, _LOOSE_DOT = (charsets.complement(charsets.of(ends)) for ends in ("\n\r\u2028\u2029", "\n"))
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_COUNT = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_HEX_OF_TEXT = re.compile(rf"{_HEX.pattern}|x\{{([0-9A-Fa-f]{{1,6}})\}}|U([0-9A-Fa-f]{{8}})")
_PROPERTY = re.compile(r"([pP])\{(?:(?:gc|General_Category)=)?(\w+)\}")
_CATEGORIES = dict.fromkeys(("Decimal_Number", "digit"), "Nd") | {"Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll"}
_CATEGORIES |= {name: name[0] for name in ("Letter", "Mark", "Number", "Punctuation", "Symbol", "Separator")}
_FLAGS = re.compile(r"\(\?([imsux]+)\)")
_BLANKS = re.compile(r"(?:[ \t\n\r\f\v]|#[^\n]*)*")
_SET_OPERATIONS = ("[:", "&&", "--", "~~", "||")
_NAMED = re.compile(r"\?P?<[A-Za-z_]\w*>", re.ASCII)
_GROUPS = {"?=": "looks ahead", "?!": "looks ahead", "?<=": "looks behind", "?<!": "looks behind"}


class PatternError(ValueError):
    """An expression that is none, or that cannot be enforced: why, and at which character."""

    def __init__(self, reason: str, at: int | None = None) -> None:
        super().__init__(reason if at is None else f"{reason} (at character {at})")
        self.reason = reason
        self.at = at or 0


class _Variant(NamedTuple):
    """A way to match: `starts`, `ends` say whether nothing may be before it, and after it."""

    starts: bool
    language: Language
    ends: bool


@lru_cache(maxsize=256)
def language_of(pattern: str, max_length: int = MAX_LENGTH, *, is_loose: bool = False) -> Language:
    """Return the strings in which a regular expression finds something; with `is_loose`, for ECMA-262 or for `re`.

    Raises `PatternError` where it is none, or has what is not enforced: assertions other than ``^`` and ``$`` at its
    ends, references to groups, flags, properties of Unicode.
    """
    if len(pattern) > max_length:
        raise PatternError(f"is longer than {max_length} characters")
    variants = _Parser(pattern, is_loose=is_loose).whole()
    end = (repeat(Chars(charsets.of("\n")), 0, 1),) if is_loose else ()  # which `re` skips before $
    language = choice(
        concatenation([*(() if form.starts else (ANYTHING,)), form.language, *(end if form.ends else (ANYTHING,))])
        for form in variants
    )
    if language == Concatenation((ANYTHING, ANYTHING)):
        language = ANYTHING
    if expanded_size(language) > MAX_EXPANSION:
        raise PatternError(f"has more than {MAX_EXPANSION} characters with its repetitions written out")
    return language


def language_of_text(pattern: str, flags: str = "") -> Language:
    """Return the strings that a regular expression matches from end to end; raises as `language_of` does.

    `flags` are of ``imsux``; the expression may begin with more. ``^`` and ``$`` are the ends of the text, also with m.
    """
    found = choice(form.language for form in _Parser(pattern, flags).whole())
    if found == NOTHING:
        raise PatternError("matches no text")
    return found


class _Parser:
    def __init__(self, pattern: str, flags: str | None = None, *, is_loose: bool = False) -> None:
        self._pattern = pattern
        self._is_loose = is_loose
        self._at = 0
        self._depth = 0
        self._is_of_text = flags is not None
        self._flags = flags or ""
        if self._is_of_text and (found := _FLAGS.match(pattern)):
            self._flags += found[1]
            self._at = found.end()

    def whole(self) -> list[_Variant]:
        variants = self._disjunction()
        if self._at < len(self._pattern):
            self._fail("has a ) without a (")
        return variants

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        raise PatternError(what, self._at if at is None else at)

    def _skip(self) -> None:
        """Skip white space and comments, with flag x."""
        if "x" in self._flags and (found := _BLANKS.match(self._pattern, self._at)):
            self._at = found.end()

    def _in_cases(self, ranges: Ranges) -> Ranges:
        return charsets.in_any_case(ranges) if "i" in self._flags else ranges

    def _takes(self, token: str) -> bool:
        found = self._pattern.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _disjunction(self) -> list[_Variant]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"is nested deeper than {_MAX_DEPTH} groups")
        variants = self._alternative()
        while self._takes("|"):
            variants += self._alternative()
        self._depth -= 1
        return _merged(variants)

    def _alternative(self) -> list[_Variant]:
        so_far = [_Variant(False, EMPTY, False)]
        parts: list[Language] = []  # without anchors, to be appended at once

        def flush() -> None:
            nonlocal so_far
            if parts:
                so_far = _followed(so_far, [_Variant(False, concatenation(parts), False)])
                parts.clear()

        self._skip()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            term = self._term()
            self._skip()
            if len(term) == 1 and not term[0].starts and not term[0].ends:
                parts.append(term[0].language)
                continue
            flush()
            so_far = _followed(so_far, term)
            if len(so_far) > _MAX_VARIANTS:
                self._fail("has ^ or $ in too many alternatives")
        flush()
        return so_far

    def _term(self) -> list[_Variant]:
        start = self._at
        if self._takes("^"):
            return [_Variant(True, EMPTY, False)]
        if self._takes("$"):
            return [_Variant(False, EMPTY, True)]
        variants = self._group(start) if self._takes("(") else [_Variant(False, self._atom(), False)]
        self._skip()
        low, high = self._count()
        if (low, high) == (1, 1):
            return variants
        if any(form.starts or form.ends for form in variants):
            self._fail("repeats a group with ^ or $ in it", start)
        return [_Variant(False, repeat(choice(form.language for form in variants), low, high), False)]

    def _group(self, start: int) -> list[_Variant]:
        if self._takes("?:"):
            pass
        elif named := _NAMED.match(self._pattern, self._at):
            self._at = named.end()
        elif self._pattern.startswith("?", self._at):
            why = [why for mark, why in _GROUPS.items() if self._pattern.startswith(mark, self._at)]
            self._fail(why[-1] if why else "has a group with flags, or of an unknown kind", start)
        variants = self._disjunction()
        if not self._takes(")"):
            self._fail("has a ( without a )", start)
        return variants

    def _count(self) -> tuple[int, int | None]:
        """Read what may be after an atom; it is the same whether it is greedy or lazy."""
        start = self._at
        low, counted = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._pattern[self._at : self._at + 1], (1, 1))
        if (low, counted) != (1, 1):
            self._at += 1
        elif found := _COUNT.match(self._pattern, self._at):
            self._at = found.end()
            if len(found[0]) > _MAX_COUNT_LEN or max(int(n) for n in found.group(1, 3) if n) > MAX_EXPANSION:
                self._fail(f"repeats more than {MAX_EXPANSION} times", start)
            low = int(found[1])
            counted = low if found[2] is None else int(found[3]) if found[3] else None
            if counted is not None and counted < low:
                self._fail("counts down in {}", start)
        else:
            return 1, 1
        self._takes("?")
        if self._at < len(self._pattern) and (
            self._pattern[self._at] in "*+?" or _COUNT.match(self._pattern, self._at)
        ):
            self._fail("repeats what is repeated already")
        return low, counted

    def _atom(self) -> Language:
        start = self._at
        if self._takes("."):
            return Chars(charsets.EVERY if "s" in self._flags else _LOOSE_DOT if self._is_loose else _DOT)
        if self._takes("["):
            return self._class(start)
        if self._takes("\\"):
            return Chars(self._in_cases(self._escape(in_class=False)[self._is_loose]))
        if self._pattern[self._at] in "*+?":
            self._fail("repeats nothing")
        if self._pattern.startswith("{,", self._at):
            self._fail("has {, which not everybody reads alike")
        self._at += 1
        return Chars(self._in_cases(charsets.of(self._pattern[start])))

    def _escape(self, *, in_class: bool) -> tuple[Ranges, Ranges]:
        """Read what follows a backslash: the characters it surely stands for, and those it may."""
        start = self._at - 1
        if self._at == len(self._pattern):
            self._fail("ends with a backslash", start)
        if found := (_HEX_OF_TEXT if self._is_of_text else _HEX).match(self._pattern, self._at):
            self._at = found.end()
            code = int(next(filter(None, found.groups())), 16)
            if code > charsets.LAST or 0xD800 <= code <= 0xDFFF:
                self._fail("names half of a surrogate pair, or no character", start)
            return (one := charsets.of(chr(code))), one
        categories = charsets.of_categories
        if (found := _PROPERTY.match(self._pattern, self._at)) and (
            sure := categories().get(_CATEGORIES.get(found[2], found[2]))
        ):
            self._at = found.end()
            possible = charsets.union(sure, categories()["Cn"])  # which newer versions of Unicode may have in it
            return (sure, possible) if found[1] == "p" else (charsets.complement(possible), charsets.complement(sure))
        character = self._pattern[self._at]
        if character in _CLASSES:
            self._at += 1
            return _CLASSES[character]
        following = self._pattern[self._at + 1 : self._at + 2]
        controls = _CONTROLS | ({"b": "\b"} if in_class else {})
        if character in controls and not (character == "0" and following.isdigit()):
            character = controls[character]
        elif character.isalnum() and character.isascii():
            self._fail(f"has \\{character}, which is not enforced", start)
        self._at += 1
        return (one := charsets.of(character)), one

    def _class(self, start: int) -> Language:
        is_negated = self._takes("^")
        sure: list[Ranges] = []
        possible: list[Ranges] = []
        if self._pattern.startswith("]", self._at):
            self._fail("has an empty class")
        while not self._takes("]"):
            if self._at == len(self._pattern):
                self._fail("has a [ without a ]", start)
            if self._is_of_text and self._pattern.startswith(_SET_OPERATIONS, self._at):
                self._fail(f"has {self._pattern[self._at : self._at + 2]} in a class, which not everybody reads alike")
            low, low_possible = self._class_atom()
            if self._pattern.startswith("-", self._at) and self._pattern[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high, _ = self._class_atom()
                if charsets.size(low) != 1 or charsets.size(high) != 1:
                    self._fail("has a range of classes")
                if low[0][0] > high[0][0]:
                    self._fail("has a range that runs backwards")
                low = low_possible = charsets.intersection(((low[0][0], high[0][0]),), charsets.EVERY)
            sure.append(self._in_cases(low))
            possible.append(self._in_cases(low_possible))
        if self._is_loose:
            sure, possible = possible, sure
        if is_negated:
            ranges = charsets.complement(charsets.union(*possible))
        else:  # a class and its opposite are all characters
            is_all = any({_CLASSES[name][0], _CLASSES[name.upper()][0]} <= {*sure} for name in "dws")
            ranges = charsets.EVERY if is_all else charsets.union(*sure)
        return Chars(ranges) if ranges else NOTHING

    def _class_atom(self) -> tuple[Ranges, Ranges]:
        if self._takes("\\"):
            return self._escape(in_class=True)
        self._at += 1
        return (one := charsets.of(self._pattern[self._at - 1 : self._at])), one


def _merged(variants: list[_Variant]) -> list[_Variant]:
    """Return variants with the same anchors as one."""
    by_anchors: dict[tuple[bool, bool], list[Language]] = {}
    for form in variants:
        by_anchors.setdefault((form.starts, form.ends), []).append(form.language)
    return [_Variant(starts, choice(found), ends) for (starts, ends), found in by_anchors.items()]


def _followed(before: list[_Variant], after: list[_Variant]) -> list[_Variant]:
    """Return the ways to match one after the other."""
    found = []
    for one in before:
        for other in after:
            first, second, starts, ends = one.language, other.language, one.starts, other.ends
            if other.starts:  # nothing is before it
                if not has_empty(first):
                    continue
                first, starts = EMPTY, True
            if one.ends:  # nothing is after it
                if not has_empty(second):
                    continue
                second, ends = EMPTY, True
            found.append(_Variant(starts, concatenation([first, second]), ends))
    return _merged(found)
