"""Languages as rules of a grammar (EBNF), and as what Lark has in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges
from lmdeploy.json_schema.languages import Chars, Choice, Concatenation, Language, Repeat
from lmdeploy.json_schema.patterns import language_of_text

_TOKENS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]| ::= ')
_ESCAPE = re.compile(r"\\(?:u|U00)((?<=u)[0-9a-f]{4}|(?<=00)[0-9a-f]{6})")


def full_match(pattern: str) -> str:
    """Return the grammar that a whole text is held to; raise `PatternError`."""
    return f"root ::= {body_of(language_of_text(pattern))}"


def in_lark(rules: str) -> str:
    """Return rules that are made here as Lark writes them."""

    def token(found: re.Match[str]) -> str:
        if found[0] == " ::= ":
            return ": "
        if found[0][0] == '"':
            return found[0]
        return "/" + _ESCAPE.sub(r"\\u{\1}", found[0]).replace("/", r"\/") + "/"

    return _TOKENS.sub(token, rules)


def class_of(ranges: Ranges) -> str:
    """Return the class of some characters."""
    if charsets.size(ranges) == 1:
        return json.dumps(chr(ranges[0][0]), ensure_ascii=False)
    if (first := ranges[0])[0] == ord("^"):  # which xgrammar takes for a mark in Lark, escaped or not
        ranges = (*([(first[0] + 1, first[1])] if first[1] > first[0] else []), *ranges[1:], (first[0], first[0]))
    spans = sorted(map(_span, ranges), key=lambda span: not span[0].isalnum())
    return f"[{''.join(spans)}]"


def _span(span: tuple[int, int]) -> str:
    """Return a part of a class. One with escapes begins with one: Lark reads digits after an escape as part of it."""
    low, high = span
    if all(chr(code).isascii() and chr(code).isalnum() for code in span):
        ends = [chr(code) for code in span]
    else:
        ends = [f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}" for code in span]
    return ends[0] if low == high else "-".join(ends)


def body_of(language: Language, character: Callable[[Ranges], str] = class_of) -> str:
    """Return a language as the body of a rule; `character` writes one of some characters."""

    def grouped(part: Language) -> str:
        bare = body_of(part, character)
        return bare if isinstance(part, Chars | Concatenation | Repeat) else f"({bare})"

    match language:
        case Chars(ranges):
            return character(ranges)
        case Concatenation(parts):
            return " ".join(map(grouped, parts)) or '""'
        case Choice(options):
            return " | ".join(body_of(option, character) for option in options)
        case Repeat(body, low, high):
            bare = body_of(body, character)
            inner = bare if isinstance(body, Chars) else f"({bare})"
            match low, high:
                case 0, None:
                    return f"{inner}*"
                case 1, None:
                    return f"{inner}+"
                case 0, 1:
                    return f"{inner}?"
                case _ if low == high:
                    return f"{inner}{{{low}}}"
            return f"{inner}{{{low},{'' if high is None else high}}}"
