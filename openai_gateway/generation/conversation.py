"""Conversations of any API: the engine's request, and the parser of its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lmdeploy.serve.client import GenerateRequest
from lmdeploy.templates.thinking import Thinking
from lmdeploy.templates.tool_call_formats import GENERIC, ToolCallFormat
from lmdeploy.templates.tool_call_formats.grammar import CallGrammar, FunctionSchema
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway
from openai_gateway.generation.response import ResponseMachine
from openai_gateway.models import ServedModel
from openai_gateway.protocol.conversations import ConversationFields
from openai_gateway.protocol.tools import Tool
from openai_gateway.reasoning import InlineReasoning, ReasoningParser
from openai_gateway.reasoning_grammar import after_reasoning, or_calls
from openai_gateway.tools.parser import ToolCallParser


class Conversation:
    """A conversation with a model."""

    def __init__(self, body: ConversationFields, model: ServedModel, gateway: Gateway) -> None:
        # Has the settings and metrics of calls
        self._body, self._model, self._gateway = body, model, gateway
        self._messages = messages = body.conversation
        self._options = body.template_options
        self._thinking = None if body.continues or isinstance(messages, str) else model.thinking
        self._begins_inside = False
        if self._thinking is not None and not isinstance(messages, str):
            after_tool = bool(messages) and messages[-1].get("role") == "tool"
            self._begins_inside = self._thinking.begins_inside(self._options, after_tool=after_tool)

    def request(self, inputs: dict[str, Any], *, counts_reasoning: bool = True) -> GenerateRequest:
        """Return the request to the engine.

        Raises `ApiError` if a schema of a tool has a keyword that no grammar of the model's calls can hold. ``inputs``:
        fields of `GenerateRequest` that say how to generate. ``counts_reasoning``: whether the tokens of reasoning are
        reported.
        """
        body, thinking = self._body, self._thinking
        if isinstance(self._messages, str):  # LMDeploy completes a plain string without a chat template
            return GenerateRequest(text_input=self._messages, **inputs)
        form, several = self._model.tool_call_format, body.may_call_several
        tools = tool_inputs(body.usable_tools, body.forced_tools, inputs, form, several=several, thinking=thinking)
        inputs |= tools | {"messages": self._messages, "template_options": self._options}
        if thinking is not None:
            is_call = "response_format" in tools
            inputs |= self._reasoning_inputs(thinking, inputs, is_call=is_call, counts=counts_reasoning)
        return GenerateRequest(**inputs)

    def machine(self) -> ResponseMachine:
        """Return the parser of one response."""
        if isinstance(self._messages, str):
            return ResponseMachine()
        reasoning, new_calls = None, self._new_calls()
        if self._thinking is not None:
            parser = InlineReasoning if self._thinking.in_content else ReasoningParser
            # The parser of calls within reasoning is its own: its calls are no one's.
            reasoning = parser(
                self._thinking.tags,
                begins_inside=self._begins_inside,
                new_calls=new_calls,
                budget=self._body.reasoning_budget,
            )
        on_recovered = partial(self._gateway.metrics.responses.count_recovered, self._model.name)
        return ResponseMachine(reasoning, new_calls and new_calls(), self._body.max_calls, on_recovered)

    def _new_calls(self) -> Callable[[], ToolCallParser] | None:
        """Return the factory of parsers of calls; a forced call is looked for also where calls stay text otherwise.

        OpenAI's clients decode the arguments of strict tools themselves, and fail where they are unfinished. So such a
        call is reported when it is whole, unless a grammar sees to it that it will be.
        """
        if not (tools := [tool.function for tool in self._body.usable_tools]):
            return None
        is_forced, parser = bool(self._body.forced_tools), self._model.tool_call_parser
        return partial(
            ToolCallParser,
            {function.name: function.full_schema for function in tools},
            () if is_forced else {function.name for function in tools if function.strict},
            "auto" if is_forced and parser == "none" else parser,
            recovers=self._gateway.settings.tool_call_recovery,
        )

    def _reasoning_inputs(
        self, thinking: Thinking, inputs: Mapping[str, Any], *, is_call: bool, counts: bool
    ) -> dict[str, Any]:
        """Return the fields such that reasoning can be found, counted and ended.

        ``is_call``: the response format among them is that of calls.
        """
        tags, budget, begins_inside = thinking.tags, self._body.reasoning_budget, self._begins_inside
        fields: dict[str, Any] = {}
        if tags.are_special and inputs["skip_special_tokens"] is None:
            fields["skip_special_tokens"] = False
        if counts or budget is not None:
            fields["stream"] = True  # a whole answer does not say how many tokens a part has
        if (response_format := inputs.get("response_format")) is not None:
            fields["response_format"] = after_reasoning(
                response_format, tags, begins_inside=begins_inside, is_call=is_call, budget=budget
            )
        elif thinking.end_ids and (budget is not None or inputs.get("repetition_detection") != "off"):
            fields |= {
                "thinking_budget": budget,
                "thinking_begin": None if begins_inside else tags.begin,
                "thinking_end": tags.end,
                "thinking_end_ids": thinking.end_ids,
            }
        return fields


def tool_inputs(
    usable: Sequence[Tool],  # what the model may call
    forced: Sequence[Tool],  # of which it has to call one; none: it decides
    given: Mapping[str, Any],
    # How the model writes calls: those that are forced, and those of strict tools, are held to their schemas in it.
    # None: it is not known; forced calls are written as most models know it, others as they come
    form: ToolCallFormat | None = None,
    *,
    several: bool = True,  # whether the model may call more than once
    thinking: Thinking | None = None,  # how the model writes its reasoning
) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` that depend on tools.

    Raises `ApiError` if a schema has a keyword that no grammar of the format can hold.
    """
    inputs: dict[str, Any] = {}
    if usable:
        inputs["tools"] = [tool.for_template() for tool in usable]
        if given["skip_special_tokens"] is None:  # in many families the tags around calls are special tokens
            inputs["skip_special_tokens"] = False
    grammar = None
    if forced:
        grammar = _grammar_of(form or GENERIC, forced).calls(several=several)
    elif form and usable and (response_format := given.get("response_format")) is not None:
        calls = _grammar_of(form, _loosened(usable)).calls(several=several)
        if union := or_calls(response_format, calls, thinking.tags if thinking else None):
            inputs["response_format"] = union
    elif form and any(tool.function.strict for tool in usable):
        grammar = _grammar_of(form, _loosened(usable)).text(several=several)
    if grammar is not None:
        inputs["response_format"] = {"type": "structural_tag", "structural_tag": grammar}
    return inputs


def _grammar_of(form: ToolCallFormat, tools: Sequence[Tool]) -> CallGrammar:
    grammars = []
    for tool in tools:
        try:
            function = tool.function
            schema = FunctionSchema(function.name, function.full_schema, is_strict=bool(function.strict))
            grammars.append(form.grammar([schema]))
        except ValueError as error:
            message = f"a call of {tool.function.name} cannot be held to its schema: no grammar has {error}"
            raise ApiError(400, message, param="tools", code="invalid_function_parameters") from None
    return replace(grammars[0], tags=[tag for grammar in grammars for tag in grammar.tags])


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools with the schemas of the strict ones only."""
    return [tool if tool.function.strict else _loose(tool) for tool in tools]


def _loose(tool: Tool) -> Tool:
    return tool.model_copy(update={"function": tool.function.model_copy(update={"parameters": {"type": "object"}})})
