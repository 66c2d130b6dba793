"""Languages as the grammar engine is given them: as regular expressions, and as rules of a grammar (EBNF)."""

from __future__ import annotations

import json
from functools import lru_cache

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges
from lmdeploy.json_schema.languages import (
    NOTHING,
    Chars,
    Choice,
    Concatenation,
    Factoring,
    Language,
    Repeat,
    TooAlikeError,
    restricted,
)
from lmdeploy.json_schema.patterns import PatternError, language_of

# By how many bytes UTF-8 takes. In a class that has characters of two and of three bytes, or of three and of four,
# xgrammar 0.2.8 takes sequences of bytes for characters that are none.
_UTF8: tuple[Ranges, ...] = (((0, 0x7FF),), ((0x800, 0xFFFF),), ((0x10000, charsets.LAST),))
_PLAIN = " _!\"#%&',/:;<=>@`~"  # mean themselves everywhere; xgrammar warns of escapes that nothing needs


@lru_cache(maxsize=256)
def expression_of(language: Language) -> str | None:
    """Return the expression that the grammar engine keeps strings to; None: none has plain characters alone.

    It names characters alone, so that nothing depends on what the engine takes a class for. Of options that begin
    alike, xgrammar 0.2.8 would take some for one another; raises `PatternError` where they do so for too long.
    """
    plain = restricted(language, charsets.PLAIN)
    return None if plain == NOTHING else f"^({_written(_distinguished(plain))})$"


def without(expression: str, characters: str) -> str | None:
    """Return an expression of the strings that have none of `characters`; None: there are none."""
    kept = restricted(language_of(expression), charsets.complement(charsets.of(characters)))
    return expression_of(kept)


def body_of_rule(expression: str, characters: str) -> str | None:
    """Return what `without` describes, as the body of a rule in EBNF."""
    kept = without(expression, characters)
    return None if kept is None else _rule(_distinguished(language_of(kept)))


def full_match(pattern: str) -> str:
    """Return the expression that the grammar engine keeps a whole text to."""
    return f"^({_written(_distinguished(language_of(f'^(?:{pattern})$')))})$"


def _distinguished(language: Language) -> Language:
    try:
        return Factoring().of(language)
    except TooAlikeError as error:
        raise PatternError(str(error)) from None


def _written(language: Language) -> str:
    match language:
        case Chars(ranges):
            classes = [_class_of(part) for each in _UTF8 if (part := charsets.intersection(ranges, each))]
            return classes[0] if len(classes) == 1 else f"({'|'.join(classes)})"
        case Concatenation(parts):
            return "".join(_grouped(part) if isinstance(part, Choice) else _written(part) for part in parts)
        case Choice(options):
            return "|".join(map(_written, options))
        case Repeat(body, low, high):
            inner = _written(body) if isinstance(body, Chars) else _grouped(body)
            match low, high:
                case 0, None:
                    return inner + "*"
                case 1, None:
                    return inner + "+"
                case 0, 1:  # not `(...)?`, of which xgrammar 0.2.8 also takes beginnings
                    return inner + "?" if isinstance(body, Chars) else f"({_written(body)}|)"
                case _ if low == high:
                    return f"{inner}{{{low}}}"
                case _, None if not isinstance(body, Chars):  # nor `(...){2,}`, which it gets wrong as well
                    return f"{inner}{{{low}}}{inner}*"
            return f"{inner}{{{low},{'' if high is None else high}}}"


def _class_of(ranges: Ranges) -> str:
    if charsets.size(ranges) == 1:
        return _character(ranges[0][0])
    return "[" + "".join(_range(*each) for each in ranges) + "]"


def _grouped(language: Language) -> str:
    return f"({_written(language)})"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    character = chr(code)
    if 0x20 <= code < 0x7F:
        return character if character.isalnum() or character in _PLAIN else f"\\{character}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def _rule(language: Language) -> str:
    """As `_written`, in EBNF."""
    match language:
        case Chars(ranges):
            classes = [_class_in_rule(part) for each in _UTF8 if (part := charsets.intersection(ranges, each))]
            return classes[0] if len(classes) == 1 else f"({' | '.join(classes)})"
        case Concatenation(parts):
            return " ".join(f"({_rule(part)})" for part in parts) or json.dumps("")
        case Choice(options):
            return " | ".join(map(_rule, options))
        case Repeat(body, low, high):
            inner = f"({_rule(body)})"
            match low, high:
                case 0, None:
                    return inner + "*"
                case 0, 1:
                    return f'({_rule(body)} | "")'
                case _, None:
                    return f"{inner}{{{low}}} {inner}*"
            return f"{inner}{{{low},{high}}}"


def _class_in_rule(ranges: Ranges) -> str:
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"
