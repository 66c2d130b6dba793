"""Random texts of a grammar, byte by byte as xgrammar allows them, and its judgement of a text.

The vocabulary is all bytes, so that nothing which a model could write by some token is missed.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
import xgrammar

_END = 256
_SIZE = 257
_CLOSING = b'"]}'
_STRUCTURE = b'",:}]{[\\'


def _compiler(*, has_controls: bool) -> xgrammar.GrammarCompiler:
    every = [bytes([byte]) for byte in range(256)]
    # As `backend_cpp/grammar/xgrammar.cc` does for JSON, which holds no control characters.
    known = every if has_controls else [b"" if byte[0] < 0x20 else byte for byte in every]
    info = xgrammar.TokenizerInfo(
        [*known, b"</s>"], vocab_type=xgrammar.VocabType.RAW, vocab_size=_SIZE, stop_token_ids=[_END]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


_JSON, _TEXT = _compiler(has_controls=False), _compiler(has_controls=True)


def of_schema(schema: dict[str, Any]) -> xgrammar.CompiledGrammar:
    """Return the grammar of a schema, as the engine has it compiled."""
    return _JSON.compile_json_schema(json.dumps(schema), any_whitespace=False, strict_mode=True)


def of_expression(pattern: str) -> xgrammar.CompiledGrammar:
    """Return the grammar of a regular expression, as the engine has it compiled."""
    return _TEXT.compile_regex(pattern)


def accepts(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    """Return whether a whole text is of the grammar."""
    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[_END])
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(_END)


def accepts_value(grammar: xgrammar.CompiledGrammar, value: Any) -> bool:
    """Return whether a value is of the grammar, written as the engine has values written."""
    written = (json.dumps(value, ensure_ascii=False, separators=each) for each in ((", ", ": "), (",", ":")))
    return any(accepts(grammar, text) for text in written)  # values of an enum come without spaces


def walk(grammar: xgrammar.CompiledGrammar, chance: random.Random, most: int = 1500) -> bytes | None:
    """Return a random text of the grammar; None: it continued for more than this many bytes.

    What closes a value is likelier than the rest, and grows likelier, so that most walks end.
    """
    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[_END])
    mask = torch.zeros((1, (_SIZE + 31) // 32), dtype=torch.int32)
    text = bytearray()
    for step in range(most):
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask, 0)
        bits = np.unpackbits(mask.numpy().view(np.uint8).reshape(-1), bitorder="little")[:_SIZE]
        allowed = [int(byte) for byte in np.nonzero(bits)[0]]
        assert allowed, f"nothing may follow {bytes(text)!r}"
        if _END in allowed and (len(allowed) == 1 or chance.random() < 0.3):
            return bytes(text)
        byte = _chosen([each for each in allowed if each != _END], chance, step / most)
        assert matcher.accept_token(byte)
        text.append(byte)
    return None


def _chosen(allowed: list[int], chance: random.Random, done: float) -> int:
    for preferred, likelihood in ((_CLOSING, 0.25 + done), (_STRUCTURE, 0.3), (range(128), 0.6)):
        if chance.random() < likelihood and (found := [byte for byte in allowed if byte in preferred]):
            return chance.choice(found)
    return chance.choice(allowed)
