"""Escaping of special tokens in callers' texts: each is cut in two before tokenization.

Everything a caller wrote is cut but what is in these positions, where it says how to read the rest:

- ``messages[].role``;
- ``messages[].content[].type``, where it is the type of a part that there is, and in such a part what it shows (the
  member ``image_url``, ``image_data``, ``video_url`` or ``video_data``), which never becomes text;
- ``messages[].tool_calls[].type`` and ``tools[].type``, where it is ``function``.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

CUT = "\U0010fffe"
"""Where a text is cut: no character, so that no text has a reason to hold it; one that does is cut there."""

_MEDIA = frozenset({"image_url", "image_data", "video_url", "video_data"})
_PART_TYPES = _MEDIA | {"text", "image", "video"}


class PlainText:
    """Keeps texts from becoming their own tokens.

    ``special``: texts of the tokenizer's added tokens, such as ``<|im_end|>``.
    """

    def __init__(self, special: Iterable[str]) -> None:
        texts = sorted({text for text in special if len(text) > 1}, key=len, reverse=True)
        # Looks ahead only, so that tokens which overlap are all found.
        self._special = re.compile(f"(?={'|'.join(map(re.escape, texts))})") if texts else None

    def cut(self, value: Any) -> Any:
        """Return a JSON value with all its texts cut after the first character of each token, those of keys too."""
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, list):
            return [self.cut(item) for item in value]
        if isinstance(value, dict):
            return {self.cut(key): self.cut(item) for key, item in value.items()}
        return value

    def cut_messages(self, messages: Any) -> Any:
        """Return a conversation with its texts cut."""
        return _for_each(messages, lambda message: self._members(message, self._message_member))

    def cut_tools(self, tools: Any) -> Any:
        """Return descriptions of tools with their texts cut."""
        return _for_each(tools, lambda tool: self._members(tool, self._tool_member))

    def cut_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return variables for the chat template with their values cut."""
        return {name: self.cut(value) for name, value in options.items()}

    def _members(self, value: Any, member: Any) -> Any:
        if not isinstance(value, dict):
            return self.cut(value)
        return {self.cut(key): member(value, key) for key in value}

    def _message_member(self, message: dict[str, Any], key: str) -> Any:
        value = message[key]
        if key == "role":
            return value
        if key == "content" and isinstance(value, list):
            return _for_each(value, lambda part: self._members(part, self._part_member))
        if key == "tool_calls":
            return _for_each(value, lambda call: self._members(call, self._call_member))
        return self.cut(value)

    def _part_member(self, part: dict[str, Any], key: str) -> Any:
        kind = part.get("type")
        is_known = isinstance(kind, str) and kind in _PART_TYPES
        if is_known and (key == "type" or (key in _MEDIA and key == kind)):
            return part[key]
        return self.cut(part[key])

    def _call_member(self, call: dict[str, Any], key: str) -> Any:
        if key == "function":
            return self._members(call[key], self._function_member)
        return self._tool_member(call, key)

    def _tool_member(self, tool: dict[str, Any], key: str) -> Any:
        return tool[key] if key == "type" and tool[key] == "function" else self.cut(tool[key])

    def _function_member(self, function: dict[str, Any], key: str) -> Any:
        value = function[key]
        return self._cut_json(value) if key == "arguments" and isinstance(value, str) else self.cut(value)

    def _cut_json(self, text: str) -> str:
        """Return JSON text that is cut, and still is after it was decoded: an escape may hide a token."""
        try:
            expected = self.cut(json.loads(text))
        except (ValueError, RecursionError):
            return self._cut(text)  # which nobody decodes
        cut = self._cut(text)
        try:
            is_cut = json.loads(cut) == expected
        except ValueError:
            is_cut = False
        return cut if is_cut else json.dumps(expected, ensure_ascii=False)

    def _cut(self, text: str) -> str:
        if self._special is None:
            return text
        pieces, begin = [], 0
        for match in self._special.finditer(text):
            pieces.append(text[begin : match.start() + 1])
            begin = match.start() + 1
        return CUT.join([*pieces, text[begin:]])


def pieces_of(text: str) -> list[str]:
    """Return the pieces to tokenize one by one."""
    return text.split(CUT)


def _for_each(values: Any, change: Any) -> Any:
    return [change(value) for value in values] if isinstance(values, list) else values
