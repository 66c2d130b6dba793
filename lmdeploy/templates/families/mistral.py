"""Mistral and Mixtral: three generations of tags.

The system prompt begins the first user turn. The later published templates put it, and the tools, into the last one,
which would change what an engine already holds of a conversation.
"""

import json
from typing import Any

from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout
from lmdeploy.templates.tool_call_formats.catalogue import MISTRAL
from lmdeploy.templates.tool_calling import ToolChatTemplate


class MistralV3ChatTemplate(ToolChatTemplate):
    """The formats whose vocabulary has tags for tools, calls and what they return."""

    calls = MISTRAL

    def __init__(self, gap: str, **strings: Any) -> None:
        super().__init__(**strings)
        self._gap = gap  # what stands between a tag and its text

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        listed = as_json([{"type": "function", "function": function} for function in functions])
        at = 1 if messages[0]["role"] == "system" else 0
        if len(messages) == at:
            raise ValueError("messages must begin with a user message, after the system message, when there are tools")
        marked = {**messages[at], "tools": f"[AVAILABLE_TOOLS]{self._gap}{listed}[/AVAILABLE_TOOLS]"}
        return [*messages[:at], marked, *messages[at + 1 :]]

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        # A turn is either text or calls: there is no place for what was said alongside them.
        return f"{MISTRAL.write(calls, self._gap)}{self.eoa}{self.separator}"

    def _turn(self, message: Message) -> str:
        if message["role"] == "tool":
            returned = {"content": _as_value(message["content"]), "call_id": message.get("tool_call_id", "")}
            return f"[TOOL_RESULTS]{self._gap}{as_json(returned)}[/TOOL_RESULTS]"
        return f"{message.get('tools', '')}{super()._turn(message)}"


def _as_value(text: str) -> object:
    """Return the value of JSON text; other text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_MIXTRAL: dict[str, Any] = {
    "eosys": "\n\n",
    "user": "[INST] ",
    "eoh": " [/INST]",
    "eoa": "</s>",
    "stop_words": ["</s>"],
    "layout": Layout(system_in_first_user_turn=True),
}
_MISTRAL = _MIXTRAL | {
    "user": " [INST] ",
    "assistant": " ",
    "layout": Layout(system_in_first_user_turn=True, model_writes_space=True),
}

builtin("mixtral", _MIXTRAL)
builtin("mistral", _MISTRAL)
builtin("mistral-v3", _MISTRAL, MistralV3ChatTemplate, user="[INST] ", eoh="[/INST]", gap=" ")
builtin("mistral-nemo", _MIXTRAL, MistralV3ChatTemplate, user="[INST]", eoh="[/INST]", gap="")
