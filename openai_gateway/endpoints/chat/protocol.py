"""Body and answer of ``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from lmdeploy.messages import ALL_THAT_IS_LEFT, MAX_TOP_LOGPROBS
from openai_gateway.protocol.fields import (
    MAX_INT32,
    FieldError,
    JsonObject,
    NotImplementedFields,
    ReasoningEffort,
    Text,
    Tokens,
    thinking_options,
)
from openai_gateway.protocol.generation import GenerationFields
from openai_gateway.protocol.messages import Messages
from openai_gateway.protocol.outputs import ChatLogprobs, PromptLogprobs, Usage
from openai_gateway.protocol.structured import StructuredFields
from openai_gateway.protocol.tools import NamedToolChoice, Tool, ToolCall, ToolChoice, Tools

# A template may do anything with them, in a sandbox: they are few.
TemplateOptions = Annotated[JsonObject, Field(max_length=32)]


class ChatCompletionRequest(GenerationFields, StructuredFields):
    """Body of ``POST /v1/chat/completions``."""

    not_implemented: ClassVar[NotImplementedFields] = {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
    }

    messages: Messages | Text
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = Field(None, ge=0, le=MAX_INT32)
    chat_template_kwargs: TemplateOptions | None = None
    include_reasoning: bool | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatCompletionRequest:
        given = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(given) > 1:
            raise FieldError("max_tokens", "max_tokens and max_completion_tokens must be equal when both are given")
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.tool_choice in (None, "none", "auto"):
            return self
        if not self.tools:
            raise FieldError("tool_choice", "tool_choice needs tools")
        if isinstance(self.messages, str):
            raise FieldError("tools", "tools need messages as a list, got a string")
        if isinstance(self.tool_choice, NamedToolChoice):
            name = self.tool_choice.function.name
            if name not in {tool.function.name for tool in self.tools}:
                raise FieldError("tool_choice", f"tool_choice must name one of tools, got {name!r}")
        if self.grammar is not None:
            raise FieldError(
                "response_format", "response_format cannot be combined with a tool_choice that forces a call"
            )
        return self

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template."""
        return thinking_options(self.reasoning_effort, self.enable_thinking) | (self.chat_template_kwargs or {})

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar says what the whole answer looks like: it leaves no room for thoughts."""
        return bool(self.forced_tools) or self.grammar is not None

    @property
    def token_limit(self) -> int:
        """Most tokens to generate, or ``ALL_THAT_IS_LEFT``."""
        return self.max_completion_tokens or self.max_tokens or ALL_THAT_IS_LEFT

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools the model may call."""
        return [] if self.tool_choice == "none" or isinstance(self.messages, str) else self.tools or []

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which one has to be called; none: the model decides."""
        if isinstance(self.tool_choice, NamedToolChoice):
            name = self.tool_choice.function.name
            return [tool for tool in self.usable_tools if tool.function.name == name]
        return self.usable_tools if self.tool_choice == "required" else []

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        inputs = {"logprobs": (self.top_logprobs or 0) if self.logprobs else None, "response_format": self.grammar}
        return super().generation_inputs() | inputs | {"want_token_ids": bool(self.return_token_ids)}


class ChatMessage(BaseModel):
    """The answer's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """One answer of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    """Answer of ``POST /v1/chat/completions`` without streaming."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
