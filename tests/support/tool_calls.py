"""Tool calls that the gateway finds in a text, for tests of formats alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.response import ResponseMachine, WholeResponse
from openai_gateway.tools.events import Call
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
