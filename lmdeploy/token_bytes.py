"""The token -> bytes table: what each token id adds to the UTF-8 text.

The engine detokenizes with this table alone. It is derived from what the tokenizer says about itself (its decoder), not
from the model's family: byte-level BPE writes bytes in GPT-2's alphabet, SentencePiece writes ``▁`` for a space
and ``<0xNN>`` for a byte outside its vocabulary. The file format is in docs/internals/interfaces.md.
"""

import functools
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import gt, sub
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

MAGIC = b"TMTOK001"
SPECIAL = 1
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """Bytes and kind of every token id.

    Attributes
    ----------
    tokens
        ``[vocab]`` bytes; empty for ids beyond the tokenizer.
    special
        ``[vocab]`` whether the token is left out of text unless asked for.
    """

    tokens: tuple[bytes, ...]
    special: tuple[bool, ...]

    def join(self, ids: list[int]) -> bytes:
        """Return the bytes of a sequence of token ids."""
        return b"".join(self.tokens[i] for i in ids)

    def text(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of a sequence of token ids; bytes that are no whole UTF-8 character become U+FFFD.

        Raises
        ------
        ValueError
            If an id is not in the table.
        """
        unknown = next((i for i in ids if not 0 <= i < len(self.tokens)), None)
        if unknown is not None:
            raise ValueError(f"token ids must be in [0, {len(self.tokens)}), got {unknown}")
        kept = [i for i in ids if not self.special[i]] if skip_special_tokens else ids
        return self.join(kept).decode(errors="replace")

    def write(self, path: Path) -> None:
        """Write the table as ``token_bytes.bin``."""
        offsets = [0]
        for token in self.tokens:
            offsets.append(offsets[-1] + len(token))
        count = len(self.tokens)
        parts = [MAGIC, struct.pack("<II", count, 0), struct.pack(f"<{count + 1}I", *offsets)]
        parts += [bytes(SPECIAL if s else 0 for s in self.special), *self.tokens]
        path.write_bytes(b"".join(parts))

    @classmethod
    def read(cls, path: Path) -> "Self":
        """Return the table in ``path``.

        Raises
        ------
        ValueError
            If the file is not such a table, or is truncated.
        """
        offsets, flags, text = _parts_of(path)
        tokens = tuple(map(text.__getitem__, map(slice, offsets, offsets[1:])))
        return cls(tokens, tuple(flag & SPECIAL != 0 for flag in flags))


def longest_token(path: Path) -> int:
    """Return the bytes of the longest token of the table in ``path``; raises as ``TokenBytes.read``."""
    offsets, _, _ = _parts_of(path)
    return max(map(sub, offsets[1:], offsets), default=0)


def _parts_of(path: Path) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the offsets, flags and text of the table in a file."""
    data = path.read_bytes()
    if data[:8] != MAGIC or len(data) < 16:
        raise ValueError(f"{path} is no token table: it must start with {MAGIC.decode()}")
    (count,) = struct.unpack_from("<I", data, 8)
    begin = 16 + 4 * (count + 1)
    if len(data) < begin + count:
        raise ValueError(f"{path} is truncated: {len(data)} bytes cannot hold {count} tokens")
    offsets = struct.unpack_from(f"<{count + 1}I", data, 16)
    flags, text = data[begin : begin + count], data[begin + count :]
    if any(map(gt, offsets, offsets[1:])) or offsets[0] != 0 or offsets[-1] != len(text):
        raise ValueError(f"{path} is truncated or damaged: its offsets do not cover its {len(text)} text bytes")
    return offsets, flags, text


def token_bytes_of(tokenizer: Any, vocab_size: int) -> TokenBytes:
    """Return the table of a ``transformers`` tokenizer.

    Parameters
    ----------
    tokenizer
        A tokenizer that knows its ``tokenizer.json`` (every fast one), or has a SentencePiece model.
    vocab_size
        Rows of the embedding: the length of the table. Ids beyond it cannot be generated and are left out.

    Raises
    ------
    ValueError
        If the tokenizer is of a kind whose tokens have no fixed bytes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    special = set(tokenizer.all_special_ids)
    if backend is not None:
        entries: Iterable[tuple[int, bytes, bool]] = entries_of(backend.to_str())
    elif hasattr(tokenizer, "sp_model"):
        entries = _from_sentencepiece(tokenizer.sp_model, tokenizer.added_tokens_decoder)
    else:
        raise ValueError(f"tokenizer {type(tokenizer).__name__} has neither a tokenizer.json nor a SentencePiece model")
    table, flags = [b""] * vocab_size, [False] * vocab_size
    for token, text, is_special in entries:
        if token < vocab_size:
            table[token], flags[token] = text, is_special or token in special
    return TokenBytes(tuple(table), tuple(flags))


def entries_of(description: str) -> list[tuple[int, bytes, bool]]:
    """Return id, bytes and whether special, for each token of a ``tokenizer.json``'s text; later entries win."""
    content = json.loads(description)
    vocab = content["model"]["vocab"]
    steps = _steps(content.get("decoder"), "decoders")
    erased = [step["pattern"]["String"] for step in steps if _erases(step)]
    decoded = _piece_decoder(content)

    def kept(piece: str) -> str:
        return functools.reduce(lambda text, each: text.replace(each, ""), erased, piece)

    to_bytes = (lambda piece: decoded(kept(piece))) if erased else decoded
    pieces = vocab.items() if isinstance(vocab, dict) else ((piece, i) for i, (piece, _) in enumerate(vocab))
    entries = [(token, to_bytes(piece), False) for piece, token in pieces]
    added = content.get("added_tokens", ())
    return entries + [(token["id"], kept(token["content"]).encode(), token["special"]) for token in added]


def _erases(step: Mapping[str, Any]) -> bool:
    """Return whether a step of a decoder leaves a text out."""
    return step["type"] == "Replace" and step["content"] == "" and "String" in step["pattern"]


def _piece_decoder(content: Mapping[str, Any]) -> Callable[[str], bytes]:
    """Return the function from a vocabulary piece to bytes that the tokenizer's decoder describes."""
    steps = [step for step in _steps(content.get("decoder"), "decoders") if not _erases(step)]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    if "WordPiece" in kinds:  # of encoders, which write nothing: a word's beginning, with the space before it
        continuing = next(str(step["prefix"]) for step in steps if step["type"] == "WordPiece")
        return lambda piece: _word_piece_bytes(piece, continuing)
    if "Metaspace" in kinds:
        marker = next(step["replacement"] for step in steps if step["type"] == "Metaspace")
    elif "Replace" in kinds:
        marker = next(step["pattern"]["String"] for step in steps if step["type"] == "Replace")
    else:
        raise ValueError(
            f"tokenizer decoder {sorted(kinds)} is not supported; supported: ByteLevel, Metaspace, Replace, WordPiece"
        )
    has_bytes = "ByteFallback" in kinds or bool(content["model"].get("byte_fallback"))
    return lambda piece: _sentencepiece_bytes(piece, marker, has_bytes)


def _steps(component: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [step for part in component[inner] for step in _steps(part, inner)]


def _sentencepiece_bytes(piece: str, marker: str, has_bytes: bool) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece) if has_bytes else None
    return bytes([int(match[1], 16)]) if match else piece.replace(marker, " ").encode()


def _word_piece_bytes(piece: str, continuing: str) -> bytes:
    return piece.removeprefix(continuing).encode() if piece.startswith(continuing) else f" {piece}".encode()


def byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: the character that stands for each byte.

    Printable Latin-1 bytes stand for themselves; the other 68, in order, for U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = byte_level_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a piece in GPT-2's alphabet; a piece outside of it is literal text, as in ``tokenizers``."""
    if all(char in _BYTE_OF for char in piece):
        return bytes(_BYTE_OF[char] for char in piece)
    return piece.encode()


def _from_sentencepiece(model: Any, added: Mapping[int, Any]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield id, bytes and whether special, for each piece of a ``SentencePieceProcessor``, then each added token."""
    for token in range(model.get_piece_size()):
        piece = model.id_to_piece(token)
        is_special = model.is_control(token) or model.is_unknown(token)
        yield token, _sentencepiece_bytes(piece, "▁", model.is_byte(token)), is_special
    for token, content in added.items():
        yield token, str(content).encode(), bool(content.special)
