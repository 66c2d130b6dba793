"""Report of a request with ``include_cache_report``: prefix-cache hits of its prompt, and the reason for misses."""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Iterable
from itertools import takewhile
from typing import Any

from lmdeploy.serve.errors import TritonRequestError, TritonUnavailable
from lmdeploy.serve.request import GenerateRequest

logger = logging.getLogger(__name__)

Tokenize = Callable[..., Awaitable[list[int]]]

_NUMBERS = ("device", "host", "disk", "snapshot", "end", "token", "seconds")
_REASONS = (  # by `end`, a `HitEnd` of the engine
    None,
    "differs at token {token}{part}",
    "nothing is known from token {token} on{part}",
    "was evicted {seconds} s ago from token {token} on",
    "known up to token {token}, but not all that layers with a state or a window need there",
    "prefix caching is off",
    "the request has the whole prompt computed",
)
_IN_PARTS = (1, 2)


def report_numbers(raw: bytes) -> dict[str, Any] | None:
    """Return the engine's output ``cache_report`` by name; None: it is empty."""
    return dict(zip(_NUMBERS, struct.unpack(f"<{len(_NUMBERS)}i", raw), strict=True)) if raw else None


async def cache_report(request: GenerateRequest, numbers: dict[str, Any], tokenize: Tokenize) -> dict[str, Any]:
    """Return the report in words.

    ``numbers``: `report_numbers` of its response. ``tokenize``: `TritonClient.tokenize`, called to find the part of a
    conversation where the known prompts leave it. Returns ``found`` tokens, the sum of those on ``device``, ``host``
    and ``disk``; tokens up to the ``snapshot`` that was used, if any; the ``reason`` why no more were found, and the
    ``token`` where. Both are null where no more exist.
    """
    numbers = dict(numbers)
    end, seconds = numbers.pop("end"), numbers.pop("seconds")
    part = ""
    if end in _IN_PARTS:
        try:
            part = await _part_at(request, numbers["token"], tokenize)
        except (TritonRequestError, TritonUnavailable) as error:  # a template may refuse parts of a conversation
            logger.debug("request %s: the part at a token is unknown: %s", request.request_id, error)
    reason = _REASONS[end]
    report = {"found": numbers["device"] + numbers["host"] + numbers["disk"]} | numbers
    report["reason"] = reason and reason.format(token=numbers["token"], seconds=seconds, part=part)
    if "{token}" not in (reason or ""):
        report["token"] = None
    logger.debug("request %s: prefix cache: %s", request.request_id, report)
    return report


async def _part_at(request: GenerateRequest, token: int, tokenize: Tokenize) -> str:
    """Return the part of a conversation that a token belongs to, after a comma; empty: it is not known."""
    messages, tools = request.messages, request.tools or ()
    if not messages or request.has_images or "session_id" in request.fields:
        return ""
    options, adapter = request.template_options or {}, request.fields.get("lora_name")
    whole = await tokenize(messages=messages, tools=tools, template_options=options, adapter=adapter)
    if tools:
        without = await tokenize(messages=messages, template_options=options, adapter=adapter)
        begin = _shared(whole, without)
        end = len(whole) - _shared(reversed(whole[begin:]), reversed(without[begin:]))
        if begin <= token < end:
            return ", in the tool list"
    options = {key: value for key, value in options.items() if key != "continue_final_message"}
    options["add_generation_prompt"] = False
    first, last = 0, len(messages) - 1  # the message is among these
    while first < last:
        middle = (first + last) // 2
        some = await tokenize(messages=messages[: middle + 1], tools=tools, template_options=options, adapter=adapter)
        if _shared(whole, some) > token:
            last = middle
        else:
            first = middle + 1
    return f", in message {first + 1} ({messages[first]['role']})"


def _shared(one: Iterable[int], other: Iterable[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
