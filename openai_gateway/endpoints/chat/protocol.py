"""Body and response of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from lmdeploy.messages import ALL_THAT_IS_LEFT, MAX_TOP_LOGPROBS
from openai_gateway.protocol.conversations import ConversationFields
from openai_gateway.protocol.fields import (
    MAX_INT32,
    ONE_TIER,
    PROMPTS_ARE_CACHED,
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
from openai_gateway.protocol.tools import (
    MAX_TOOLS,
    AllowedToolsChoice,
    Function,
    FunctionCall,
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
)

if TYPE_CHECKING:
    from typing_extensions import Self

ReasonOfCalls = Literal["tool_calls", "function_call"]
# A template may do anything with them, in a sandbox: they are few.
TemplateOptions = Annotated[JsonObject, Field(max_length=32)]


class RenderingFields(ConversationFields):
    """Tools and chat template variables of a conversation, for every route that renders one."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="As tools, before there were any; the response then has function_call."
    )
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = Field(None, description="False: the prompt opens no turn of the assistant.")
    continue_final_message: bool | None = Field(None, description="The last message is the beginning of the response.")

    @model_validator(mode="after")
    def _tools_and_turns_fit_together(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise FieldError("add_generation_prompt", "add_generation_prompt must be false with continue_final_message")
        if self.functions and (self.tools or self.tool_choice):
            raise FieldError("functions", "functions and function_call cannot be combined with tools and tool_choice")
        if not self.functions and isinstance(self.function_call, NamedFunction):
            raise FieldError("function_call", "function_call needs functions")
        field = "function_call" if self.functions else "tool_choice"
        if self.chosen in (None, "none", "auto"):
            return self
        if not self.offered:
            raise FieldError("tool_choice", "tool_choice needs tools")
        known = {tool.function.name for tool in self.offered}
        if isinstance(self.chosen, NamedToolChoice):
            name = self.chosen.function.name
            if name not in known:
                raise FieldError(field, f"{field} must name one of {field.partition('_')[0]}s, got {name!r}")
        if isinstance(self.chosen, AllowedToolsChoice) and (odd := self.chosen.names - known):
            raise FieldError("tool_choice", f"tool_choice must name some of tools, got {min(odd)!r}")
        return self

    @cached_property
    def offered(self) -> list[Tool]:
        """The tools, which may have come as functions."""
        return [Tool(type="function", function=function) for function in self.functions or ()] or self.tools or []

    @property
    def chosen(self) -> ToolChoice | None:
        """Which of them are to be called."""
        if not self.functions:
            return self.tool_choice
        if isinstance(self.function_call, NamedFunction):
            return NamedToolChoice(type="function", function=self.function_call)
        return self.function_call

    @property
    def reason_of_calls(self) -> ReasonOfCalls:
        """Why a response with calls is finished."""
        return "function_call" if self.functions else "tool_calls"

    @property
    def continues(self) -> bool:
        return self.template_options.get("continue_final_message") is True

    @property
    def template_options(self) -> dict[str, Any]:
        turns = {
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }
        given = {name: value for name, value in turns.items() if value is not None}
        return thinking_options(self.reasoning_effort, self.enable_thinking) | given | (self.chat_template_kwargs or {})

    @property
    def names_a_tool(self) -> bool:
        return isinstance(self.chosen, NamedToolChoice)

    @property
    def calls_in_parallel(self) -> bool | None:
        """Whether the model may call more than once; None: not said. There is room for one call of functions."""
        return False if self.functions else self.parallel_tool_calls

    @property
    def usable_tools(self) -> list[Tool]:
        choice = self.chosen
        if choice == "none":
            return []
        if isinstance(choice, AllowedToolsChoice):
            return [tool for tool in self.offered if tool.function.name in choice.names]
        return self.offered

    @property
    def forced_tools(self) -> list[Tool]:
        match self.chosen:
            case NamedToolChoice(function=named):
                return [tool for tool in self.usable_tools if tool.function.name == named.name]
            case AllowedToolsChoice(allowed_tools=allowed):
                return self.usable_tools if allowed.mode == "required" else []
            case choice:
                return self.usable_tools if choice == "required" else []


class ChatCompletionRequest(RenderingFields, GenerationFields, StructuredFields):
    """Body of ``POST /v1/chat/completions``."""

    not_implemented: ClassVar[NotImplementedFields] = {
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "moderation": (),
        "chat_template": (),
        "documents": ([],),
        "echo": (False,),
    }
    no_effect: ClassVar[Mapping[str, str]] = {
        "store": "chat completions are not stored",
        "metadata": "chat completions are not stored",
        "prompt_cache_key": PROMPTS_ARE_CACHED,
        "prompt_cache_options": PROMPTS_ARE_CACHED,
        "prompt_cache_retention": PROMPTS_ARE_CACHED,
        "safety_identifier": "nobody is reported",
        "service_tier": ONE_TIER,
        "verbosity": "models have no such setting; ask for short answers in the prompt",
    }

    messages: Messages | Text
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    thinking_budget: int | None = Field(None, ge=0, le=MAX_INT32)
    include_reasoning: bool | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ChatCompletionRequest:
        given = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(given) > 1:
            raise FieldError("max_tokens", "max_tokens and max_completion_tokens must be equal when both are given")
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs to be true")
        if isinstance(self.messages, str) and self.chosen not in (None, "none", "auto"):
            raise FieldError("tools", "tools need messages as a list, got a string")
        return self

    @property
    def usable_tools(self) -> list[Tool]:
        return [] if isinstance(self.messages, str) else super().usable_tools

    @property
    def conversation(self) -> list[dict[str, Any]] | str:
        if isinstance(self.messages, str):
            return self.messages
        return [message.for_template() for message in self.messages]

    @property
    def reasoning_budget(self) -> int | None:
        return self.thinking_budget

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate."""
        return super().generation_inputs(sampling_defaults) | {
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "response_format": self.grammar,
            "max_new_tokens": self.max_completion_tokens or self.max_tokens or ALL_THAT_IS_LEFT,
        }


class ChatMessage(BaseModel):
    """The response's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChatChoice(BaseModel):
    """One response of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: Literal["repetition"] | None = None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    """Response of ``POST /v1/chat/completions`` without streaming."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
