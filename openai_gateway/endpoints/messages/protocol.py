"""Body of ``POST /v1/messages``, in the form of Anthropic's API (docs.anthropic.com, Messages)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from openai_gateway.endpoints.messages.blocks import (
    Block,
    LeftOutBlock,
    Texts,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    shown,
    system_prompt,
)
from openai_gateway.endpoints.messages.tools import ToolChoice, ToolParam
from openai_gateway.protocol.conversations import ConversationFields
from openai_gateway.protocol.fields import (
    MAX_INT32,
    MAX_ITEMS,
    ONE_TIER,
    PROMPTS_ARE_CACHED,
    AnyText,
    Closed,
    FieldError,
    Items,
    JsonObject,
    NotImplementedFields,
    Strict,
    Text,
    Tokens,
    at_most,
    small,
    thinking_options,
)
from openai_gateway.protocol.generation import SamplingFields, StopWord
from openai_gateway.protocol.response_format import schema_format
from openai_gateway.protocol.tools import MAX_TOOLS, Tool

_MOVED = (ToolUseBlock, ToolResultBlock, ThinkingBlock, LeftOutBlock)  # blocks that are no part of a message's content


class InputMessage(Strict):
    """A message of one side, or an instruction of the caller in between."""

    role: Literal["user", "assistant", "system"]
    content: AnyText | Items[Block]

    @model_validator(mode="after")
    def _has_content(self) -> InputMessage:
        if self.content == [] and self.role != "assistant":
            raise FieldError("content", f"content must have at least one block in a message of role {self.role}")
        return self

    def for_template(self) -> Iterator[dict[str, Any]]:
        """Yield the message as chat templates read it: what tools returned, in their own messages, first."""
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": shown(block.content or "")}
        blocks = [block for block in self.content if not isinstance(block, _MOVED)]
        message: dict[str, Any] = {"role": self.role, "content": shown(blocks)}
        if calls := self.calls:
            message["tool_calls"] = calls
        if reasoning := "".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock)):
            message["reasoning_content"] = reasoning
        if blocks or calls or reasoning:
            yield message

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls in it, as they are in chat completions."""
        blocks = () if isinstance(self.content, str) else self.content
        return [block.for_template() for block in blocks if isinstance(block, ToolUseBlock)]


class Metadata(Strict):
    """Who asks."""

    user_id: AnyText | None = None


class ThinkingConfig(Strict):
    """Whether the model is to think, and how many tokens it may take for that."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0, le=MAX_INT32)


class OutputFormat(Closed):
    """Format of a response's text."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")

    @property
    def for_engine(self) -> dict[str, Any]:
        """The engine's form."""
        return schema_format("response", self.schema_)


class OutputConfig(Strict):
    """How much the model is to do for its response, and what it has to look like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Prompted(ConversationFields):
    """Input of a response, and of the count of a prompt's tokens."""

    grammar_field: ClassVar = "output_config.format"

    model: Text
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
    system: Texts | None = None
    tools: Annotated[list[ToolParam], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(small)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="As output_config.format, which follows it.")

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Prompted:
        if self.grammar is not None and self.continues:
            raise FieldError("messages", "messages must not end with the assistant's where output_config.format is set")
        if self.messages[-1].role == "assistant" and self.messages[-1].calls:
            raise FieldError("messages", "messages must not end with a call of a tool: send what it returned")
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not self.forced_tools:
            raise FieldError("tool_choice", "tool_choice must be about one of tools")
        return self

    @property
    def grammar(self) -> dict[str, Any] | None:
        """Format of the response's text, in the engine's form; None: free text."""
        requested = (self.output_config and self.output_config.format) or self.output_format
        return requested.for_engine if requested else None

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates read it."""
        conversation = [message for given in self.messages for message in given.for_template()]
        if conversation and conversation[-1]["role"] == "assistant" and not self.continues:
            conversation.pop()  # nothing that could be continued
        if system := system_prompt(self.system):
            conversation.insert(0, {"role": "system", "content": system})
        return conversation

    @property
    def continues(self) -> bool:
        last = self.messages[-1]
        return last.role == "assistant" and any(message["content"] for message in last.for_template())

    @property
    def usable_tools(self) -> list[Tool]:
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.as_tool() for tool in self.tools or ()]

    @property
    def forced_tools(self) -> list[Tool]:
        choice = self.tool_choice
        if choice is None or choice.type not in ("any", "tool"):
            return []
        return [tool for tool in self.usable_tools if choice.type == "any" or tool.function.name == choice.name]

    @property
    def names_a_tool(self) -> bool:
        return self.tool_choice is not None and self.tool_choice.type == "tool"

    @property
    def calls_in_parallel(self) -> bool | None:
        alone = None if self.tool_choice is None else self.tool_choice.disable_parallel_tool_use
        return None if alone is None else not alone

    @property
    def reasoning_budget(self) -> int | None:
        return None if self.thinking is None else self.thinking.budget_tokens

    @property
    def template_options(self) -> dict[str, Any]:
        thinks = {"enabled": True, "disabled": False}.get(self.thinking.type) if self.thinking else None
        options = thinking_options(self.output_config.effort if self.output_config else None, thinks)
        return options | ({"continue_final_message": True} if self.continues else {})


class MessagesRequest(Prompted, SamplingFields):
    """Body of ``POST /v1/messages``."""

    not_implemented: ClassVar[NotImplementedFields] = {
        "mcp_servers": ([],),
        "container": (),
        "compaction": (),
        "thread": (),
    }
    no_effect: ClassVar[Mapping[str, str]] = {
        "cache_control": PROMPTS_ARE_CACHED,
        "context_management": "nothing is taken out of a conversation",
        "diagnostics": PROMPTS_ARE_CACHED,
        "fallbacks": "the model that is named answers",
        **dict.fromkeys(("billing_policy", "fallback_credit_token"), "nothing is billed"),
        **dict.fromkeys(("inference_geo", "service_tier", "speed"), ONE_TIER),
    }

    max_tokens: Tokens
    stop_sequences: Annotated[list[StopWord], Field(max_length=32, fail_fast=True)] | None = None
    metadata: Metadata | None = None

    @property
    def reports_reasoning(self) -> bool:
        """Whether the response contains reasoning."""
        return self.thinking is None or self.thinking.type != "disabled"

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate."""
        return super().generation_inputs(sampling_defaults) | {
            "return_cached_len": True,
            "max_new_tokens": self.max_tokens,
            "response_format": self.grammar,
            "stop_words": [*(self.stop_sequences or ())],
            "return_stop_string": bool(self.stop_sequences),
        }
