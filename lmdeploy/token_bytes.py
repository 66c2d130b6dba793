"""Token-to-bytes table: the UTF-8 bytes that each token id adds to the text.

The engine detokenizes with this table alone. It is derived from what the tokenizer says about itself (its decoder), not
from the model's family: byte-level BPE writes bytes in GPT-2's alphabet, SentencePiece writes ``▁`` for a space
and ``<0xNN>`` for a byte outside its vocabulary. The file format is in docs/internals/interfaces.md.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import gt, sub
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

MAGIC = b"TMTOK001"
SPECIAL = 1
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_DECODER_STEPS = ("BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece")
_SEPARATOR = "\U0010fffd"  # of the private use area: no decoder changes it


@dataclass(frozen=True)
class TokenBytes:
    """Bytes and kind of every token id."""

    tokens: tuple[bytes, ...]  # ``[vocab]`` bytes; empty for ids beyond the tokenizer
    special: tuple[bool, ...]  # ``[vocab]`` whether the token is left out of text unless asked for

    def join(self, ids: list[int]) -> bytes:
        """Return the bytes of a sequence of token ids."""
        return b"".join(self.tokens[i] for i in ids)

    def shown(self, ids: list[int], skip_special_tokens: bool = True) -> bytes:
        """Return the bytes of the text of a sequence of token ids.

        Raises `ValueError` if an id is not in the table.
        """
        unknown = next((i for i in ids if not 0 <= i < len(self.tokens)), None)
        if unknown is not None:
            raise ValueError(f"token ids must be in [0, {len(self.tokens)}), got {unknown}")
        kept = [i for i in ids if not self.special[i]] if skip_special_tokens else ids
        return self.join(kept)

    def text(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of a sequence of token ids, as `shown`; bytes that are no whole character become U+FFFD."""
        return self.shown(ids, skip_special_tokens).decode(errors="replace")

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

        Raises `ValueError` if the file is not such a table, or is truncated.
        """
        offsets, flags, text = _parts_of(path)
        tokens = tuple(map(text.__getitem__, map(slice, offsets, offsets[1:])))
        return cls(tokens, tuple(flag & SPECIAL != 0 for flag in flags))


def max_token_bytes(path: Path) -> int:
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

    ``tokenizer``: a tokenizer that knows its ``tokenizer.json`` (every fast one), or has a SentencePiece model.
    ``vocab_size``: rows of the embedding: the length of the table. Ids beyond it cannot be generated and are left out.
    Raises `ValueError` if the tokenizer is of a kind whose tokens have no fixed bytes.
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
    vocab, added = content["model"]["vocab"], content.get("added_tokens", ())
    pieces = [*vocab.items()] if isinstance(vocab, dict) else [(piece, i) for i, (piece, _) in enumerate(vocab)]
    # Added tokens pass through the decoder too: Gemma's runs of spaces are such.
    pieces += [(token["content"], token["id"]) for token in added]
    special = [False] * (len(pieces) - len(added)) + [token["special"] for token in added]
    texts = _decoded(content, [piece for piece, _ in pieces])
    return [(token, text, is_special) for (_, token), text, is_special in zip(pieces, texts, special, strict=True)]


def _decoded(content: Mapping[str, Any], pieces: Sequence[str]) -> list[bytes]:
    """Return the bytes of each of a vocabulary's pieces within a text, by the decoder of a ``tokenizer.json``.

    What a decoder does at the ends of a text is no part of it: some drop or leave out a space there. Raises
    `ValueError` if what the decoder makes of a piece depends on other pieces.
    """
    from tokenizers import Tokenizer

    decoder = content.get("decoder")
    kinds = _decoder_kinds(content)
    if kinds == ["ByteLevel"]:
        return [_byte_level_bytes(piece) for piece in pieces]
    if decoder is None:  # ``tokenizers`` then writes pieces with spaces between
        return [f" {piece}".encode() for piece in pieces]
    if content["model"].get("byte_fallback") and "ByteFallback" not in kinds:
        kinds.insert(0, "ByteFallback")
        decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, decoder]}
    described = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": decoder}
    decode = Tokenizer.from_str(json.dumps(described)).decoder.decode
    between = decode([_SEPARATOR, _SEPARATOR]).removeprefix(_SEPARATOR)
    whole: str = decode([_SEPARATOR, *(part for piece in pieces for part in (piece, _SEPARATOR))])
    *texts, _ = whole.removeprefix(_SEPARATOR).split(between)
    # A piece that is no whole character by itself came out as U+FFFD.
    return [
        _bytes_alone(piece, kinds) if "\ufffd" in text and "\ufffd" not in piece else text.encode()
        for piece, text in zip(pieces, texts, strict=True)
    ]


def _decoder_kinds(content: Mapping[str, Any]) -> list[str]:
    """Return the types of the steps of a decoder, refusing those that cannot be done piece by piece."""
    steps = list(_steps(content.get("decoder"), "decoders"))
    kinds = [step["type"] for step in steps]
    if unknown := next((kind for kind in kinds if kind not in _DECODER_STEPS), None):
        raise ValueError(
            f"tokenizer.json: decoder step {unknown} is not supported; supported: {', '.join(_DECODER_STEPS)}"
        )
    fused = next((i for i, kind in enumerate(kinds) if kind in ("Fuse", "ByteLevel")), len(kinds))
    for step in steps[fused:]:  # here the decoder has the whole text
        if step["type"] == "Replace" and len(step["pattern"].get("String", "").encode()) != 1:
            raise ValueError(
                f"tokenizer.json: decoder step {json.dumps(step, ensure_ascii=False)} replaces text across pieces, "
                f"after {kinds[fused]}; it must come before, or replace one ASCII character"
            )
    source = [*_steps(content.get("pre_tokenizer"), "pretokenizers"), *_steps(content.get("normalizer"), "normalizers")]
    if kinds and "ByteLevel" not in kinds and any(step["type"] == "ByteLevel" for step in source):
        raise ValueError(
            f"tokenizer.json: decoder {', '.join(kinds)} leaves byte-level pieces as they are, \u0120 for a space; "
            "it must have a step ByteLevel"
        )
    return kinds


def _steps(component: Mapping[str, Any] | None, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a component of ``tokenizer.json``, of sequences those in them."""
    if component is not None and component["type"] == "Sequence":
        for step in component[inner]:
            yield from _steps(step, inner)
    elif component is not None:
        yield component


def _bytes_alone(piece: str, kinds: Sequence[str]) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece) if "ByteFallback" in kinds else None
    return bytes([int(match[1], 16)]) if match else _byte_level_bytes(piece)


def _sentencepiece_bytes(piece: str, has_bytes: bool) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece) if has_bytes else None
    return bytes([int(match[1], 16)]) if match else piece.replace("\u2581", " ").encode()


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
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode()


def _from_sentencepiece(model: Any, added: Mapping[int, Any]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield id, bytes and whether special, for each piece of a ``SentencePieceProcessor``, then each added token."""
    for token in range(model.get_piece_size()):
        piece = model.id_to_piece(token)
        is_special = model.is_control(token) or model.is_unknown(token)
        yield token, _sentencepiece_bytes(piece, model.is_byte(token)), is_special
    for token, content in added.items():
        yield token, str(content).encode(), bool(content.special)
