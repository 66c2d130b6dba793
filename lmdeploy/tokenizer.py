"""The tokenizer of a checkpoint: text to token ids and back."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError
from lmdeploy.paths import locate_model, tokenizer_dir
from lmdeploy.token_bytes import TokenBytes, token_bytes_of

# Published as code, but of Llama's kind: a SentencePiece model, and added tokens that tokenizer_config.json lists.
_SENTENCEPIECE_CLASSES = frozenset({"InternLMTokenizer", "InternLM2Tokenizer", "BaichuanTokenizer"})


class Tokenizer:
    """A Hugging Face tokenizer, read from a local directory.

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
        directory = tokenizer_dir(locate_model(path))
        if not (directory / "tokenizer.json").is_file():
            _make_sentencepiece_readable()
        self._directory = directory
        try:
            self._tokenizer: Any = _load(directory)
        except Exception as error:  # a broken tokenizer.json surfaces as a bare Exception of the Rust library
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(directory, [f"its tokenizer cannot be loaded ({reason})"]) from error

    @property
    def hf_tokenizer(self) -> Any:
        """The ``transformers`` tokenizer behind this one."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        ids: dict[str, int] = self._tokenizer.get_vocab()
        return max(ids.values()) + 1

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

    def end_tokens(self) -> list[str]:
        """Return the texts of the tokens that end an answer, as tokenizer and generation_config.json name them."""
        ids = {self.eos_token_id}
        file = self._directory / "generation_config.json"
        if file.is_file():
            eos = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
            ids.update(eos if isinstance(eos, list) else [eos])
        texts: list[str] = self._tokenizer.convert_ids_to_tokens([token for token in ids if token is not None])
        return texts

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Return the token ids of ``text``.

        Special tokens written in the text become those tokens. Tokens the tokenizer itself puts before a text (often
        bos) are added once: not when the text, as a rendered chat template does, already begins with them.

        Parameters
        ----------
        text
            Any text.
        add_bos
            False leaves out the tokens the tokenizer would put around the text.

        Raises
        ------
        ValueError
            If the text holds half a surrogate pair, which is no character.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text must be valid Unicode, got a lone surrogate at character {error.start}") from error
        bare: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        if not add_bos:
            return bare
        bos = self.bos_token_id
        if bos is not None and bare[:1] == [bos]:
            return bare
        whole: list[int] = self._tokenizer.encode(text)
        return whole

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are no whole UTF-8 character become U+FFFD."""
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def token_bytes(self, vocab_size: int | None = None) -> TokenBytes:
        """Return the token -> bytes table.

        Parameters
        ----------
        vocab_size
            Length of the table: the rows of the model's embedding. Default: the tokenizer's own vocabulary.
        """
        return token_bytes_of(self._tokenizer, self.vocab_size if vocab_size is None else vocab_size)


def _load(directory: Path) -> Any:
    """Return the ``transformers`` tokenizer of a directory; code that lies there is never run."""
    from transformers import AutoTokenizer, LlamaTokenizer

    if (directory / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    own_class = _own_class(directory)
    if own_class in _SENTENCEPIECE_CLASSES:
        return LlamaTokenizer.from_pretrained(str(directory), local_files_only=True)
    if own_class:
        raise ValueError(
            f"it is code of the checkpoint, {own_class}, which is not run: "
            "save the tokenizer as tokenizer.json (PreTrainedTokenizerFast)"
        )
    return AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)


def _own_class(directory: Path) -> str:
    """Return the name of the tokenizer class that the checkpoint brings as code; empty if it brings none."""
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return ""
    auto_map = json.loads(file.read_text(encoding="utf-8")).get("auto_map") or {}
    names = auto_map.get("AutoTokenizer") or "" if isinstance(auto_map, dict) else auto_map
    name = next((name for name in names if name), "") if isinstance(names, list) else names
    return str(name).rpartition(".")[2]


def _make_sentencepiece_readable() -> None:
    """Let ``transformers`` read SentencePiece models whatever protobuf is installed.

    The sentencepiece wheel's generated protobuf code refuses a protobuf older than its generator, which Triton's
    client may need. ``transformers`` carries the same code from an older generator, but tries the wheel's only.
    """
    name = "sentencepiece.sentencepiece_model_pb2"
    try:
        importlib.import_module(name)
    except Exception:  # protobuf's VersionError is a bare Exception
        sys.modules[name] = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
