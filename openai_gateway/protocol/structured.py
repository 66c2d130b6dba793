"""Response formats of OpenAI (``response_format``) and of vLLM's clients."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from openai_gateway.protocol.fields import Closed, FieldError, JsonObject, Strict, Text, TokenId
from openai_gateway.protocol.response_format import ResponseFormat, schema_format

_EBNF_RULE = re.compile(r"^[ \t]*[\w.-]+[ \t]*::=", re.MULTILINE)  # Lark's rules have a single colon
_MAX_SCHEMA_TEXT = 65536  # characters; the engine takes no larger schemas


def _of_text(value: object) -> object:
    """Return the value that a text spells; what is none stays a text, and is refused as one."""
    if not isinstance(value, str) or len(value) > _MAX_SCHEMA_TEXT:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


Schema = Annotated[JsonObject, BeforeValidator(_of_text)]
Choices = Annotated[list[Text], Field(min_length=1, max_length=1024, fail_fast=True)]


class StructuredOutputs(Closed):
    """vLLM's ``structured_outputs``: one of these."""

    not_implemented: ClassVar = {"structural_tag": (), "disable_additional_properties": (False,)}
    no_effect: ClassVar = dict.fromkeys(
        ("disable_fallback", "disable_any_whitespace", "whitespace_pattern"), "a setting of vLLM's backends"
    )

    json_: Schema | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class StructuredFields(Strict):
    """The fields of both kinds of completion that say what a response looks like; at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # The names that vLLM's clients had for the members of `structured_outputs`.
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=1024, fail_fast=True)] | None = Field(
        None, description="The response has these tokens alone, and at least one."
    )

    _grammar: dict[str, Any] | None = PrivateAttr(None)
    _grammar_field: str = PrivateAttr("response_format")

    @model_validator(mode="after")
    def _one_form(self) -> StructuredFields:
        forms = _forms("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)
        if outputs := self.structured_outputs:
            forms |= _forms("structured_outputs.", outputs.json_, outputs.regex, outputs.choice, outputs.grammar)
            forms |= {"structured_outputs.json_object": {"type": "json_object"}} if outputs.json_object else {}
        if self.allowed_token_ids:
            tokens = [{"type": "token", "token": token} for token in dict.fromkeys(self.allowed_token_ids)]
            tag = {"type": "plus", "content": {"type": "or", "elements": tokens}}
            forms["allowed_token_ids"] = {"type": "structural_tag", "structural_tag": tag}
        if self.response_format and (form := self.response_format.for_engine()):
            forms[f"response_format.{self.response_format.holder}"] = form
        if any(form != other for form, other in pairwise(forms.values())):
            raise FieldError(
                "structured_outputs",
                "of response_format, allowed_token_ids, guided_* and the members of structured_outputs, only one can "
                "be given",
            )
        self._grammar = next(iter(forms.values()), None)
        self._grammar_field = next(
            (name for name in forms if not name.startswith("response_format")), "response_format"
        )
        return self

    @property
    def grammar(self) -> dict[str, Any] | None:
        """The engine's ``response_format``; None: free text."""
        return self._grammar

    @property
    def grammar_field(self) -> str:
        """The field that `grammar` comes from, as the client sent it."""
        return self._grammar_field


def choice_grammar(choices: list[str]) -> str:
    """Return the grammar (EBNF) of a response that is one of some texts."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _forms(
    prefix: str, schema: dict[str, Any] | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> dict[str, dict[str, Any]]:
    """Return the engine's form of each that is given, by the name of its field."""
    forms: dict[str, dict[str, Any]] = {}
    if schema is not None:
        forms[f"{prefix}json"] = schema_format("json", schema)
    if regex is not None:
        forms[f"{prefix}regex"] = {"type": "regex_schema", "regex_schema": regex}
    if choice is not None:
        forms[f"{prefix}choice"] = {"type": "grammar", "grammar": choice_grammar(choice)}
    if grammar is not None:
        kind = "grammar" if _EBNF_RULE.search(grammar) else "lark"
        forms[f"{prefix}grammar"] = {"type": kind, kind: grammar}
    return forms
