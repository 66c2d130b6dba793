"""Response formats of models that reason first: the format holds what comes after the reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmdeploy.templates.thinking import ThinkingTags
from lmdeploy.templates.tool_call_formats.grammar import Grammar, any_of, constant, json_value, sequence, tag
from openai_gateway.errors import ApiError

_ENDS = ("before_answer", "before_call", "after_answer")  # of what comes after reasoning
_BLANKS: Grammar = {"type": "regex", "pattern": r"[ \n]{0,2}"}


def after_reasoning(
    response_format: Mapping[str, Any],  # the engine's, of what comes after
    tags: ThinkingTags,  # around the reasoning
    *,
    begins_inside: bool,  # the prompt ended with the opening tag: there is reasoning. Else there may be
    is_call: bool,  # what comes after is a call, not an answer
    budget: int | None = None,  # tokens that reasoning may take; None: any number
) -> dict[str, Any]:
    """Return a ``response_format`` whose text may come after reasoning.

    Raises `ApiError` if the format is a Lark grammar.
    """
    thought = {"type": "any_text", "excludes": [tags.end]} | ({} if budget is None else {"max_tokens": budget})
    reasoning = tag("" if begins_inside else tags.begin, thought, tags.end)
    before = tags.before_call if is_call else tags.before_answer
    alone = "" if is_call else next(iter(tags.before_answer_alone), "")
    opening = sequence([reasoning, _BLANKS, constant(before)])
    if not begins_inside:
        without = constant(alone)
        opening = (
            {"type": "or", "elements": [opening, without]} if without else {"type": "optional", "content": opening}
        )
    content = _as_tag(response_format)
    after = None if is_call else constant(tags.after_answer)
    return {"type": "structural_tag", "structural_tag": sequence([opening, content, after])}


def or_calls(response_format: Mapping[str, Any], calls: Grammar, tags: ThinkingTags | None) -> dict[str, Any] | None:
    """Return a ``response_format`` of a text that it describes, or of calls; None: there is no grammar of both.

    ``response_format``: the engine's, of the text. ``calls``: the grammar of the calls. ``tags``: around
    the reasoning. Where a text and a call begin or end with different tags, there is none of both.
    """
    if response_format["type"] == "lark" or (tags and any(getattr(tags, end) for end in _ENDS)):
        return None
    return {"type": "structural_tag", "structural_tag": any_of([_as_tag(response_format), calls])}


def _as_tag(response_format: Mapping[str, Any]) -> Grammar:
    """Return a format as a part of a structural tag."""
    match response_format["type"]:
        case "json_schema":
            given = response_format["json_schema"]
            if "schema" not in given:
                return json_value(given)
            options = {key: given[key] for key in ("property_order", "additional") if key in given}
            return json_value(given["schema"]) | options
        case "regex_schema":
            return {"type": "regex", "pattern": response_format["regex_schema"]}
        case "grammar":
            return {"type": "grammar", "grammar": response_format["grammar"]}
        case "lark":
            message = "a Lark grammar cannot follow reasoning: write it in EBNF, or turn thinking off"
            raise ApiError(400, message, param="guided_grammar")
        case "structural_tag":
            tags: Grammar = response_format["structural_tag"]
            return tags
    return json_value({"type": "object"})
