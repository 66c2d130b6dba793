"""Client for any server with OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import openai
from openai.types.chat import ChatCompletionChunk

from webui.conversation import Call, Piece, continuing
from webui.settings import Settings, settings_of

# Settings beyond OpenAI's: a server that is not ours may refuse them, so they are sent when they were changed.
_FURTHER = ("top_k", "min_p", "repetition_penalty", "thinking_budget")


class ServerUnavailable(Exception):
    """The server cannot be reached, or has no model; trying again later may work."""


class HttpError(Exception):
    """Response of the server with an HTTP status of 400 or more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message  # text for the user


class OpenAIClient:
    """A server with OpenAI's API as the page sees it.

    ``base_url``: of the server, with or without ``/v1``. ``api_key``: a key of it, if it asks for one.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        is_here = urlsplit(root).hostname in ("localhost", "127.0.0.1", "::1")  # no proxy knows the way to it
        http = openai.DefaultAsyncHttpxClient(trust_env=not is_here)
        self._root, url = root, f"{root}/v1"
        self._client = openai.AsyncOpenAI(base_url=url, api_key=api_key or "none", max_retries=0, http_client=http)
        self._model = ""
        self._is_lmdeploy = False
        self._sampling_defaults: dict[str, Mapping[str, Any]] = {}
        self._context_lens: dict[str, int] = {}
        self._modalities: dict[str, Any] | None = None

    async def respond(self, messages: Sequence[dict[str, Any]], settings: Settings) -> AsyncIterator[Piece]:
        """Stream the response to messages.

        Raises `ServerUnavailable` or `HttpError` if the server is away, or refuses the request, and
        `ValueError` if the settings cannot be used.
        """
        if not self._model:
            await self.model_name()
        model = settings.model or self._model
        fields = _fields(settings, settings_of(self.sampling_defaults(model)))
        if options := continuing(messages):
            fields["extra_body"] = (fields.get("extra_body") or {}) | options
        try:
            stream: openai.AsyncStream[ChatCompletionChunk] = await self._client.chat.completions.create(
                model=model,
                messages=cast(Any, messages),
                stream=True,
                stream_options={"include_usage": True},
                **(fields if not self._is_lmdeploy else _with_tokens(fields)),
            )
            count = 0
            async with stream:
                async for part in stream:
                    piece = _piece(part)
                    count += bool(piece.text or piece.reasoning or piece.calls)
                    if piece.token_count is None:
                        piece.token_count = count
                    yield piece
        except openai.APIStatusError as error:
            raise HttpError(error.status_code, _reason(error)) from None
        except openai.APIConnectionError as error:
            raise ServerUnavailable(str(error)) from None

    async def is_ready(self) -> bool:
        """Return whether the server lists its models; ours says by `/health` whether they answer."""
        try:
            await self.model_name()
            if self._is_lmdeploy:
                await self._client.get(f"{self._root}/health", cast_to=httpx.Response)
        except (ServerUnavailable, openai.OpenAIError):
            return False
        return True

    async def models(self) -> list[str]:
        """Return the names of the server's models; raise `ServerUnavailable` if it cannot be reached, or has none."""
        try:
            models = (await self._client.models.list()).data
        except openai.OpenAIError as error:
            raise ServerUnavailable(str(error)) from None
        if not models:
            raise ServerUnavailable("the server has no model")
        self._is_lmdeploy = models[0].owned_by == "lmdeploy"
        reported = {model.id: (model.model_extra or {}).get("sampling_defaults") for model in models}
        self._sampling_defaults = {name: given for name, given in reported.items() if isinstance(given, dict)}
        lengths = {model.id: (model.model_extra or {}).get("max_model_len") for model in models}
        self._context_lens = {name: length for name, length in lengths.items() if isinstance(length, int)}
        return [model.id for model in models]

    async def takes_images(self) -> bool:
        """Return whether questions may have images: unless the server says no, as ours and llama.cpp's do."""
        if self._modalities is None:
            try:
                properties = await self._client.get(f"{self._root}/props", cast_to=httpx.Response)
                self._modalities = {**properties.json()["modalities"]}
            except (openai.OpenAIError, KeyError, TypeError, ValueError):
                self._modalities = {}
        return self._modalities.get("vision") is not False

    def context_size(self, model: str) -> int | None:
        """Return how many tokens a model of `models` has room for; empty: the first; None: that is not known."""
        return self._context_lens.get(model or self._model)

    def sampling_defaults(self, model: str) -> Mapping[str, Any]:
        """Return a model's sampling defaults; ours reports them with its models. Empty: they are not known."""
        return self._sampling_defaults.get(model, {})

    async def model_name(self) -> str:
        """Return the first model the server has; raise `ServerUnavailable` if it cannot be reached, or has none."""
        self._model = (await self.models())[0]
        return self._model

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _fields(settings: Settings, default: Settings) -> dict[str, Any]:
    """Return settings as fields of a chat completion; `default` are the model's."""
    changed = {name: getattr(settings, name) for name in _FURTHER}
    further = {name: value for name, value in changed.items() if value != getattr(default, name)}
    if settings.enable_thinking is not None:
        further["enable_thinking"] = settings.enable_thinking
        further["chat_template_kwargs"] = {"enable_thinking": settings.enable_thinking}
    fields = {
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": settings.presence_penalty or None,
        "frequency_penalty": settings.frequency_penalty or None,
        "seed": settings.seed,
        "stop": list(settings.stop_words) or None,
        "response_format": settings.response_format,
        "tools": settings.tool_list,
        "extra_body": further or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reason(error: openai.APIStatusError) -> str:
    """Return a server's error message, without the status and the JSON around it."""
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail") or body.get("error")
    return message if isinstance(message, str) else error.response.reason_phrase


def _with_tokens(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a request whose response reports its tokens."""
    return fields | {"extra_body": (fields.get("extra_body") or {}) | {"return_token_ids": True}}


def _piece(part: ChatCompletionChunk) -> Piece:
    """Return a streamed part as the page takes it."""
    piece = Piece()
    for choice in part.choices:
        delta = choice.delta
        reported = delta.model_extra or {}
        piece.text += delta.content or ""
        piece.reasoning += reported.get("reasoning_content") or reported.get("reasoning") or ""
        for call in delta.tool_calls or ():
            function = call.function
            name, arguments = (function.name or "", function.arguments or "") if function else ("", "")
            piece.calls[call.index] = Call(name, arguments, call.id or "")
        piece.finish_reason = choice.finish_reason or piece.finish_reason
        piece.token_ids = (choice.model_extra or {}).get("token_ids") or ()
    if part.usage is not None:
        details = part.usage.prompt_tokens_details
        piece.token_count, piece.prompt_count = part.usage.completion_tokens, part.usage.prompt_tokens
        piece.cached_count = details.cached_tokens if details else None
    return piece
