"""Parsing of a batch's lines, and the lines of its results.

Both have the form of OpenAI's batch API (platform.openai.com/docs/api-reference/batch): a request is a JSON object with
``custom_id``, ``method``, ``url`` and ``body``; a result has ``id``, ``custom_id``, ``response`` (``status_code``,
``request_id``, ``body``) and ``error``. Here the ``id`` of a result ends in the number of its request's line.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import orjson

from openai_gateway.errors import ApiError
from openai_gateway.parsing import check_size
from openai_gateway.registry import BATCHED

MAX_REQUESTS = 50_000  # of a file that is uploaded
MAX_LINES = 2 * MAX_REQUESTS  # of the same, blank ones among them
MAX_ID = 512  # characters of a custom_id
_SHOWN = 60
_OK = 200
_ID = re.compile(rb'{"id":"(batch_req[\w]*)-(\d+)","custom_id":')


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request of a batch."""

    line: int  # its number in the file, from 1
    custom_id: str
    url: str
    body: bytes  # JSON


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """A line that is no request; `message` says why."""

    line: int
    custom_id: str | None
    message: str
    code: str = "invalid_request"


class BatchRequests:
    """The requests of a file, each line for itself: one that is wrong costs no other its response."""

    def __init__(self, path: Path, url: str | None, max_bytes: int) -> None:
        self._path = path
        self._url = url  # where all requests have to go; None: each to one of `BATCHED`
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[BatchRequest | InvalidRequest]:
        """Yield what each line holds; blank ones hold nothing."""
        seen: dict[str, int] = {}
        with self._path.open("rb") as file:
            for number, text in _lines(file, self._max_bytes):
                if text == b"":
                    continue
                request = self._read(number, text)
                if isinstance(request, BatchRequest):
                    first = seen.setdefault(request.custom_id, number)
                    if first != number:
                        request = InvalidRequest(
                            number, request.custom_id, f"custom_id must be unique, and line {first} has it too"
                        )
                yield request

    def _read(self, number: int, text: bytes | None) -> BatchRequest | InvalidRequest:
        if text is None:
            return InvalidRequest(number, None, f"a line must be at most {self._max_bytes} bytes long")
        try:
            check_size(text)
            request = orjson.loads(text)
        except ApiError as error:
            return InvalidRequest(number, None, error.message)
        except orjson.JSONDecodeError as error:
            return InvalidRequest(number, None, f"a line must be a JSON object: {error.msg}", "invalid_json")
        if not isinstance(request, dict):
            return InvalidRequest(number, None, f"a line must be a JSON object, got {_shown(request)}", "invalid_json")
        custom_id = request.get("custom_id")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID:
            message = f"custom_id must be a text of 1 to {MAX_ID} characters, got {_shown(custom_id)}"
            return InvalidRequest(number, None, message)
        if problem := self._problem(request):
            return InvalidRequest(number, custom_id, problem)
        return BatchRequest(number, custom_id, request["url"], orjson.dumps(request["body"]))

    def _problem(self, request: dict[str, Any]) -> str | None:
        method, url, body = (request.get(name) for name in ("method", "url", "body"))
        if method != "POST":
            return f"method must be POST, got {_shown(method)}"
        if url not in BATCHED:
            return f"url must be one of {', '.join(BATCHED)}, got {_shown(url)}"
        if self._url is not None and url != self._url:
            return f"url must be the endpoint of the batch, {self._url}, got {_shown(url)}"
        if not isinstance(body, dict):
            return f"body must be an object, got {_shown(body)}"
        if body.get("stream"):
            return "body.stream must not be true: a batch has whole responses"
        return None


def count_requests(path: Path, max_bytes: int, max_lines: int | None = None) -> int:
    """Return how many lines hold something; one more than `max_bytes` is enough to know.

    ``max_lines``: a file with more lines, blank ones among them, counts as one with too many requests; None: any number
    will do.
    """
    count = 0
    with path.open("rb") as file:
        for number, text in _lines(file, 1 << 16):
            count += text != b""
            if max_lines is not None and number > max_lines:
                count = max_bytes + 1
            if count > max_bytes:
                break
    return count


def result_line(name: str, request: BatchRequest, reply: httpx.Response) -> tuple[bytes, bool]:
    """Return the result of a request that was answered, and whether it belongs among the errors.

    ``name``: how ids of results begin, as ``batch_req``.
    """
    body: Any = orjson.Fragment(reply.content) if reply.content else None
    request_id = reply.headers.get("x-request-id", "")
    response = {"status_code": reply.status_code, "request_id": request_id, "body": body}
    return _result(name, request.line, request.custom_id, response, None), reply.status_code != _OK


def error_line(name: str, request: BatchRequest | InvalidRequest, code: str, message: str) -> bytes:
    """Return the result of a request that was not made."""
    return _result(
        name, request.line, request.custom_id, None, {"code": code, "message": f"line {request.line}: {message}"}
    )


def line_of(result: bytes) -> tuple[str, int] | None:
    """Return how the id of a result begins, and the line whose result it is; None where it is no whole result."""
    found = _ID.match(result)
    return (found[1].decode(), int(found[2])) if found and result.endswith(b"}\n") else None


def _result(name: str, line: int, custom_id: str | None, response: Any, error: Any) -> bytes:
    result = {"id": f"{name}-{line}", "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE)


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and text of each line: empty for a blank one, None for one that is too long."""
    number = 0
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    while text := file.readline(max_bytes + 1):
        number += 1
        is_long = len(text) > max_bytes and not text.endswith(b"\n")
        while is_long and not text.endswith(b"\n"):  # the rest of it
            if not (text := file.readline(max_bytes + 1)):
                break
        yield number, None if is_long else text if text.strip() else b""


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
