"""A client of a running API server, with the methods of LMDeploy's."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from typing import Any, Literal

import httpx

from lmdeploy.checks import ArgumentError

logger = logging.getLogger(__name__)

Json = dict[str, Any]
ChatPiece = tuple[str, int, Literal["stop", "length"] | None]

_CONNECT = 10.0  # seconds; a response may take as long as it takes
_AS_LMDEPLOY: Json = {"kwargs": {}}  # by which the server knows who reads the response
_NOT_FIELDS = frozenset({"self", "kwargs"})


class APIClient:
    """A client of one server.

    Responses and errors are returned as the JSON objects that the server sends: one for a whole response, one a
    piece for a streamed one.

    Parameters
    ----------
    api_server_url : str
        ``http://host:port``.
    api_key : str, optional
        A key of the server, if it has any.
    verify : bool or ssl.SSLContext
        How to check the certificate of an ``https`` server.
    kwargs
        Ignored.
    """

    def __init__(
        self, api_server_url: str, api_key: str | None = None, *, verify: bool | ssl.SSLContext = True, **kwargs: Any
    ) -> None:
        has_scheme = api_server_url.startswith(("http://", "https://"))
        self.api_server_url = (api_server_url if has_scheme else f"http://{api_server_url}").rstrip("/")
        self.api_key = api_key
        self.headers = {"content-type": "application/json"}
        if api_key is not None:
            self.headers["authorization"] = f"Bearer {api_key}"
        timeout = httpx.Timeout(None, connect=_CONNECT)
        self._http = httpx.Client(
            base_url=self.api_server_url, headers=self.headers, timeout=timeout, verify=verify, trust_env=False
        )
        self._models: list[str] | None = None

    def __enter__(self) -> APIClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def available_models(self) -> list[str] | None:
        """The ids of the served models; None when the server does not say."""
        if self._models is None:
            response = self._http.get("/v1/models")
            if response.is_success:
                self._models = [card["id"] for card in response.json()["data"]]
        return self._models

    def encode(
        self, input: str | list[str], do_preprocess: bool | None = False, add_bos: bool = True
    ) -> tuple[list[int] | list[list[int]], int | list[int]]:
        """Return token ids and their number, of one or several texts.

        Parameters
        ----------
        input
            The texts.
        do_preprocess
            Apply the chat template.
        add_bos
            Begin with the token that begins a sequence.

        Raises
        ------
        httpx.HTTPStatusError
            The server refused.
        """
        body = {"input": input, "do_preprocess": do_preprocess, "add_bos": add_bos}
        response = self._http.post("/v1/encode", json=body)
        response.raise_for_status()
        reply = response.json()
        return reply["input_ids"], reply["length"]

    def chat_completions_v1(
        self,
        model: str,
        messages: str | list[dict[str, Any]],
        temperature: float | None = 0.7,
        top_p: float | None = 1.0,
        logprobs: bool | None = False,
        top_logprobs: int | None = 0,
        n: int | None = 1,
        max_tokens: int | None = None,
        stop: str | list[str] | None = None,
        stream: bool | None = False,
        presence_penalty: float | None = 0.0,
        frequency_penalty: float | None = 0.0,
        user: str | None = None,
        repetition_penalty: float | None = 1.0,
        session_id: int | None = -1,
        ignore_eos: bool | None = False,
        skip_special_tokens: bool | None = True,
        **kwargs: Any,
    ) -> Iterator[Json]:
        """Yield the response to a conversation; `kwargs` are further fields of the request."""
        yield from self._post("/v1/chat/completions", _fields(locals()) | _AS_LMDEPLOY | kwargs)

    def completions_v1(
        self,
        model: str,
        prompt: str | list[Any],
        suffix: str | None = None,
        temperature: float | None = 0.7,
        n: int | None = 1,
        max_tokens: int | None = 16,
        stream: bool | None = False,
        stop: str | list[str] | None = None,
        top_p: float | None = 1.0,
        top_k: int | None = 40,
        user: str | None = None,
        repetition_penalty: float | None = 1.0,
        session_id: int | None = -1,
        ignore_eos: bool | None = False,
        skip_special_tokens: bool | None = True,
        **kwargs: Any,
    ) -> Iterator[Json]:
        """Yield what continues after a prompt; `kwargs` are further fields of the request."""
        yield from self._post("/v1/completions", _fields(locals()) | _AS_LMDEPLOY | kwargs)

    def chat_interactive_v1(
        self,
        prompt: str | list[dict[str, Any]],
        image_url: str | list[str] | None = None,
        session_id: int = -1,
        interactive_mode: bool = False,
        stream: bool = False,
        stop: str | list[str] | None = None,
        request_output_len: int | None = None,
        top_p: float = 0.8,
        top_k: int = 40,
        temperature: float = 0.8,
        repetition_penalty: float = 1.0,
        ignore_eos: bool = False,
        skip_special_tokens: bool | None = True,
        adapter_name: str | None = None,
        **kwargs: Any,
    ) -> Iterator[Json]:
        """Yield the response to the next turn of a conversation the server remembers."""
        yield from self._post("/v1/chat/interactive", _fields(locals()) | kwargs)

    def chat(
        self,
        prompt: str,
        session_id: int,
        image_url: str | list[str] | None = None,
        request_output_len: int = 512,
        stream: bool = False,
        top_p: float = 0.8,
        top_k: int = 40,
        temperature: float = 0.8,
        repetition_penalty: float = 1.0,
        ignore_eos: bool = False,
    ) -> Iterator[ChatPiece]:
        """Yield text, number of tokens so far and finish reason of the response to the next turn of a conversation.

        Raises
        ------
        ArgumentError
            ``session_id`` is -1.
        RuntimeError
            The server refused.
        """
        fields = _fields(locals())
        if session_id == -1:
            raise ArgumentError("session_id must name a conversation, got -1")
        for piece in _chat_pieces(self.chat_interactive_v1(interactive_mode=True, **fields)):
            if piece[1:] == (0, "length"):
                logger.warning("session %d has no space for this turn: end it with end_session", session_id)
            yield piece

    def end_session(self, session_id: int) -> None:
        """Make the server forget a conversation."""
        fields = {"prompt": "", "session_id": session_id, "request_output_len": 0, "interactive_mode": False}
        for _ in self._post("/v1/chat/interactive", fields | {"stream": False}):
            continue

    def end_chat(self, session_id: int) -> None:
        """Make the server forget a conversation."""
        self.end_session(session_id)

    def _post(self, path: str, body: Json) -> Iterator[Json]:
        """Yield every JSON object of a response: framed as events, as lines, or alone."""
        with self._http.stream("POST", path, json=body) as response:
            if not response.headers["content-type"].startswith("text/event-stream"):
                yield json.loads(response.read())
                return
            for line in response.iter_lines():
                payload = line.removeprefix("data: ")
                if payload and payload != "[DONE]":
                    yield json.loads(payload)


def get_model_list(api_url: str, headers: dict[str, str] | None = None) -> list[str] | None:
    """Return the ids of the models behind ``http://host:port/v1/models``; None when the server does not say."""
    response = httpx.get(api_url, headers=headers, timeout=_CONNECT, trust_env=False)
    return [card["id"] for card in response.json()["data"]] if response.is_success else None


