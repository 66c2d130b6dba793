"""Grammars in EBNF and Lark as xgrammar reads them, and the positions of their errors.

Expressions of Lark become plain characters, classes and counts, and schemas after ``%json`` grammars within. Anything
xgrammar would ignore, or reject without a reason, is rejected here.
"""

from __future__ import annotations

import json
import re
from bisect import bisect
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lmdeploy.json_schema import SchemaError, grammar_of
from lmdeploy.json_schema.expressions import body_of, in_lark
from lmdeploy.json_schema.patterns import PatternError, language_of_text

_TOKENS = r'"(?:\\.|[^"\\\n])*"|(?P<number>\d{10,})|\w+|(?P<open>")'
_EBNF = re.compile(
    rf"#[^\n]*|\[(?:\\.|[^\]\\\n])*\]|(?P<ahead>\(=)|(?P<bracket>\[)|(?P<regex>\bRegex\s*\()|{_TOKENS}", re.ASCII
)
_LARK = re.compile(
    r"(?://|#)[^\n]*|(?P<expression>/(?:\\.|[^/\\])+/)(?P<flags>\w*)|(?P<slash>/)|%(?P<directive>json|regex)\b\s*"
    rf'|(?P<temperature>temperature)\s*=|(?P<special><(?!\[))|(?P<string>"(?:\\.|[^"\\\n])*")i\b|{_TOKENS}',
    re.ASCII | re.DOTALL,
)
_UNSUPPORTED = {
    "ahead": "looking ahead, (=, is not supported",
    "bracket": "the [ has no ] on its line",
    "regex": "Regex(...) is not supported; write a regular expression as a rule, or as response format",
    "number": "numbers have at most 9 digits",
    "open": 'the " has no " on its line',
    "slash": "the regular expression is not closed",
    "special": "special tokens by their names are not supported; write <[number]>",
    "temperature": "a temperature of a rule is not supported",
}
_HALF = re.compile(r"\\(?:\\|u[dD][89a-fA-F]|U0000[dD][89a-fA-F])")  # of a surrogate pair; xgrammar would write it
_PLACE = re.compile(r"line (\d+), column (\d+): ")
# Of messages of xgrammar within messages: "[time] file:line: ", and the place in what another reader was given.
NOISE = re.compile(r"\[[0-9:]+\] \S+\.cc:\d+: |(Regex|EBNF) [a-z]+ error at (line \d+, column|position) \d+: ")
_MESSAGE = 400  # characters


class InvalidFormatError(ValueError):
    """An invalid format, or one that the engine cannot enforce; of a grammar, it names the line and column."""


@dataclass(slots=True)
class GrammarText:
    """A grammar, and the text that xgrammar reads in its place."""

    given: str
    root: str  # name of the first rule
    read: str = ""
    # Where a part begins in `read`, and where the same part begins in `given`.
    offsets: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def keep(self, end: int) -> None:
        """Take over the text up to `end`."""
        self.read += self.given[self._at : end]

    def replace(self, start: int, end: int, text: str) -> None:
        """Have `text` read in the place of a part."""
        self.keep(start)
        self.offsets.append((len(self.read), start))
        self.read += text
        self.offsets.append((len(self.read), end))

    @property
    def _at(self) -> int:
        """How much of `given` was taken over."""
        read, given = self.offsets[-1]
        return given + len(self.read) - read

    def fail(self, at: int, message: str) -> NoReturn:
        """Raise the error of what is at `at`."""
        raise InvalidFormatError(self._located(at, message)) from None

    def explain(self, message: str) -> str:
        """Return a message about `read` as one about `given`."""
        message = message.partition("\n")[0][:_MESSAGE]
        if not (found := _PLACE.search(message)):
            names = [*re.findall(r"the rule '(\w+)'", message), self.root]
            rules = (re.search(rf"^[ \t?!]*({name})\b", self.given, re.MULTILINE) for name in names)
            start, name = next(((rule.start(1), rule[1]) for rule in rules if rule), (0, self.root))
            return self._located(start, f"{name}: {NOISE.sub('', message)}")
        lines = self.read.split("\n")[: int(found[1])]
        at = len("\n".join([*lines[:-1], ""])) + len(lines[-1].encode()[: int(found[2]) - 1].decode(errors="ignore"))
        part = bisect(self.offsets, at, key=lambda offset: offset[0])
        last = self.offsets[part][1] if part < len(self.offsets) else len(self.given)
        read, given = self.offsets[part - 1]
        return self._located(min(given + at - read, last), NOISE.sub("", message[found.end() :]))

    def _located(self, at: int, message: str) -> str:
        line, column = self.given.count("\n", 0, at) + 1, at - self.given.rfind("\n", 0, at)
        return f"line {line}, column {column}: {message}"


