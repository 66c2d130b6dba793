"""Incremental JSON reader, which detects the first character that no JSON object can have there."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 200  # of objects and lists; what nests deeper is refused, because its reader could not decode it

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_BEGUN = re.compile(  # as far as one may have come
    r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
    r"|-?(?:0|[1-9][0-9]*)?(?:(?<=[0-9])\.[0-9]*)?(?:(?<=[0-9])[eE][-+]?[0-9]*)?"
)
_UNESCAPED = re.compile(r'[^"\\\x00-\x1f]+')  # what may be in a string as it is
_BLANKS = " \t\n\r"
_HEX = frozenset("0123456789abcdefABCDEF")


class _Expect(Enum):
    OBJECT = auto()
    FIRST_KEY = auto()  # or the end of the object
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()  # or the end of the list
    VALUE = auto()
    SEPARATOR = auto()  # or the end of the object or list
    STRING = auto()  # the rest of one
    ESCAPED = auto()
    HEX = auto()
    SCALAR = auto()  # the rest of a number, true, false or null


class JsonObjectReader:
    """Reads one JSON object out of a growing text (RFC 8259)."""

    def __init__(self, begin: int = 0, *, skips_commas: bool = False) -> None:
        # Where the object, or white space before it, begins in the text
        self.position = begin  # what is before it is the beginning of a JSON object, or all of it
        # The object ends at `position`; the character there cannot follow; a comma was skipped.
        self.is_complete = self.is_broken = self.has_skipped = False
        self._skips_commas = skips_commas  # a comma that nothing follows in its object or list is white space
        self._expect = _Expect.OBJECT
        self._open: list[str] = []  # the closing brackets that are due
        self._is_key = False  # of the string being read
        self._scalar = 0  # where the one being read begins
        self._digits = 0  # hexadecimal ones that are due

    def read(self, text: str, end: int | None = None) -> str:
        """Go on in `text`, up to `end`, and return it with white space for commas that were skipped.

        It begins with what was read before.
        """
        end = len(text) if end is None else end
        while self.position < end and not (self.is_complete or self.is_broken):
            if self._expect is _Expect.STRING and (unescaped := _UNESCAPED.match(text, self.position, end)):
                self.position = unescaped.end()
            elif self._expect is _Expect.SCALAR:
                self._read_scalar(text, end)
            elif self._skips_commas and self._expect is _Expect.SEPARATOR and text[self.position] == ",":
                if not (following := text[self.position + 1 : end].lstrip(_BLANKS)):
                    return text  # it depends on what comes
                if following[0] in "}]":
                    self.has_skipped = True
                    text = f"{text[: self.position]} {text[self.position + 1 :]}"
                self._take(text[self.position])
                self.position += 1
            elif self._take(text[self.position]):
                self.position += 1
                self.is_complete = not self._open and self._expect is _Expect.SEPARATOR
            else:
                self.is_broken = True
        return text

    def _read_scalar(self, text: str, end: int) -> None:
        begun = _BEGUN.match(text, self._scalar, end)
        assert begun is not None  # its first character is there
        self.position = begun.end()
        if self.position < end:
            self.is_broken = not _WHOLE.fullmatch(text, self._scalar, self.position)
            self._expect = _Expect.SEPARATOR

    def _take(self, char: str) -> bool:
        """Take one character; False when it cannot be here."""
        if self._expect in (_Expect.STRING, _Expect.ESCAPED, _Expect.HEX):
            return self._within(char)
        return char in _BLANKS or self._between(char)

    def _within(self, char: str) -> bool:
        """Take a character of a string."""
        match self._expect:
            case _Expect.STRING if char == '"':
                self._expect = _Expect.COLON if self._is_key else _Expect.SEPARATOR
            case _Expect.STRING if char == "\\":
                self._expect = _Expect.ESCAPED
            case _Expect.ESCAPED if char == "u":
                self._expect, self._digits = _Expect.HEX, 4
            case _Expect.ESCAPED if char in '"\\/bfnrt':
                self._expect = _Expect.STRING
            case _Expect.HEX if char in _HEX:
                self._digits -= 1
                self._expect = _Expect.HEX if self._digits else _Expect.STRING
            case _:
                return False
        return True

    def _between(self, char: str) -> bool:
        """Take a character between strings and other values."""
        match self._expect, char:
            case ((_Expect.FIRST_KEY | _Expect.FIRST_ITEM | _Expect.SEPARATOR), ("}" | "]")) if char == self._open[-1]:
                self._open.pop()
                self._expect = _Expect.SEPARATOR
            case ((_Expect.FIRST_KEY | _Expect.KEY), '"'):
                self._expect, self._is_key = _Expect.STRING, True
            case _Expect.COLON, ":":
                self._expect = _Expect.VALUE
            case _Expect.SEPARATOR, ",":
                self._expect = _Expect.KEY if self._open[-1] == "}" else _Expect.VALUE
            case ((_Expect.OBJECT | _Expect.VALUE | _Expect.FIRST_ITEM), _):
                return self._begin_value(char)
            case _:
                return False
        return True

    def _begin_value(self, char: str) -> bool:
        if self._expect is _Expect.OBJECT and char != "{":
            return False
        if char in "{[" and len(self._open) < MAX_DEPTH:
            self._open.append("}" if char == "{" else "]")
            self._expect = _Expect.FIRST_KEY if char == "{" else _Expect.FIRST_ITEM
        elif char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char in "-0123456789tfn":
            self._expect, self._scalar = _Expect.SCALAR, self.position
        else:
            return False
        return True
