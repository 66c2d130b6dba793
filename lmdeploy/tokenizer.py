"""The tokenizer of a checkpoint: text to token ids and back."""

import functools
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, is_panic
from lmdeploy.paths import locate_model, tokenizer_dir
from lmdeploy.token_bytes import TokenBytes, token_bytes_of
from lmdeploy.tokenizer_readers import read_tokenizer
from lmdeploy.tokenizer_readers.framed import Frame, frame_of
from lmdeploy.tokenizer_readers.resolved import (
    copy_resolved,
    encoding_of,
    is_resolved,
    read_resolved,
    write_resolved,
)


@dataclass(frozen=True)
class DetokenizeState:
    """State of incremental detokenization."""

    # Tokens from ``context`` to ``read`` were returned last; those from ``read`` on were not returned yet
    context: int = 0
    read: int = 0


class Tokenizer:
    """A Hugging Face tokenizer, read from a local directory. Texts may be encoded by several threads.

    Attributes
    ----------
    directory
        The folder of its files.

    Parameters
    ----------
    path
        A checkpoint, an engine directory, a workspace of ``lmdeploy convert``, the name of a Hugging Face
        repository, or ``""`` for the default model.

    Raises
    ------
    CheckpointError
        If there is no such model, or its tokenizer files are missing or broken.
    """

    def __init__(self, path: str) -> None:
        self.directory = directory = tokenizer_dir(locate_model(path))
        # One of `transformers` panics when two threads are in it.
        self._lock: AbstractContextManager[Any] = nullcontext() if is_resolved(directory) else threading.Lock()
        try:
            self._tokenizer: Any = read_resolved(directory) if is_resolved(directory) else self.hf_tokenizer
            bos = self.bos_token_id
            self._beginnings: list[list[int]] = [self._tokenizer.encode(""), [] if bos is None else [bos]]
        except BaseException as error:  # a broken tokenizer.json is a bare Exception, or a panic, of the Rust library
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(directory, [f"its tokenizer cannot be loaded ({reason})"]) from error

    @functools.cached_property
    def hf_tokenizer(self) -> Any:
        """The same tokenizer in ``transformers``, loaded on first use."""
        return read_tokenizer(self.directory)

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The Jinja template the checkpoint brings along, or several by name; None: it has none."""
        template: str | dict[str, str] | None = self._tokenizer.chat_template
        return template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The texts of the tokens that have a role, such as ``bos_token``."""
        tokens: dict[str, str] = self._tokenizer.special_tokens_map
        return tokens

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        ids: dict[str, int] = self._tokenizer.get_vocab()
        return max(ids.values()) + 1

    def ids_of(self, texts: Sequence[str]) -> list[int | None]:
        """Return the token of each of ``texts``; None where there is none."""
        ids: dict[str, int] = self._tokenizer.get_vocab()
        return [ids.get(text) for text in texts]

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the model has one."""
        token: int | None = self._tokenizer.bos_token_id
        return token

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the model has one."""
        token: int | None = self._tokenizer.eos_token_id
        return token

    @property
    def added_tokens(self) -> list[str]:
        """Texts of added tokens, special ones included; each is always one token."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # one of `transformers` in Python
            return list(self._tokenizer.get_added_vocab())
        return [token.content for token in backend.get_added_tokens_decoder().values()]

    @functools.cached_property
    def special_ids(self) -> dict[str, int]:
        """Special tokens that decoding omits, by their texts."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        added = self._tokenizer.added_tokens_decoder if backend is None else backend.get_added_tokens_decoder()
        roles = {self.text_of(token): token for token in self._tokenizer.all_special_ids}
        return roles | {token.content: number for number, token in added.items() if token.special}

    def text_of(self, token: int) -> str:
        """Return the text of a token by itself; empty where there is no such token."""
        return self._tokenizer.convert_ids_to_tokens([token])[0] or "" if token >= 0 else ""

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of ``text``."""
        return self.encode(text)

    def encode(self, text: str, add_bos: bool = True, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``.

        Special tokens written in the text become those tokens. Tokens the tokenizer itself puts before a text (often
        bos) are added once: not when the text, as a rendered chat template does, already begins with them.

        Parameters
        ----------
        text
            Any text.
        add_bos, add_special_tokens
            False, either of them, leaves out the tokens the tokenizer would put around the text.

        Raises
        ------
        ValueError
            If the text holds half a surrogate pair, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode, got a lone surrogate at character {error.start}") from error
        with self._lock:
            if not (add_bos and add_special_tokens):
                ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
                return ids
            bare, whole = self._encode_both(text)
        has_beginning = any(beginning and bare[: len(beginning)] == beginning for beginning in self._beginnings)
        return bare if has_beginning else whole

    def _encode_both(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of a text without and with what the tokenizer puts around it, reading it once if possible."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # one of `transformers` in Python
            return self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.encode(text)
        encoding = encoding_of(backend, text)
        return encoding.ids, backend.post_process(encoding).ids

    def encode_joined(self, pieces: Sequence[str], add_bos: bool = True) -> list[int]:
        """Return the token ids of texts that follow each other, none of which reaches over the end of one."""
        first, *others = pieces
        return self.encode(first, add_bos) + [token for ids in self._encode_all(others) for token in ids]

    def frame(self, is_pair: bool = False) -> Frame:
        """Return the special tokens around a text, or around and between the texts of a pair."""
        return frame_of(self._tokenizer, is_pair)

    def encode_bare(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of texts without what the tokenizer puts around them."""
        return self._encode_all(texts)

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # one of `transformers` in Python
            return [self.encode(text, add_bos=False) for text in texts]
        with self._lock:
            return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], offset: int | None = None, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids from ``offset`` on; bytes that are no whole UTF-8 character become U+FFFD."""
        text = self._tokenizer.decode(
            list(ids)[offset or 0 :], skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def store(self, directory: Path) -> None:
        """Write into a directory what a later ``Tokenizer`` of it needs to do without ``transformers``, if it can."""
        if is_resolved(self.directory):
            copy_resolved(self.directory, directory)
        else:
            write_resolved(self.hf_tokenizer, directory)

    def token_bytes(self, vocab_size: int | None = None) -> TokenBytes:
        """Return the token -> bytes table.

        Parameters
        ----------
        vocab_size
            Length of the table: the rows of the model's embedding. Default: the tokenizer's own vocabulary.
        """
        return token_bytes_of(self._tokenizer, self.vocab_size if vocab_size is None else vocab_size)

    def detokenize_incrementally(
        self,
        all_ids: Sequence[int],
        state: DetokenizeState,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> tuple[str, DetokenizeState]:
        """Return the newest tokens' addition to a text that grows, and the state for the next call.

        Parameters
        ----------
        all_ids
            All tokens so far.
        state
            What the call before returned; at first ``DetokenizeState()``.
        skip_special_tokens
            Leave special tokens out.
        spaces_between_special_tokens
            Kept for compatibility: fast tokenizers, the only ones here, never add such spaces.

        Returns
        -------
        str
            The new text; tokens wait while their bytes are no whole character.
        DetokenizeState
            Where the next call continues.
        """
        # The tokens before, as context: a decoder may write a token otherwise at the beginning of a text.
        before = self.decode(all_ids[state.context : state.read], None, skip_special_tokens)
        now = self.decode(all_ids[state.context :], None, skip_special_tokens)
        if now.endswith("\ufffd"):
            return "", state
        return now[len(before) :], DetokenizeState(state.read, len(all_ids))

    def indexes_containing_token(self, token: str) -> list[int]:
        """Return the ids of the vocabulary's entries whose text contains ``token``."""
        encoded = token.encode()
        return [index for index, entry in enumerate(self.token_bytes().tokens) if encoded in entry]
