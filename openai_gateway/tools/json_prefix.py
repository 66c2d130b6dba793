"""Read a JSON object that comes in pieces, and notice the first character that no JSON object can have there."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 200  # of objects and lists; what nests deeper is refused, because its reader could not decode it

# A number's states: what each kind of character leads to. Kinds: digits 1-9 and 0, signs, point, exponent.
_NUMBER: dict[str, dict[str, str]] = {
    "minus": {"1": "whole", "0": "zero"},
    "zero": {".": "point", "e": "exponent"},
    "whole": {"1": "whole", "0": "whole", ".": "point", "e": "exponent"},
    "point": {"1": "fraction", "0": "fraction"},
    "fraction": {"1": "fraction", "0": "fraction", "e": "exponent"},
    "exponent": {"1": "power", "0": "power", "-": "sign", "+": "sign"},
    "sign": {"1": "power", "0": "power"},
    "power": {"1": "power", "0": "power"},
}
_COMPLETE_NUMBERS = frozenset({"zero", "whole", "fraction", "power"})
_KINDS = {**dict.fromkeys("123456789", "1"), **dict.fromkeys("eE", "e")}
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # what may be in a string as it is
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
    NUMBER = auto()
    LITERAL = auto()


class JsonObjectReader:
    """Reads one JSON object out of a growing text (RFC 8259).

    Parameters
    ----------
    begin : int
        Where the object, or white space before it, begins in the text.

    Attributes
    ----------
    position : int
        What is before it is the beginning of a JSON object, or all of it.
    is_complete : bool
        The object ends at `position`.
    is_broken : bool
        The character at `position` cannot follow.
    """

    def __init__(self, begin: int = 0) -> None:
        self.position = begin
        self.is_complete = self.is_broken = False
        self._expect = _Expect.OBJECT
        self._open: list[str] = []  # the closing brackets that are due
        self._is_key = False  # of the string being read
        self._number = ""
        self._left = ""  # of a literal, or one character for each hexadecimal digit that is due

    def read(self, text: str) -> None:
        """Go on in `text`, which begins with what was read before."""
        while self.position < len(text) and not (self.is_complete or self.is_broken):
            if self._expect is _Expect.STRING and (plain := _PLAIN.match(text, self.position)):
                self.position = plain.end()
            elif self._take(text[self.position]):
                self.position += 1
                self.is_complete = not self._open and self._expect is _Expect.SEPARATOR
            else:
                self.is_broken = True

    def _take(self, char: str) -> bool:
        """Take one character; False when it cannot be here."""
        if self._expect is _Expect.NUMBER:
            following = _NUMBER[self._number].get(_KINDS.get(char, char))
            if following is not None:
                self._number = following
                return True
            if self._number not in _COMPLETE_NUMBERS:
                return False
            self._expect = _Expect.SEPARATOR
        if self._expect in (_Expect.STRING, _Expect.ESCAPED, _Expect.HEX, _Expect.LITERAL):
            return self._within(char)
        return char in _BLANKS or self._between(char)

    def _within(self, char: str) -> bool:
        """Take a character of a string or literal."""
        match self._expect:
            case _Expect.STRING if char == '"':
                self._expect = _Expect.COLON if self._is_key else _Expect.SEPARATOR
            case _Expect.STRING if char == "\\":
                self._expect = _Expect.ESCAPED
            case _Expect.ESCAPED if char == "u":
                self._expect, self._left = _Expect.HEX, "...."
            case _Expect.ESCAPED if char in '"\\/bfnrt':
                self._expect = _Expect.STRING
            case _Expect.HEX if char in _HEX:
                self._left = self._left[1:]
                self._expect = _Expect.HEX if self._left else _Expect.STRING
            case _Expect.LITERAL if char == self._left[0]:
                self._left = self._left[1:]
                self._expect = _Expect.LITERAL if self._left else _Expect.SEPARATOR
            case _:
                return False
        return True

    def _between(self, char: str) -> bool:
        """Take a character between strings, numbers and literals."""
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
        kind = _KINDS.get(char, char)
        if char in "{[" and len(self._open) < MAX_DEPTH:
            self._open.append("}" if char == "{" else "]")
            self._expect = _Expect.FIRST_KEY if char == "{" else _Expect.FIRST_ITEM
        elif char == '"':
            self._expect, self._is_key = _Expect.STRING, False
        elif char in _LITERALS:
            self._expect, self._left = _Expect.LITERAL, _LITERALS[char]
        elif kind in ("1", "0", "-"):
            self._expect, self._number = _Expect.NUMBER, {"1": "whole", "0": "zero", "-": "minus"}[kind]
        else:
            return False
        return True
