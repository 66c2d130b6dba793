"""Body and response of LMDeploy's ``POST /v1/chat/interactive``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from lmdeploy.messages import ALL_THAT_IS_LEFT
from lmdeploy.serve.request import FIELDS
from openai_gateway.protocol.fields import MAX_INT32, AnyText, FieldError, Items
from openai_gateway.protocol.generation import SamplingFields
from openai_gateway.protocol.messages import Message

NO_SESSION = -1
_OF_CANCEL = ("prompt", "session_id", "stream", "cancel")


class InteractiveRequest(SamplingFields):
    """Body of ``POST /v1/chat/interactive``."""

    defaults: ClassVar[Mapping[str, Any]] = {**SamplingFields.defaults, "temperature": 0.8, "top_p": 0.8}

    # As LMDeploy's server; OpenAI's clients may say 0 and -1.
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description=FIELDS["top_p"].description)
    top_k: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = Field(
        None, description="Keep this many of the most likely tokens; 0: all."
    )
    prompt: AnyText | Items[Message]
    image_url: AnyText | Items[AnyText] | None = None
    adapter_name: AnyText | None = None
    interactive_mode: bool | None = None
    request_output_len: int | None = Field(None, ge=0, le=MAX_INT32)
    cancel: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _cancel_needs_only_its_session(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and fields.get("cancel") is True:
            return {name: fields[name] for name in _OF_CANCEL if name in fields}
        return fields

    @model_validator(mode="after")
    def _fields_fit_together(self) -> InteractiveRequest:
        if self.image_url and not isinstance(self.prompt, str):
            raise FieldError("image_url", "image_url goes with a prompt of text; messages have their own images")
        if self.cancel and self.session is None:
            raise FieldError("session_id", "please set a session_id to cancel a request")
        if not self.prompt and not self.cancel and not self.ends_session:
            raise FieldError("prompt", "prompt must not be empty, unless a session is ended or cancelled")
        if not self.prompt and not self.cancel and self.session is None:
            raise FieldError("session_id", "session_id is required to end a session")
        return self

    @property
    def session(self) -> int | None:
        """The conversation; None: not given."""
        return None if self.session_id == NO_SESSION else self.session_id

    @property
    def ends_session(self) -> bool:
        """Whether this only makes the server forget a conversation."""
        return not self.prompt and not self.interactive_mode

    @property
    def limit_field(self) -> str:
        return "request_output_len"

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, and what from."""
        urls = [self.image_url] if isinstance(self.image_url, str) else self.image_url or []
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls if url]
        content = [*parts, {"type": "text", "text": self.prompt}] if parts else self.prompt
        messages = [{"role": "user", "content": content}]
        if not isinstance(self.prompt, str):
            messages = [message.for_template() for message in self.prompt]
        return super().generation_inputs(sampling_defaults) | {
            "messages": messages,
            "max_new_tokens": ALL_THAT_IS_LEFT if self.request_output_len is None else self.request_output_len,
        }


class InteractiveResponse(BaseModel):
    """A response, or a piece of one; ``tokens`` counts from its beginning."""

    text: str
    tokens: int
    input_tokens: int
    history_tokens: int
    finish_reason: Literal["stop", "length"] | None = None
