"""Published Jinja templates, rendered by ``transformers``.

``tests/data/templates.jsonl`` holds them, a line each, as tokenizer_config.json does, with where it is quoted from.
"""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from lmdeploy.templates import dates

_LINES = (Path(__file__).parents[1] / "data" / "templates.jsonl").read_text(encoding="utf-8").splitlines()
INDEX: dict[str, dict[str, str]] = {entry["name"]: entry for entry in map(json.loads, _LINES)}
DAY = datetime.datetime(2025, 3, 7)


class Clock:
    """A clock that stands still."""

    @staticmethod
    def now() -> datetime.datetime:
        """Return the day, as ``transformers`` asks for it."""
        return DAY


def stop_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let published and built-in templates see the same day."""
    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    monkeypatch.setattr(dates, "today", DAY.strftime)


def published_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a published template and the model's bos and eos."""
    entry = INDEX[name]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, "?")),
        bos_token=entry["bos"] or None,
        eos_token=entry["eos"] or None,
        chat_template=entry["template"],
    )


def published(name: str, messages: list[dict[str, Any]], tools: Any = None, **variables: Any) -> str:
    """Return the prompt the published template writes, without what the tokenizer puts before every text."""
    variables = {"date_string": "26 Jul 2024", **variables}
    prompt = published_tokenizer(name).apply_chat_template(
        messages, tools, tokenize=False, add_generation_prompt=True, **variables
    )
    assert isinstance(prompt, str)
    return prompt.removeprefix(INDEX[name]["bos"])