def ebnf_text(grammar: str) -> GrammarText:
    """Return a grammar in EBNF, which stays as it is."""
    text = GrammarText(grammar, "root")
    for found in _EBNF.finditer(grammar):
        _check(text, found)
        if found[0][0] in '"[' and (
            half := next((escape for escape in _HALF.finditer(found[0]) if escape[0] != r"\\"), None)
        ):
            text.fail(found.start() + half.start(), "the escape names no character")
    text.keep(len(grammar))
    return text


def lark_text(grammar: str) -> GrammarText:
    """Return a grammar in Lark."""
    text = GrammarText(grammar, "start")
    at = 0
    while found := _LARK.search(grammar, at):
        _check(text, found)
        start, at = found.start(), found.end()
        if found["expression"]:
            text.replace(start, at, _expression(text, found))
        elif found["string"]:
            string = _string(text, start, found["string"])
            text.replace(start, at, in_lark(body_of(language_of_text(re.escape(string), "i"))))
        elif found["directive"] and grammar[at : at + 1] == "{":
            try:
                value, end = json.JSONDecoder().raw_decode(grammar, at)
            except ValueError as error:
                text.fail(at, str(error))
            if found["directive"] == "json":
                text.replace(start, end, _json(text, start, value))
            else:
                text.replace(at, end, _regex(text, start, value))
            at = end
        elif found[0].startswith('"'):
            _string(text, start, found[0])
    text.keep(len(grammar))
    return text


def _check(text: GrammarText, found: re.Match[str]) -> None:
    for name, message in _UNSUPPORTED.items():
        if name in found.re.groupindex and found[name]:
            text.fail(found.start(), message)


def _expression(text: GrammarText, found: re.Match[str]) -> str:
    pattern, flags = found["expression"][1:-1], found["flags"]
    if wrong := re.search("[^imsux]", flags):
        text.fail(found.start("flags") + wrong.start(), f"the flag {wrong[0]} of a regular expression is not supported")
    if "\n" in pattern and "x" not in flags and not re.match(r"\(\?[imsu]*x[imsu]*\)", pattern):
        text.fail(found.start(), "the regular expression is not closed on its line; only with flag x may it be")
    try:
        return f"({in_lark(body_of(language_of_text(pattern, flags)))})"
    except PatternError as error:
        text.fail(found.start() + 1 + error.at, f"the expression {error.reason}")


def _string(text: GrammarText, start: int, written: str) -> str:
    try:
        value: str = json.loads(written)
        value.encode()
        return value
    except ValueError:
        text.fail(start, f"the escapes of a string are those of JSON, got {written[:32]}")


def _json(text: GrammarText, at: int, schema: dict[str, Any]) -> str:
    try:
        rules = in_lark(grammar_of(schema))
    except SchemaError as error:
        text.fail(at, f"refused at {error}")
    return f"%lark {{\n{re.sub('^root:', 'start:', rules)}\n}}"


def _regex(text: GrammarText, at: int, value: dict[str, Any]) -> str:
    if len(value) != 1:
        text.fail(at, "%regex takes one of substring_chars, substring_words and substring_chunks")
    if isinstance(words := value.get("substring_words"), str):
        value = {"substring_chunks": re.findall(r"\w+|\W", words)}
    return json.dumps(value, ensure_ascii=False)
