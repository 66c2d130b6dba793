"""Requests and answers of the OpenAI API, with LMDeploy's further fields and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 1.0
DEFAULT_TOP_K = 40
DEFAULT_COMPLETION_TOKENS = 16
ALL_THAT_IS_LEFT = -1  # the engine's word for what the prompt leaves of the session length
MAX_INT32 = 2**31 - 1  # counts travel as int32

Tokens = Annotated[int, Field(ge=1, le=MAX_INT32)]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair; UTF-8 cannot
        raise PydanticCustomError("lone_surrogate", "Input should be text without lone surrogates") from None
    return text


AnyText = Annotated[str, AfterValidator(_encodable)]
Text = Annotated[AnyText, Field(min_length=1)]
StopWords = Text | list[Text]
FinishReason = Literal["stop", "length"]


class FieldError(ValueError):
    """A field is refused; `field` is its name and the text says everything."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class _Strict(BaseModel):
    """No value is converted; fields we do not know are ignored, as OpenAI's clients expect."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    # Fields of the API that are not implemented, with the values that ask for nothing beyond what is.
    # Any other value is refused: a client must not believe it was honoured.
    not_implemented: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_not_implemented(cls, fields: object) -> object:
        if isinstance(fields, Mapping):
            for name, neutral in cls.not_implemented.items():
                value = fields.get(name)
                if value is not None and value not in neutral:
                    raise FieldError(name, f"{name} is not supported by this server; leave it out")
        return fields


class StreamOptions(_Strict):
    """``stream_options`` of a request."""

    include_usage: bool | None = None


class GenerationFields(_Strict):
    """What both kinds of completion share. A null field has its default."""

    not_implemented = {
        "n": (1,),
        "logprobs": (False,),
        "logit_bias": ({},),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "min_p": (0,),
    }

    model: Text
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=MAX_INT32)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    max_tokens: Tokens | None = None
    min_new_tokens: int | None = Field(None, ge=0, le=MAX_INT32)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopWords | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        return {
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or (),
            "stream": bool(self.stream),
            "min_new_tokens": self.min_new_tokens,
            "temperature": DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            "top_p": DEFAULT_TOP_P if self.top_p is None else self.top_p,
            "top_k": DEFAULT_TOP_K if self.top_k is None else self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "random_seed": None if self.seed is None else self.seed % 2**64,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
        }


class TextPart(_Strict):
    """One part of a message's content; this server's models read text only."""

    type: Literal["text"]
    text: AnyText


class Message(_Strict):
    """One message of a conversation."""

    not_implemented = {"tool_calls": ([],), "function_call": (), "tool_call_id": ()}

    role: Literal["system", "developer", "user", "assistant"]
    content: AnyText | list[TextPart]
    name: AnyText | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.name is not None:
            message["name"] = self.name
        return message


class ChatCompletionRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``."""

    not_implemented = {
        **GenerationFields.not_implemented,
        "top_logprobs": (0,),
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "reasoning_effort": (),
        "web_search_options": (),
    }

    messages: Annotated[list[Message], Field(min_length=1)] | Text
    max_completion_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _one_token_limit(self) -> ChatCompletionRequest:
        given = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(given) > 1:
            raise FieldError("max_tokens", "max_tokens and max_completion_tokens must be equal when both are given")
        return self

    @property
    def token_limit(self) -> int:
        """Most tokens to generate, or ``ALL_THAT_IS_LEFT``."""
        return self.max_completion_tokens or self.max_tokens or ALL_THAT_IS_LEFT


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    not_implemented = {
        **GenerationFields.not_implemented,
        "logprobs": (),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: AnyText | Annotated[list[AnyText], Field(min_length=1, max_length=256)]

    @property
    def prompts(self) -> list[str]:
        """The prompts, one choice each."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def token_limit(self) -> int:
        """Most tokens to generate."""
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


class Usage(BaseModel):
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatMessage(BaseModel):
    """The answer's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    tool_calls: None = None


class ChatChoice(BaseModel):
    """One answer of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """Answer of ``POST /v1/chat/completions`` without streaming."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionChoice(BaseModel):
    """One answer of a completion."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason


class Completion(BaseModel):
    """Answer of ``POST /v1/completions`` without streaming."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