def get_streaming_response(
    prompt: str,
    api_url: str,
    session_id: int,
    request_output_len: int = 512,
    stream: bool = True,
    interactive_mode: bool = False,
    ignore_eos: bool = False,
    cancel: bool = False,
    top_p: float = 0.8,
    temperature: float = 0.7,
    api_key: str | None = None,
) -> Iterator[ChatPiece]:
    """Yield text, number of tokens so far and finish reason of the pieces of a turn.

    Parameters
    ----------
    prompt
        What the user says.
    api_url
        ``http://host:port/v1/chat/interactive``.
    session_id, interactive_mode
        The conversation, and whether the server keeps it.
    cancel
        Stop what the conversation runs.
    request_output_len, stream, ignore_eos, top_p, temperature
        As in ``APIClient.chat_interactive_v1``.
    api_key
        A key of the server, if it has any.

    Raises
    ------
    RuntimeError
        The server refused.
    """
    fields = {name: value for name, value in locals().items() if name not in ("api_url", "api_key")}
    with APIClient(api_url.partition("/v1/")[0], api_key) as client:
        yield from _chat_pieces(client.chat_interactive_v1(**fields))


def _chat_pieces(responses: Iterator[Json]) -> Iterator[ChatPiece]:
    for chunk in responses:
        if "text" not in chunk:
            raise RuntimeError(chunk.get("message", str(chunk)))
        yield chunk["text"], chunk["tokens"], chunk["finish_reason"]


def _fields(given: dict[str, Any]) -> Json:
    return {name: value for name, value in given.items() if name not in _NOT_FIELDS}
