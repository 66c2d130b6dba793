"""Languages as the grammar engine is given them: as regular expressions, and as rules of a grammar (EBNF)."""

from __future__ import annotations

from functools import lru_cache

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges
from lmdeploy.json_schema.languages import (
    EMPTY,
    NOTHING,
    Chars,
    Choice,
    Concatenation,
    Factoring,
    Language,
    Repeat,
    TooAlikeError,
    concatenation,
    restricted,
)
from lmdeploy.json_schema.patterns import PatternError, language_of, language_of_text

# By how many bytes UTF-8 takes. In a class that has characters of two and of three bytes, or of three and of four,
# xgrammar 0.2.8 takes sequences of bytes for characters that are none.
_UTF8: tuple[Ranges, ...] = (((0, 0x7FF),), ((0x800, 0xFFFF),), ((0x10000, charsets.LAST),))
_PLAIN = " _!\"#%&',:;<=>@`~"  # mean themselves everywhere; xgrammar warns of escapes that nothing needs


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
    kept = restricted(language_of(expression, len(expression)), charsets.complement(charsets.of(characters)))
    return expression_of(kept)


def body_of_rule(expression: str, characters: str) -> str | None:
    """Return the language of `without`, as the body of a rule in EBNF."""
    kept = without(expression, characters)
    return None if kept is None else _written(_distinguished(language_of(kept, len(kept))), is_rule=True)


def full_match(pattern: str) -> str:
    """Return the expression that the grammar engine keeps a whole text to; raise `PatternError`."""
    return f"^({_written(language_of_text(pattern))})$"


def rule_of_text(pattern: str, flags: str) -> str:
    """Return an expression with flags as a part of a rule in Lark; raise `PatternError`."""
    return _in_lark(language_of_text(pattern, flags))


def text_in_any_case(string: str) -> str:
    """Return a string in any case as a part of a rule in Lark."""
    return _in_lark(concatenation(Chars(charsets.in_any_case(charsets.of(each))) for each in string))


def _in_lark(language: Language) -> str:
    return '""' if language == EMPTY else f"/{_written(language)}/"


def _distinguished(language: Language) -> Language:
    try:
        return Factoring().of(language)
    except TooAlikeError as error:
        raise PatternError(str(error)) from None


def _written(language: Language, *, is_rule: bool = False) -> str:
    """Return the expression of a language, or the body of a rule in EBNF."""
    blank, empty = (" ", '""') if is_rule else ("", "")

    def grouped(part: Language) -> str:
        return f"({_written(part, is_rule=is_rule)})"

    match language:
        case Chars(ranges):
            classes = [_class_of(part, is_rule) for each in _UTF8 if (part := charsets.intersection(ranges, each))]
            return classes[0] if len(classes) == 1 else f"({f'{blank}|{blank}'.join(classes)})"
        case Concatenation(parts):
            texts = (grouped(part) if isinstance(part, Choice) else _written(part, is_rule=is_rule) for part in parts)
            return blank.join(texts) or empty
        case Choice(options):
            return f"{blank}|{blank}".join(_written(option, is_rule=is_rule) for option in options)
        case Repeat(body, low, high):
            is_one = isinstance(body, Chars)
            bare = _written(body, is_rule=is_rule)
            inner = bare if is_one else f"({bare})"
            match low, high:
                case 0, None:
                    return inner + "*"
                case 1, None:
                    return inner + "+"
                case 0, 1:  # not `(...)?`, of which xgrammar 0.2.8 also takes beginnings
                    return inner + "?" if is_one else f"({bare}{blank}|{blank}{empty})"
                case _ if low == high:
                    return f"{inner}{{{low}}}"
                case _, None if is_rule or not is_one:  # nor `(...){2,}`, which it gets wrong as well
                    return f"{inner}{{{low}}}{blank}{inner}*"
            return f"{inner}{{{low},{'' if high is None else high}}}"


def _class_of(ranges: Ranges, is_rule: bool) -> str:
    if is_rule:
        return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"
    if charsets.size(ranges) == 1:
        return _character(ranges[0][0])
    # xgrammar 0.2.8 takes a leading ^, escaped or not, for the mark of the opposite class, and an escape with a
    # hexadecimal digit after it for one number.
    ordered = sorted(ranges, key=lambda each: each[0] < 0x20)
    if (first := ordered[0])[0] == ord("^"):
        ordered = [*([(first[0] + 1, first[1])] if first[1] > first[0] else []), *ordered[1:], (first[0], first[0])]
    ends = ((_character(low), _character(high)) for low, high in ordered)
    return "[" + "".join(low if low == high else f"{low}-{high}" for low, high in ends) + "]"


def _character(code: int) -> str:
    character = chr(code)
    if 0x20 <= code < 0x7F:
        return character if character.isalnum() or character in _PLAIN else f"\\{character}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"
