"""What a request with tools says to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai_gateway.protocol.tools import Tool
from openai_gateway.tools.forced import call_format


def tool_inputs(usable: Sequence[Tool], forced: Sequence[Tool], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` that tools decide.

    Parameters
    ----------
    usable : sequence of Tool
        What the model may call.
    forced : sequence of Tool
        Of which it has to call one; none: it decides.
    given : mapping
        The other fields.
    """
    inputs: dict[str, Any] = {}
    if usable:
        inputs["tools"] = [tool.for_template() for tool in usable]
        if given["skip_special_tokens"] is None:  # in two families the marks around calls are special tokens
            inputs["skip_special_tokens"] = False
    if forced:
        inputs["response_format"] = call_format(forced)
    return inputs
