"""Body of ``POST /v1/responses``."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmdeploy.messages import ALL_THAT_IS_LEFT, MAX_TOP_LOGPROBS
from openai_gateway.endpoints.responses.items import (
    InputCall,
    InputCallOutput,
    InputCustomCall,
    InputItems,
    InputMessage,
    InputReasoning,
)
from openai_gateway.endpoints.responses.tools import AllowedTools, NamedChoice, OfferedTools, OtherTool, ResponsesTools
from openai_gateway.protocol.conversations import ConversationFields
from openai_gateway.protocol.fields import (
    ONE_TIER,
    PROMPTS_ARE_CACHED,
    AnyText,
    Closed,
    FieldError,
    JsonObject,
    NotImplementedFields,
    ReasoningEffort,
    Strict,
    Text,
    Tokens,
    at_most,
    thinking_options,
)
from openai_gateway.protocol.generation import SamplingFields
from openai_gateway.protocol.response_format import schema_format
from openai_gateway.protocol.tools import Tool


class TextFormat(Closed):
    """``text.format``."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    description: AnyText | None = None

    def for_engine(self) -> dict[str, Any] | None:
        if self.type == "text":
            return None
        return schema_format(self.name or "response", self.schema_)


class TextSettings(Strict):
    """``text`` of a request."""

    format: TextFormat | None = None


class ReasoningSettings(Strict):
    """``reasoning`` of a request."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(ConversationFields, SamplingFields):
    """Body of ``POST /v1/responses``."""

    grammar_field: ClassVar = "text.format"
    not_implemented: ClassVar[NotImplementedFields] = {
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "moderation": (),
    }
    no_effect: ClassVar[Mapping[str, str]] = {
        "access_programs": "of OpenAI's accounts",
        "context_management": "nothing is taken out of a conversation",
        "image": "each image says itself how it is looked at",
        "max_tool_calls": "of tools that the server runs; there are none",
        "prompt_cache_key": f"repeated in the response; {PROMPTS_ARE_CACHED}",
        "prompt_cache_options": PROMPTS_ARE_CACHED,
        "prompt_cache_retention": PROMPTS_ARE_CACHED,
        "safety_identifier": "repeated in the response; nobody is reported",
        "service_tier": ONE_TIER,
        "stream_options": "events are not padded",
    }

    model: Text
    input: AnyText | InputItems
    previous_response_id: AnyText | None = Field(None, description="A stored response, which this one continues.")
    store: bool | None = Field(None, description="Whether the response is kept to be continued; null: it is.")
    instructions: AnyText | None = None
    max_output_tokens: Tokens | None = None
    tools: ResponsesTools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedTools | None = None
    max_tool_calls: int | None = Field(None, description="Of tools that the server runs; there are none.")
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Annotated[list[AnyText], Field(max_length=32, fail_fast=True)] | None = None
    prompt_cache_key: AnyText | None = Field(None, description="Repeated in the response; caching needs none.")
    safety_identifier: AnyText | None = Field(None, description="Repeated in the response.")
    metadata: Annotated[dict[AnyText, AnyText], BeforeValidator(at_most(64)), Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ResponsesRequest:
        if isinstance(self.tool_choice, AllowedTools) and not self.usable_tools:
            raise FieldError("tool_choice", "tool_choice must be about some of tools")
        if self._must_call and not self.forced_tools:
            raise FieldError("tool_choice", "tool_choice must be about one of tools")
        return self

    @property
    def limit_field(self) -> str:
        return "max_output_tokens"

    @cached_property
    def offered(self) -> OfferedTools:
        """The functions among ``tools``."""
        return OfferedTools(self.tools or ())

    @property
    def usable_tools(self) -> list[Tool]:
        if self.tool_choice == "none":
            return []
        tools = self.offered.functions
        if isinstance(self.tool_choice, AllowedTools):
            return [tool for shown, tool in tools.items() if self._is_named(shown, self.tool_choice.names)]
        return list(tools.values())

    def _is_named(self, shown: str, names: Container[str]) -> bool:
        return shown in names or self.offered.origin(shown)["name"] in names

    @property
    def _must_call(self) -> bool:
        choice = self.tool_choice
        return isinstance(choice, NamedChoice) or "required" in (choice, getattr(choice, "mode", None))

    @property
    def forced_tools(self) -> list[Tool]:
        if isinstance(self.tool_choice, NamedChoice):
            return [tool for tool in self.usable_tools if self._is_named(tool.function.name, {self.tool_choice.name})]
        return self.usable_tools if self._must_call else []

    @property
    def grammar(self) -> dict[str, Any] | None:
        """Format of the response, in the engine's form."""
        return self.text.format.for_engine() if self.text and self.text.format else None

    @property
    def template_options(self) -> dict[str, Any]:
        return thinking_options(self.reasoning.effort if self.reasoning else None, None)

    @property
    def names_a_tool(self) -> bool:
        return isinstance(self.tool_choice, NamedChoice)

    @property
    def calls_in_parallel(self) -> bool | None:
        return self.parallel_tool_calls

    @property
    def returns_logprobs(self) -> bool:
        """Whether log probabilities are part of the response."""
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates read them."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        thought: dict[str, Any] = {}  # before the assistant's next message
        for item in self.input:
            match item:
                case InputReasoning():
                    thought = {"reasoning_content": item.text} if item.text else {}
                case InputMessage():
                    role = "system" if item.role == "developer" else item.role
                    messages.append({"role": role, "content": item.shown} | (thought if role == "assistant" else {}))
                    thought = {}
                case InputCall() | InputCustomCall():
                    if thought or not messages or messages[-1]["role"] != "assistant":
                        messages.append({"role": "assistant", "content": ""} | thought)
                        thought = {}
                    shown = self.offered.shown(item.namespace, item.name)
                    function = {"name": shown, "arguments": item.arguments}
                    messages[-1].setdefault("tool_calls", []).append(
                        {"id": item.call_id, "type": "function", "function": function}
                    )
                case InputCallOutput():
                    messages.append({"role": "tool", "content": item.shown, "tool_call_id": item.call_id})
        return messages

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate."""
        return super().generation_inputs(sampling_defaults) | {
            "return_cached_len": True,
            "max_new_tokens": self.max_output_tokens or ALL_THAT_IS_LEFT,
            "response_format": self.grammar,
            "logprobs": (self.top_logprobs or 0) if self.returns_logprobs else None,
        }

    def echoed(self) -> dict[str, Any]:
        """Return the members of a response that repeat the request."""
        choice = self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": (self.reasoning or ReasoningSettings()).model_dump(),
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "temperature": self.temperature,
            "text": {"format": self._echoed_format()},
            "tool_choice": choice.model_dump() if isinstance(choice, Strict) else choice or "auto",
            "tools": [tool.model_dump() for tool in self.tools or () if not isinstance(tool, OtherTool)],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        } | ({"unsupported_tools": self.offered.left_out} if self.offered.left_out else {})

    def _echoed_format(self) -> dict[str, Any]:
        if self.text is None or self.text.format is None:
            return {"type": "text"}
        shown: dict[str, Any] = json.loads(self.text.format.model_dump_json(by_alias=True, exclude_none=True))
        return shown
