"""Random texts of a grammar, byte by byte as xgrammar allows them, and its judgement of a text.

The vocabulary is all bytes, so that nothing which a model could write by some token is missed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jsonschema
import numpy as np
import torch
import xgrammar

from lmdeploy.json_schema import JSON, grammar_of


def _multiple_of(_: Any, factor: float, instance: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """Judge decimals as they are written: `jsonschema` divides doubles, for which 0.07 is no multiple of 0.01."""
    is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
    if is_number and (Fraction(repr(instance)) / Fraction(repr(factor))).denominator != 1:
        yield jsonschema.ValidationError(f"{instance} is not a multiple of {factor}")


Judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple_of})
"""Validator of the standard's draft 2020-12."""

_END = 256
_SIZE = 257
_CLOSING = b'"]}'
_STRUCTURE = b'",:}]{[\\'


_INFO = xgrammar.TokenizerInfo(
    [*(bytes([byte]) for byte in range(256)), b"</s>"],
    vocab_type=xgrammar.VocabType.RAW,
    vocab_size=_SIZE,
    stop_token_ids=[_END],
)
_COMPILER = xgrammar.GrammarCompiler(_INFO, max_threads=1, cache_enabled=False)


def of_schema(schema: dict[str, Any], **options: Any) -> xgrammar.CompiledGrammar:
    """Return the grammar of a schema, with options of its `Syntax`; raise `SchemaError`."""
    return of_rules(grammar_of(schema, replace(JSON, **options)))


def of_rules(text: str) -> xgrammar.CompiledGrammar:
    """Return a grammar in EBNF."""
    return _COMPILER.compile_grammar(text)


def of_tag(text: str) -> xgrammar.CompiledGrammar:
    """Return the grammar of a structural tag."""
    return _COMPILER.compile_structural_tag(text)


def accepts(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    """Return whether a whole text is of the grammar."""
    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[_END])
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(_END)


def accepts_value(grammar: xgrammar.CompiledGrammar, value: Any) -> bool:
    """Return whether a value is of the grammar, written as the engine has values written."""
    return accepts(grammar, json.dumps(value, ensure_ascii=False))


def walk(grammar: xgrammar.CompiledGrammar, chance: random.Random, max_tokens: int = 1500) -> bytes | None:
    """Return a random text of the grammar; None: it continued for more than this many bytes.

    What closes a value is likelier than the rest, and grows likelier, so that most walks end.
    """
    matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[_END])
    mask = torch.zeros((1, (_SIZE + 31) // 32), dtype=torch.int32)
    text = bytearray()
    for step in range(max_tokens):
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask, 0)
        bits = np.unpackbits(mask.numpy().view(np.uint8).reshape(-1), bitorder="little")[:_SIZE]
        allowed = [int(byte) for byte in np.nonzero(bits)[0]]
        assert allowed, f"nothing may follow {bytes(text)!r}"
        if _END in allowed and (len(allowed) == 1 or chance.random() < 0.3):
            return bytes(text)
        byte = _chosen([candidate for candidate in allowed if candidate != _END], chance, step / max_tokens)
        assert matcher.accept_token(byte)
        text.append(byte)
    return None


def _chosen(allowed: list[int], chance: random.Random, done: float) -> int:
    for preferred, likelihood in ((_CLOSING, 0.25 + done), (_STRUCTURE, 0.3), (range(128), 0.6)):
        if chance.random() < likelihood and (found := [byte for byte in allowed if byte in preferred]):
            return chance.choice(found)
    return chance.choice(allowed)
