"""Generation request, and the chunks of its response. `lmdeploy.serve.wire` encodes them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmdeploy.fields import field
from lmdeploy.fields.field import MAX_INT32, FieldInfo, fields_of
from lmdeploy.messages import MAX_TOP_LOGPROBS, GenerationConfig


def new_request_id() -> str:
    """Return a unique request id."""
    return uuid.uuid4().hex


@dataclass(kw_only=True)
class RequestFields:
    """Fields of a served request in addition to those of `GenerationConfig` (`lmdeploy.fields`)."""

    prompt_logprobs: int | None = field.integer(
        None,
        "Return the log probability of each prompt token and of this many alternatives, in the outputs "
        "prompt_*; not in a session. With max_new_tokens 0 nothing is generated.",
        high=MAX_TOP_LOGPROBS,
        is_tensor=True,
        is_param=True,
    )
    output_embedding: bool = field.boolean(
        False,
        "Return the hidden state of the prompt's last token after the final norm, in the output embedding; nothing is "
        "generated.",
        is_tensor=True,
        is_param=True,
    )
    second_text_begin: int | None = field.integer(
        None,
        "With output_embedding, for models with token types: index in input_ids of the first token of the "
        "second text of a pair.",
        low=1,
        is_tensor=True,
        is_param=True,
    )
    output_token_embeddings: bool = field.boolean(
        False,
        "With output_embedding, for encoders: return the hidden state of each token instead of the pooled vector.",
        is_tensor=True,
        is_param=True,
    )
    thinking_budget: int | None = field.integer(
        None,
        "Maximum number of reasoning tokens, after which the engine generates thinking_end_ids. Not with "
        "response_format.",
        is_tensor=True,
        is_param=True,
    )
    thinking_begin: str | None = field.string(
        None,
        "With thinking_end: text that begins reasoning; null: the prompt ends with it.",
        max_bytes=256,
        is_tensor=True,
        is_param=True,
    )
    thinking_end: str | None = field.string(
        None,
        "Text that ends reasoning, for thinking_budget and repetition_detection; with thinking_end_ids.",
        max_bytes=256,
        is_tensor=True,
        is_param=True,
    )
    thinking_end_ids: list[int] | None = field.tokens(
        "With thinking_end: tokens that the engine generates to end reasoning.",
        max_items=64,
        is_tensor=True,
        is_param=True,
    )
    session_id: int | None = field.seed(
        "Session whose tokens the engine keeps between requests; CORRID in older clients.", is_tensor=True
    )
    sequence_start: bool | None = field.boolean(
        None,
        "With session_id. true: start a new session, replacing one of the same id; false: continue.",
        is_tensor=True,
        tensor_default="false",
    )
    sequence_end: bool | None = field.boolean(
        None,
        "With session_id. true: delete the session after this request.",
        is_tensor=True,
        tensor_default="false",
    )
    step: int | None = field.integer(
        None,
        "With session_id: first truncate the session to this many tokens; negative: keep all.",
        low=-MAX_INT32,
        is_tensor=True,
        tensor_default="-1",
    )
    priority: int | None = field.integer(
        None,
        "Priority: requests with lower values are scheduled first.",
        low=-MAX_INT32,
        is_tensor=True,
        tensor_default="0",
    )
    cache_salt: str | None = field.string(
        None,
        "Prefixes are shared only among requests with the same salt; null: among all without one. Without a salt, the "
        "time to first token reveals whether another caller has sent the same prefix.",
        max_bytes=256,
        is_tensor=True,
        is_param=True,
        is_in_bodies=True,
    )
    caller: str | None = field.string(
        None,
        "Id of the caller, which the gateway derives from the API key: response formats are compiled fairly across "
        "callers, and draft tokens never come from other callers' texts.",
        max_bytes=256,
        is_tensor=True,
        is_param=True,
    )
    include_cache_report: bool = field.boolean(
        False,
        "Report how much of the prompt the prefix cache had, where it was and why it was no more: in usage, or in the "
        "output cache_report.",
        is_tensor=True,
        is_param=True,
        is_in_bodies=True,
    )
    lora_name: str | None = field.string(
        None,
        "The LoRA adapter to use; null: none.",
        max_bytes=256,
        is_tensor=True,
        is_param=True,
    )
    timeout_ms: int | None = field.integer(
        None, "Milliseconds after which an unfinished request ends with an error.", low=1, is_tensor=True
    )
    keep_alive: float | None = field.number(
        None,
        "Seconds that the model stays in memory after this request; negative: forever; 0: it sleeps at once; null: as "
        "the model's idle_timeout says.",
        is_tensor=True,
    )


FIELDS: dict[str, FieldInfo] = {
    field.name: field
    for field in (*fields_of(GenerationConfig), *fields_of(RequestFields))
    if field.is_tensor or field.is_param
}
"""The optional fields of a request: tensors of the same names."""


class GenerateRequest:
    """A generation request.

    Raises `ValueError` if not exactly one prompt, or a field there is not.
    """

    def __init__(
        self,
        *,
        # OpenAI messages; the chat template is applied. Give this, ``text_input`` or ``input_ids``
        messages: Sequence[dict[str, Any]] | None = None,
        text_input: str | None = None,  # a finished prompt, used as is
        input_ids: Sequence[int] | None = None,  # a finished prompt as tokens
        tools: Sequence[dict[str, Any]] | None = None,  # OpenAI tools, handed to the chat template
        template_options: dict[str, Any] | None = None,  # further variables for the chat template, with ``messages``
        stream: bool = True,  # True: one chunk a generated step. False: one chunk a choice, with the whole response
        return_token_ids: bool = False,  # whether chunks carry token ids. They do with ``logprobs``
        return_cached_len: bool = False,  # whether chunks carry ``cached_token_len``
        return_engine_seconds: bool = False,  # whether a choice's last chunk has ``engine_seconds``
        return_stop_string: bool = False,  # whether a choice's last chunk says which of ``stop_words`` ended it
        request_id: str | None = None,  # unique among all requests the engine has at one time; default: a new one
        # Those of `FIELDS`, as in `GenerationConfig`; None, or one left out, has the served model's default
        **fields: Any,
    ) -> None:
        if sum(prompt is not None for prompt in (messages, text_input, input_ids)) != 1:
            raise ValueError("give exactly one of messages, text_input and input_ids")
        if unknown := fields.keys() - FIELDS.keys():
            raise ValueError(f"a request has no field {', '.join(sorted(unknown))}; there are {', '.join(FIELDS)}")
        self.messages, self.text_input, self.input_ids, self.tools = messages, text_input, input_ids, tools
        self.template_options = template_options
        self.stream, self.return_token_ids, self.return_stop_string = stream, return_token_ids, return_stop_string
        self.return_cached_len, self.return_engine_seconds = return_cached_len, return_engine_seconds
        self.request_id = request_id or new_request_id()
        self.fields: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}

    @property
    def has_images(self) -> bool:
        """Whether a message has images."""
        contents = (message.get("content") for message in self.messages or ())
        return any(
            isinstance(part, dict) and part.get("type") in ("image_url", "video_url")
            for content in contents
            if isinstance(content, list)
            for part in content
        )


@dataclass(frozen=True)
class SleepReport:
    """Memory and sleep of a model, as its engine reports them."""

    state: Literal["awake", "waking", "asleep"]  # ``awake``, ``waking`` or ``asleep``
    level: int = 0  # 1: it sleeps without its cache; 2: without its weights too; 0: it is awake
    # Weights and cache that it has now, and has when it is awake
    bytes: int = 0
    awake_bytes: int = 0
    all_bytes: int = 0  # those that all models of the server have now
    idle_seconds: float | None = None  # since its last request ended; None: some are open
    sleeps_in: float | None = None  # seconds until it sleeps unless a request comes; None: it does not
    waiting: int = 0  # requests that wait until it is awake
    error: str = ""  # why it could not be woken last; empty: it could


@dataclass(slots=True)
class GenerateChunk:
    """One response of the engine."""

    text: str = ""  # new text; empty while the engine holds text back
    token_ids: tuple[int, ...] = ()  # new token ids; empty unless the request wanted them
    finish_reason: str | None = None  # None until the choice's last chunk; then ``stop``, ``length`` or ``cancelled``
    # With ``length``: ``repetition`` where ``repetition_detection`` ended the choice
    stop_reason: Literal["repetition"] | None = None
    # With ``return_stop_string``, in a choice's last chunk: the one of ``stop_words``, or of the chat template's, that
    # ended it; empty: none did
    stop_string: str = ""
    # Tokens in the prompt, and tokens generated so far for this choice
    input_token_len: int = 0
    generate_token_len: int = 0
    index: int = 0  # which of the n choices this belongs to
    history_token_len: int = 0  # tokens the session held before
    cached_token_len: int = 0  # with ``return_cached_len``: tokens of session and prompt that were found in the cache
    # With ``include_cache_report``, in a choice's last chunk: `lmdeploy.serve.cache_report`
    cache_report: dict[str, Any] | None = None
    # With ``return_engine_seconds``, in a choice's last chunk: seconds before the batch, to the first token and to the
    # end, each from the one before; negative: it did not come to that
    engine_seconds: tuple[float, ...] = ()
    # With ``return_engine_seconds``, in a choice's last chunk: how long it waited for its model to wake
    load_seconds: float = 0.0
    token_logprobs: tuple[float, ...] = ()  # log probability of each of ``token_ids``
    top_token_ids: tuple[tuple[int, ...], ...] = ()  # the most likely tokens alongside each of ``token_ids``
    top_logprobs: tuple[tuple[float, ...], ...] = ()  # their log probabilities
    # With ``prompt_logprobs``, in the first chunk of the first choice: the prompt's tokens, and the same of each of
    # them. Nothing predicts the first one: its log probabilities are NaN, and the most likely tokens -1
    prompt_token_ids: tuple[int, ...] = ()
    prompt_token_logprobs: tuple[float, ...] = ()
    prompt_top_token_ids: tuple[tuple[int, ...], ...] = ()
    prompt_top_logprobs: tuple[tuple[float, ...], ...] = ()
    embedding: bytes = b""  # with ``output_embedding``: float32 [hidden size], little-endian
