"""Calls whose arguments each are between their own tags."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from lmdeploy.json_schema import LOOSE_JSON, Rules
from lmdeploy.json_schema.charsets import complement, of
from lmdeploy.json_schema.expressions import body_of
from lmdeploy.json_schema.languages import NOTHING, restricted
from lmdeploy.json_schema.plans import Kind, ObjectPlan, Plan, Text
from lmdeploy.json_schema.sets import Conjunction, Values
from lmdeploy.templates.calls import Call, as_json
from lmdeploy.templates.schema_types import argument_types
from lmdeploy.templates.tool_call_formats.grammar import (
    CallGrammar,
    FunctionSchema,
    Grammar,
    any_of,
    further_members,
    rules_part,
    sequence,
    tag,
)

_IS_TEXT = "{is_text}"
_KEY = '[^<>"]{1,256}'
_NO_NAME = ""  # of no argument
_ANY_NAME: Grammar = {"type": "regex", "pattern": "[A-Za-z_][A-Za-z0-9_]{0,63}"}


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each call is the function's name, and then its arguments one by one. All tags are given as they are written."""

    # Around the name of the function
    call: str
    name_end: str
    # Before an argument's name, between the name and the value, and after the value. Where the value says of itself
    # whether it is text, ``{is_text}`` stands for ``true`` or ``false``
    key: str
    value: str
    value_end: str
    call_end: str  # after the arguments
    section: tuple[str, str] = ("", "")  # around all calls, or around each; it is read around one or several
    is_section_per_call: bool = False
    separator: str = ""  # between two calls
    pads: bool = False  # line ends around values belong to the tags: one on each side is no part of the value
    # Type of an argument whose type the schema does not say: ``text``, or ``json`` where it can be
    untyped: Literal["text", "json"] = "text"
    # Whether ``true`` and the like are written in JSON or in Python
    words: Literal["json", "python", "python all"] = "json"

    def write(self, calls: Sequence[Call]) -> str:
        begin, end = self.section
        written = [self._call(call["function"]) for call in calls]
        if self.is_section_per_call:
            return self.separator.join(f"{begin}{call}{end}" for call in written)
        return f"{begin}{self.separator.join(written)}{end}"

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        begin, end = self.section
        before, after = (begin, end) if self.is_section_per_call else ("", "")
        tags = [
            tag(
                f"{before}{self.call}{function.name}{self.name_end}",
                self._arguments(function),
                self.call_end + after,
            )
            for function in functions
        ]
        if self.is_section_per_call or not begin:
            return CallGrammar(tags, separator=self.separator, trigger=(begin or self.call).strip())
        return CallGrammar(tags, begin, self.separator, end, begin.strip())

    @property
    def openings(self) -> tuple[str, ...]:
        """The tags that a call begins with: the section's, and the call's own, before which the former may lack."""
        return tuple(dict.fromkeys(word.strip() for word in (self.section[0], self.call) if word))

    @property
    def endings(self) -> tuple[str, ...]:
        """The tags that may end a call."""
        return tuple(dict.fromkeys(word.strip() for word in (self.call_end, self.section[1]) if word))

    @property
    def value_tag(self) -> str:
        """The tag after a value, without line ends."""
        return self.value_end.strip()

    @property
    def key_pattern(self) -> re.Pattern[str]:
        """Pattern before a value; its groups are ``key`` and, where the call has it, ``is_text``."""
        return _key_pattern(self.key, self.value)

    def _arguments(self, function: FunctionSchema) -> Grammar:
        """Return the grammar of a call's arguments, in the order of the schema."""
        rules, shapes = function.rules(LOOSE_JSON)
        return any_of([self._members(function, rules, shape) for shape in shapes])

    def _members(self, function: FunctionSchema, rules: Rules, shape: ObjectPlan) -> Grammar:
        elements: list[Grammar | None] = []
        for name, value, is_required in shape.members:
            if is_required or rules.is_productive(value):
                argument = self._argument(function, rules, name, value)
                elements.append(argument if is_required else {"type": "optional", "content": argument})
        if (further := further_members(rules, shape)) is not None:
            elements.append({"type": "star", "content": self._argument(function, rules, None, further)})
        return sequence(elements) if elements else {"type": "const_string", "value": ""}

    def _argument(self, function: FunctionSchema, rules: Rules, name: str | None, value: Conjunction) -> Grammar:
        """Return the grammar of an argument that is read as what its schema allows; name None: any name.

        Raises `ValueError` if all that its schema allows would be read as something else.
        """
        texts, others = _texts_and_others(rules.plans(value))
        types = argument_types(function.parameters, _NO_NAME if name is None else name)
        if _IS_TEXT in self.value:  # read as the call says
            written = [self._named(name, True, text) for text in self._texts(texts, ())]
            written += [self._named(name, False, rules_part(rules.grammar(rules.either(others))))] if others else []
        else:
            if not types and self.untyped == "text":
                types = ("string",)
            if next((kind for kind in types if kind != "null"), None) == "string":
                written = self._texts(texts, types)
                if "null" in types and any(isinstance(value, Values) and None in value.values for value in others):
                    written.append({"type": "const_string", "value": "null"})
            else:
                shapes = others + (texts if not types or "string" in types else [])
                written = [rules_part(rules.grammar(rules.either(shapes)))] if shapes else []
            written = [self._named(name, None, any_of(written))] if written else []
        if not written:
            raise ValueError(f"the type of {'further arguments' if name is None else repr(name)}, which reads as text")
        return any_of(written)

    def _named(self, name: str | None, is_text: bool | None, content: Grammar) -> Grammar:
        value = self.value.replace(_IS_TEXT, as_json(is_text))
        if name is not None:
            if not re.fullmatch(_KEY, name) or name != name.strip():
                raise ValueError(f"the name {name!r} in the keyword properties")
            return tag(f"{self.key}{name}{value}", content, self.value_end)
        return tag(self.key, sequence([_ANY_NAME, {"type": "const_string", "value": value}, content]), self.value_end)

    def _texts(self, plans: Sequence[Plan], types: Sequence[str]) -> list[Grammar]:
        """Return the grammars of strings, written without quotes and the beginning of the tag after them."""
        found: list[Grammar] = []
        for plan in plans:
            match plan:
                case Values(values):
                    words = ("null", "none") if "null" in types else ()
                    fitting = (value for value in values if self.value_tag not in value)
                    found += [
                        {"type": "const_string", "value": value}
                        for value in fitting
                        if value.strip().lower() not in words
                    ]
                case Text(language):
                    left = restricted(language, complement(of(self.value_tag[:1])))
                    found += [] if left == NOTHING else [rules_part(f"root ::= {body_of(left)}")]
                case _:
                    found.append(self._any_text)
        return found

    @property
    def _any_text(self) -> Grammar:
        return {"type": "any_text", "excludes": [self.value_tag]}

    def _call(self, function: dict[str, Any]) -> str:
        arguments = "".join(
            f"{self.key}{name}{self.value.replace(_IS_TEXT, as_json(isinstance(value, str)))}"
            f"{self._written(value)}{self.value_end}"
            for name, value in function["arguments"].items()
        )
        return f"{self.call}{function['name']}{self.name_end}{arguments}{self.call_end}"

    def _written(self, value: object) -> str:
        if isinstance(value, str):
            return value
        if self.words == "python all" or (self.words == "python" and not isinstance(value, (dict, list))):
            return str(value)
        return as_json(value)


def _texts_and_others(plans: Sequence[Plan]) -> tuple[list[Plan], list[Plan]]:
    """Return the plans of strings, and those of all else."""
    texts: list[Plan] = []
    others: list[Plan] = []
    for plan in plans:
        if isinstance(plan, Values):
            named = tuple(value for value in plan.values if isinstance(value, str))
            left = tuple(value for value in plan.values if not isinstance(value, str))
            texts += [Values(named)] if named else []
            others += [Values(left)] if left else []
        else:
            (texts if isinstance(plan, Text) or plan == Kind("string") else others).append(plan)
    return texts, others


@lru_cache(maxsize=32)
def _key_pattern(key: str, value: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in re.split(r"\s+", value.strip()) if part]
    between = r"\s*".join(parts) if "\n" in value.strip() else re.escape(value.strip())
    between = between.replace(re.escape(_IS_TEXT), "(?P<is_text>true|false)")
    return re.compile(f"{re.escape(key)}(?P<key>{_KEY}?){between}")
