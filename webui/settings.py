"""Settings of the next response, from the controls of the page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Number:
    """A setting that is a number, as a slider shows it."""

    name: str  # of `Settings`
    label: str
    low: float
    high: float
    step: float
    info: str = ""


SAMPLING = (
    Number("temperature", "Temperature", 0.0, 2.0, 0.05, "0: greedy"),
    Number("top_p", "Top-p", 0.05, 1.0, 0.01, "cumulative probability kept"),
    Number("top_k", "Top-k", 0, 200, 1, "tokens kept; 0: all"),
    Number("min_p", "Min-p", 0.0, 1.0, 0.01, "relative to the most likely token"),
)
PENALTIES = (
    Number("repetition_penalty", "Repetition penalty", 0.5, 2.0, 0.01),
    Number("presence_penalty", "Presence penalty", -2.0, 2.0, 0.05),
    Number("frequency_penalty", "Frequency penalty", -2.0, 2.0, 0.05),
)
LENGTH = Number("max_new_tokens", "Max tokens", 1, 8192, 1, "of a response, reasoning included")
NUMBERS = {number.name: number for number in (*SAMPLING, *PENALTIES, LENGTH)}
_MAX_DIGITS = 16  # of a number that JavaScript keeps as it is
THINKING = ("default", "on", "off")
"""Values of `Settings.thinking`."""


@dataclass(frozen=True)
class Settings:
    """How the next response is to be generated."""

    system_prompt: str = ""
    model: str = ""  # model or adapter that answers; empty: the server's first
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.0
    max_new_tokens: int = 1024
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: every response is drawn again
    stop_words: tuple[str, ...] = ()
    json_schema: str = ""  # JSON text of what the response must look like; empty: free
    thinking: str = THINKING[0]  # one of `THINKING`
    thinking_budget: int | None = None  # most tokens of reasoning; None: as many as the response may have
    tools: str = ""  # JSON text of OpenAI's list of tools; empty: none

    @property
    def response_format(self) -> dict[str, Any] | None:
        """Format of the response, as OpenAI's field of that name.

        Raises `ValueError` if the schema is no JSON object; the text is for the reader of the page.
        """
        schema = _json_of("JSON schema", self.json_schema, dict)
        return schema and {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": True}}

    @property
    def tool_list(self) -> list[dict[str, Any]] | None:
        """The tools that may be called.

        Raises `ValueError` if they are no JSON list; the text is for the reader of the page.
        """
        tools: list[dict[str, Any]] | None = _json_of("list of tools", self.tools, list)
        return tools

    @property
    def enable_thinking(self) -> bool | None:
        """The reasoning option of the chat template; None: nothing."""
        return {"on": True, "off": False}.get(self.thinking)

    def to_json(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        default = asdict(Settings())
        return {name: value for name, value in asdict(self).items() if value != default[name]}


def settings_of(reported: object) -> Settings:
    """Return the settings that a browser or a file reports; what cannot be has its default.

    ``reported``: values by names of `Settings`, of any types.
    """
    if not isinstance(reported, Mapping):
        return Settings()
    default = Settings()
    good = {
        field.name: _checked(field.name, reported[field.name], getattr(default, field.name))
        for field in fields(Settings)
        if field.name in reported
    }
    return Settings(**good)


def _checked(name: str, value: object, default: Any) -> Any:
    if name in NUMBERS:
        number = NUMBERS[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            return default
        return type(default)(min(max(value, number.low), number.high))
    if name in ("seed", "thinking_budget"):
        text = str(value).strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else None
    if name == "stop_words":
        words = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
        return tuple(word for word in words if isinstance(word, str) and word)
    if name == "thinking":
        return value if value in THINKING else default
    return value if isinstance(value, str) else default


def _json_of(what: str, text: str, kind: type) -> Any:
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"The {what} in the settings is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ValueError(f"The {what} in the settings must be a JSON {'object' if kind is dict else 'list'}")
    return value
