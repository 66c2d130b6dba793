"""Tool calls that the gateway finds in a text, for tests of formats alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.response import ResponseMachine, WholeResponse
from openai_gateway.tools.events import ArgumentsFound, Call, CallBegun, CallBroken, TextFound
from openai_gateway.tools.formats import Schemas
from openai_gateway.tools.parser import ToolCallParser


class Found(NamedTuple):
    """Everything in a whole response."""

    text: str
    calls: list[Call]


def parse(text: str, functions: Schemas | Collection[str], parser: str = "auto") -> Found:
    """Return the text and the calls of a whole response."""
    machine = ResponseMachine(calls=ToolCallParser(functions, parser=parser))
    whole = WholeResponse().add(machine.feed([GenerateChunk(text, finish_reason="stop")]))
    return Found(whole.text, list(whole.calls.values()))


def streamed(pieces: Iterable[str], parser: ToolCallParser) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls, by name and arguments, as a client adds them up from a stream."""
    text, calls = "", dict[int, tuple[str, str]]()
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        match event:
            case TextFound():
                text += event.text
            case CallBegun():
                calls[event.index] = (event.name, "")
            case ArgumentsFound():
                name, arguments = calls[event.index]
                calls[event.index] = (name, arguments + event.text)
            case CallBroken():
                del calls[event.index]
                text += event.text
    return text, list(calls.values())
