"""Tokenizer of ``transformers`` in a form that ``tokenizers`` alone can read.

``transformers`` may build another tokenizer than ``tokenizer.json`` describes: it looks at the class that the settings
name, at the tokens they add, at ``add_bos_token``. An engine directory therefore keeps what came out of it. A server
then starts without ``transformers``, whose import takes seconds, and reads text exactly as it would.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

_TOKENIZER = "resolved_tokenizer.json"
_SETTINGS = "resolved_settings.json"
_LONG = 2048  # characters
_METHODS = ("__call__", "encode", "decode", "_encode_plus", "_decode", "convert_ids_to_tokens", "get_vocab")


@dataclass(frozen=True)
class ResolvedSettings:
    """Settings of a tokenizer beside its algorithm; named as in ``transformers``."""

    # Token ids, or None
    bos_token_id: int | None
    eos_token_id: int | None
    all_special_ids: list[int]  # the tokens that have a role
    special_tokens_map: dict[str, str]  # role to text, such as ``{"bos_token": "<s>"}``
    chat_template: str | dict[str, str] | None  # a Jinja template, several by name, or None


class ResolvedTokenizer:
    """A tokenizer with the methods of ``transformers`` that we use.

    ``settings``: the rest.
    """

    def __init__(self, backend_tokenizer: Tokenizer, settings: ResolvedSettings) -> None:
        self.backend_tokenizer = backend_tokenizer  # reads text
        self.bos_token_id = settings.bos_token_id
        self.eos_token_id = settings.eos_token_id
        self.all_special_ids = settings.all_special_ids
        self.special_tokens_map = settings.special_tokens_map
        self.chat_template = settings.chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = encoding_of(self.backend_tokenizer, text, add_special_tokens).ids
        return ids

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Return the text of token ids; spaces are as they are."""
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token, added ones included."""
        vocab: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocab

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Return the text of each token by itself; None where there is no such token."""
        return [self.backend_tokenizer.id_to_token(token) for token in ids]


def encoding_of(backend: Tokenizer, text: str, add_special_tokens: bool = False) -> Encoding:
    """Return a text's encoding; while a long text is encoded, other threads of Python run."""
    if len(text) < _LONG:
        return backend.encode(text, add_special_tokens=add_special_tokens)
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return encoding


def is_resolved(directory: Path) -> bool:
    """Return whether a tokenizer was written into a directory by :func:`write_resolved`."""
    return (directory / _SETTINGS).is_file()


def read_resolved(directory: Path) -> ResolvedTokenizer:
    """Return the tokenizer that :func:`write_resolved` wrote."""
    settings = ResolvedSettings(**json.loads((directory / _SETTINGS).read_text(encoding="utf-8")))
    return ResolvedTokenizer(Tokenizer.from_file(str(directory / _TOKENIZER)), settings)


def write_resolved(tokenizer: Any, directory: Path) -> None:
    """Write a ``transformers`` tokenizer into a directory, unless it does more than ``tokenizers`` does.

    Those are the classes that are not backed by that library, and the few that change texts by themselves.
    """
    if not _has_no_custom_code(tokenizer):
        return
    settings = ResolvedSettings(
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        list(tokenizer.all_special_ids),
        {role: str(token) for role, token in tokenizer.special_tokens_map.items()},
        tokenizer.chat_template,
    )
    write_files(tokenizer.backend_tokenizer, settings, directory)


def copy_resolved(source: Path, target: Path) -> None:
    """Copy what :func:`write_resolved` wrote."""
    for name in (_TOKENIZER, _SETTINGS):
        shutil.copyfile(source / name, target / name)


def write_files(backend: Tokenizer, settings: ResolvedSettings, directory: Path) -> None:
    """Write a tokenizer and its settings for :func:`read_resolved`; it neither truncates nor pads there."""
    (directory / _TOKENIZER).write_text(kept(backend.to_str()), encoding="utf-8")
    (directory / _SETTINGS).write_text(json.dumps(asdict(settings), ensure_ascii=False), encoding="utf-8")


def kept(description: str) -> str:
    """Return the text of a ``tokenizer.json`` as :func:`write_files` keeps it."""
    content = json.loads(description) | {"truncation": None, "padding": None}
    return json.dumps(_quickly_read(content), ensure_ascii=False)


def _quickly_read(content: dict[str, Any]) -> dict[str, Any]:
    """Return the same ``tokenizer.json`` with merges in the older of their two forms, which is read in less time."""
    model = content["model"]
    merges = model.get("merges")
    if not merges or any(" " in part for pair in merges for part in pair):
        return content
    return content | {"model": model | {"merges": [" ".join(pair) for pair in merges]}}


def _has_no_custom_code(tokenizer: Any) -> bool:
    """Return whether a tokenizer hands every text to ``tokenizers`` as it is."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and not tokenizer.split_special_tokens
        and all(getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in _METHODS)
    )
