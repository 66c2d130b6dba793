"""Tool call ids in the formats of published templates: clients bring those of other servers, or of other APIs."""

import hashlib
import re
from collections.abc import Callable

from lmdeploy.templates.conversation import Message

_KIMI_K2 = "<|tool_call_argument_begin|>"
_NINE = re.compile(r"length\s*!=\s*9")
_FITS_NINE = re.compile(r"[A-Za-z0-9]{9}")


def with_fitting_ids(messages: list[Message], template: str) -> list[Message]:
    """Return messages whose calls, and what tools returned, have ids that a Jinja template can write.

    Kimi K2's writes the id where the model reads the function: ``functions.NAME:NUMBER``, counted through the
    conversation (docs/tool_call_guidance.md of the model). Mistral's refuses what is not nine letters and digits.
    """
    if _KIMI_K2 in template:
        return _renamed(messages, lambda _, name, number: f"functions.{name}:{number}")
    if _NINE.search(template):
        return _renamed(messages, lambda identity, _, number: _nine(identity or str(number)))
    return messages


def _renamed(messages: list[Message], rename: Callable[[str, str, int], str]) -> list[Message]:
    renamed, given, number = [], dict[str, str](), 0
    for message in messages:
        calls = []
        for call in message.get("tool_calls") or ():
            old = str(call.get("id") or "")
            calls.append({**call, "id": rename(old, call["function"]["name"], number)})
            given[old] = calls[-1]["id"]
            number += 1
        changed = {**message, "tool_calls": calls} if calls else message
        answered = message.get("tool_call_id")
        if isinstance(answered, str) and answered in given:
            changed = {**changed, "tool_call_id": given[answered]}
        renamed.append(changed)
    return renamed


def _nine(identity: str) -> str:
    return identity if _FITS_NINE.fullmatch(identity) else hashlib.sha256(identity.encode()).hexdigest()[:9]
