"""End-of-sequence tokens of a checkpoint, and the files that name them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from lmdeploy.templates.jinja import JinjaChatTemplate
    from lmdeploy.tokenizer import Tokenizer

_FIELD = "eos_token_id"
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class EndToken:
    """A token that a checkpoint names as the end of a response."""

    # The token; the text is empty where the tokenizer has none
    id: int
    text: str
    sources: tuple[str, ...]  # where it is named, such as ``generation_config.json: eos_token_id``
    ignored: str = ""  # why it ends no response; empty: it ends them


def end_tokens(tokenizer: Tokenizer, rows: int | None = None) -> list[EndToken]:
    """Return the tokens that a checkpoint names as the end of a response, each once.

    ``generation_config.json`` and ``config.json`` name some, the tokenizer another, and the chat template closes the
    assistant's turn with one: published checkpoints rarely agree, and each of them ends a response. Of an ordinary
    piece of text this is only believed where nothing named an end before: configurations keep the ids of the models
    they were copied from. Raises `CheckpointError` if a file holds something else than token ids. ``tokenizer``: that
    of a checkpoint or an engine directory. ``rows``: of the embedding: an id beyond it is never generated. None: not
    known.
    """
    ends: dict[int, EndToken] = {}
    special = set(tokenizer.special_ids.values())
    for source, ids in _named(tokenizer):
        has_ends = any(not end.ignored for end in ends.values())
        for token in ids:
            if (known := ends.get(token)) is not None:
                ends[token] = replace(known, sources=tuple(dict.fromkeys((*known.sources, source))))
                continue
            ignored = ""
            if token < 0 or (rows is not None and token >= rows):
                ignored = f"the vocabulary has the tokens 0 to {(rows or tokenizer.vocab_size) - 1}"
            elif has_ends and token not in special:
                ignored = "it is an ordinary piece of text, and another end is named before"
            ends[token] = EndToken(token, tokenizer.text_of(token), (source,), ignored)
    return list(ends.values())


def end_texts(tokenizer: Tokenizer) -> list[str]:
    """Return the texts of the tokens that end a response."""
    return [end.text for end in end_tokens(tokenizer) if end.text and not end.ignored]


def closing_token(template: JinjaChatTemplate, tokenizer: Tokenizer) -> str:
    """Return the special token that a template writes right after the assistant's messages; empty: none.

    One that stands between its reasoning and its content as well, as ``<|end|>`` of gpt-oss does, closes no turn.
    """
    closings, within = template.closings()
    closing = [
        text
        for text in tokenizer.special_ids
        if text and text not in within and all(closing.lstrip().startswith(text) for closing in closings)
    ]
    return max(closing, key=len, default="") if closings else ""


def _named(tokenizer: Tokenizer) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield sources of ends and the tokens that they name, those to be believed first."""
    from lmdeploy.templates.jinja import JinjaChatTemplate

    for name in ("generation_config.json", "config.json"):
        file = tokenizer.directory / name
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        yield f"{name}: {_FIELD}", _ids_in(content, file)
        for key in _TEXT_CONFIGS:
            if isinstance(content.get(key), dict):
                yield f"{name}: {key}.{_FIELD}", _ids_in(content[key], file)
    if tokenizer.eos_token_id is not None:
        yield "the tokenizer's eos_token", [tokenizer.eos_token_id]
    if tokenizer.chat_template:
        text = closing_token(JinjaChatTemplate(tokenizer.chat_template, tokenizer.special_tokens), tokenizer)
        if text:
            yield "the chat template closes a turn with it", [tokenizer.special_ids[text]]


def _ids_in(content: dict[str, Any], file: Path) -> list[int]:
    named = content.get(_FIELD)
    ids: list[int] = named if isinstance(named, list) else [] if named is None else [named]
    if not all(type(token) is int for token in ids):
        problem = f"{file.name}: {_FIELD} must be a token id or a list of them, got {named!r}"
        raise CheckpointError(file.parent, [problem])
    return ids
