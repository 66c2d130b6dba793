"""Body of ``POST /v1/responses``."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmdeploy.messages import ALL_THAT_IS_LEFT, MAX_TOP_LOGPROBS
from openai_gateway.protocol.fields import (
    MAX_ITEMS,
    AnyText,
    FieldError,
    JsonObject,
    NotImplementedFields,
    ReasoningEffort,
    Strict,
    Text,
    Tokens,
    at_most,
    small,
    thinking_options,
)
from openai_gateway.protocol.generation import SamplingFields
from openai_gateway.protocol.tools import MAX_TOOLS, Function, FunctionName, Tool


class ContentPart(Strict):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: AnyText


class ImagePart(Strict):
    """A picture in a message, for models that see."""

    type: Literal["input_image"]
    image_url: AnyText
    detail: Literal["auto", "low", "medium", "high"] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the part as it is in chat completions."""
        said = {} if self.detail is None else {"detail": self.detail}
        return {"type": "image_url", "image_url": {"url": self.image_url, **said}}


class InputMessage(Strict):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: (
        AnyText
        | Annotated[
            list[Annotated[ContentPart | ImagePart, Field(discriminator="type")]],
            Field(min_length=1, fail_fast=True),
            BeforeValidator(at_most(MAX_ITEMS)),
        ]
    )

    @property
    def shown(self) -> Any:
        """The content as it is shown to the model: text, or parts where there are pictures."""
        if isinstance(self.content, str):
            return self.content
        if all(isinstance(part, ContentPart) for part in self.content):
            return "".join(part.text for part in self.content if isinstance(part, ContentPart))
        return [
            {"type": "text", "text": part.text} if isinstance(part, ContentPart) else part.for_template()
            for part in self.content
        ]


class InputCall(Strict):
    """A call the model made earlier."""

    type: Literal["function_call"]
    call_id: AnyText
    name: AnyText
    arguments: AnyText


class InputCallOutput(Strict):
    """What a call returned."""

    type: Literal["function_call_output"]
    call_id: AnyText
    output: (
        AnyText | Annotated[list[ContentPart], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
    )

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


class ReasoningText(Strict):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: AnyText


class InputReasoning(Strict):
    """What the model thought earlier."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(part.text for part in self.content or ())


InputItem = InputMessage | InputCall | InputCallOutput | InputReasoning


class ResponsesTool(Function):
    """A function the model may call."""

    type: Literal["function"]

    def as_tool(self) -> Tool:
        """Return the tool in the form of chat completions."""
        return Tool(type="function", function=Function(**self.model_dump(exclude={"type"})))


ResponsesTools = Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(small)]


class NamedChoice(Strict):
    """The function to call."""

    type: Literal["function"]
    name: FunctionName


class TextFormat(Strict):
    """``text.format``."""

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    description: AnyText | None = None

    def for_engine(self) -> dict[str, Any] | None:
        """Return the engine's form; None: no constraint."""
        if self.type == "text":
            return None
        if self.type == "json_object" or self.schema_ is None:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": self.name or "answer", "schema": self.schema_}}


class TextSettings(Strict):
    """``text`` of a request."""

    format: TextFormat | None = None


class ReasoningSettings(Strict):
    """``reasoning`` of a request."""

    effort: ReasoningEffort | None = None


class ResponsesRequest(SamplingFields):
    """Body of ``POST /v1/responses``. Nothing is stored."""

    not_implemented: ClassVar[NotImplementedFields] = {
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "max_tool_calls": (),
    }

    model: Text
    input: Text | Annotated[list[InputItem], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
    instructions: AnyText | None = None
    max_output_tokens: Tokens | None = None
    tools: ResponsesTools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    include: Annotated[list[AnyText], Field(max_length=32, fail_fast=True)] | None = None
    metadata: Annotated[dict[AnyText, AnyText], BeforeValidator(at_most(64)), Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ResponsesRequest:
        if self.tool_choice not in (None, "none", "auto") and not self.forced_tools:
            raise FieldError("tool_choice", "tool_choice must be about one of tools")
        if self.forced_tools and self.grammar is not None:
            raise FieldError("text", "text.format cannot be combined with a tool_choice that forces a call")
        return self

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools the model may call."""
        return [] if self.tool_choice == "none" else [tool.as_tool() for tool in self.tools or ()]

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which one has to be called; none: the model decides."""
        if isinstance(self.tool_choice, NamedChoice):
            return [tool for tool in self.usable_tools if tool.function.name == self.tool_choice.name]
        return self.usable_tools if self.tool_choice == "required" else []

    @property
    def grammar(self) -> dict[str, Any] | None:
        """What the answer has to look like, in the engine's form."""
        return self.text.format.for_engine() if self.text and self.text.format else None

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template."""
        return thinking_options(self.reasoning.effort if self.reasoning else None, None)

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar says what the whole answer looks like: it leaves no room for thoughts."""
        return self.grammar is not None or bool(self.forced_tools)

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are part of the answer."""
        return "message.output_text.logprobs" in (self.include or ())

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates read it."""
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
                case InputCall():
                    if not messages or "tool_calls" not in messages[-1]:
                        messages.append({"role": "assistant", "content": "", "tool_calls": []} | thought)
                        thought = {}
                    function = {"name": item.name, "arguments": item.arguments}
                    messages[-1]["tool_calls"].append({"id": item.call_id, "type": "function", "function": function})
                case InputCallOutput():
                    messages.append({"role": "tool", "content": item.text, "tool_call_id": item.call_id})
        return messages

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, and what from."""
        return super().generation_inputs() | {
            "messages": self.messages,
            "template_options": self.template_options,
            "want_cached_len": True,
            "max_new_tokens": self.max_output_tokens or ALL_THAT_IS_LEFT,
            "response_format": self.grammar,
            "logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
        }

    def echoed(self) -> dict[str, Any]:
        """Return the members of a response that repeat the request."""
        choice = self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "store": False,
            "temperature": self.temperature,
            "text": {"format": self._echoed_format()},
            "tool_choice": choice.model_dump() if isinstance(choice, NamedChoice) else choice or "auto",
            "tools": [tool.model_dump() for tool in self.tools or ()],
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }

    def _echoed_format(self) -> dict[str, Any]:
        if self.text is None or self.text.format is None:
            return {"type": "text"}
        shown: dict[str, Any] = json.loads(self.text.format.model_dump_json(by_alias=True, exclude_none=True))
        return shown
