"""One generation request, and the pieces of its answer. How they travel: `lmdeploy.serve.wire`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def new_request_id() -> str:
    """Return an id no other request has, as cancelling by id needs."""
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class GenerateRequest:
    """What to generate from, and how. ``None`` leaves the default to the served model.

    What each number means stands in ``model_repository/turbomind/config.pbtxt``.

    Attributes
    ----------
    messages : sequence of dict, optional
        OpenAI messages; the chat template is applied. Give this, ``text_input`` or ``input_ids``.
    text_input : str, optional
        A finished prompt, used as is.
    input_ids : sequence of int, optional
        A finished prompt as tokens.
    tools : sequence of dict, optional
        OpenAI tools, handed to the chat template.
    stop_words : sequence of str
        Strings that end the answer, beside those of the chat template.
    bad_words : sequence of str
        Strings that are never generated.
    logit_bias : mapping, optional
        What is added to the logit of each token id.
    n : int, optional
        Answers to the prompt; their chunks come in any order and are told apart by ``index``.
    logprobs : int, optional
        Log probabilities wanted: of each token, and of so many likeliest ones.
    prompt_logprobs : int, optional
        The same of each token of the prompt; with ``max_new_tokens`` 0 nothing is generated.
    response_format : mapping, optional
        The grammar of the answer, as in config.pbtxt.
    session_id, sequence_start, sequence_end, step
        A conversation the engine remembers.
    stream : bool
        True: one chunk a generated step. False: one chunk a choice, with the whole answer.
    want_token_ids : bool
        Whether chunks carry token ids. They do with ``logprobs``.
    request_id : str
        Unique among all requests the engine has at one time.
    """

    messages: Sequence[dict[str, Any]] | None = None
    text_input: str | None = None
    input_ids: Sequence[int] | None = None
    tools: Sequence[dict[str, Any]] | None = None
    stop_words: Sequence[str] = ()
    bad_words: Sequence[str] = ()
    stream: bool = True
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    random_seed: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Sequence[int] = ()
    bad_token_ids: Sequence[int] = ()
    skip_special_tokens: bool | None = None
    n: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    response_format: Mapping[str, Any] | None = None
    session_id: int | None = None
    sequence_start: bool | None = None
    sequence_end: bool | None = None
    step: int | None = None
    priority: int | None = None
    timeout_ms: int | None = None
    want_token_ids: bool = False
    request_id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        """Refuse what the ensemble could only refuse later."""
        if sum(prompt is not None for prompt in (self.messages, self.text_input, self.input_ids)) != 1:
            raise ValueError("give exactly one of messages, text_input and input_ids")


@dataclass(slots=True)
class GenerateChunk:
    """One response of the engine.

    Attributes
    ----------
    text : str
        New text; empty while the engine holds text back.
    token_ids : tuple of int
        New token ids; empty unless the request wanted them.
    finish_reason : str or None
        None until the choice's last chunk; then ``stop``, ``length`` or ``cancelled``.
    input_token_len, generate_token_len : int
        Tokens in the prompt, and tokens generated so far for this choice.
    index : int
        Which of the n choices this belongs to.
    history_token_len : int
        Tokens the session held before.
    token_logprobs : tuple of float
        Log probability of each of ``token_ids``.
    top_token_ids : tuple of tuple of int
        The likeliest tokens beside each of ``token_ids``.
    top_logprobs : tuple of tuple of float
        Their log probabilities.
    prompt_token_ids, prompt_token_logprobs, prompt_top_token_ids, prompt_top_logprobs
        With ``prompt_logprobs``, in the first chunk of the first choice: the prompt's tokens, and the same of each of
        them. Nothing predicts the first one: its log probabilities are NaN, and the likeliest tokens -1.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    input_token_len: int = 0
    generate_token_len: int = 0
    index: int = 0
    history_token_len: int = 0
    token_logprobs: tuple[float, ...] = ()
    top_token_ids: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    prompt_token_logprobs: tuple[float, ...] = ()
    prompt_top_token_ids: tuple[tuple[int, ...], ...] = ()
    prompt_top_logprobs: tuple[tuple[float, ...], ...] = ()
