"""The engine's token masks of a response format are those of xgrammar's own matcher."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from transformers import AutoTokenizer

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.grammars import translated
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.tiny_models import make_tiny_llama

VOCABULARY = 49152  # rows of the tiny model's output
MARK = "<file_sep>"  # a special token of the tokenizer
STEPS = 40

CALL = {"type": "tag", "begin": "<call>", "content": {"type": "regex", "pattern": "[a-z]{1,9}"}, "end": "</call>"}
ARGUMENTS = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": [1, "x"]}},
    "required": ["a"],
    "additionalProperties": False,
}
CONTENT = {"type": "json_schema", "json_schema": ARGUMENTS, "max_whitespace_cnt": 1}
THOUGHT = {"type": "any_text", "excludes": ["</think>"]}


def words(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def quoted(number: int) -> str:
    return f'"text {number}"'


def in_turn(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def of_token(token: int) -> dict[str, Any]:
    return {"type": "token", "token": token}


TAGS: dict[str, dict[str, Any]] = {
    "free text": {"type": "any_text"},
    "free text but": in_turn(THOUGHT, words("</think>!")),
    "two texts left out": in_turn({"type": "any_text", "excludes": ["ab", "bab c"]}, words("ab")),
    "tag": CALL | {"content": CONTENT},
    "tags between text": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL]},
    "one tag after text": {
        "type": "triggered_tags",
        "triggers": ["<ca", "<z"],
        "tags": [CALL | {"content": CONTENT}, CALL | {"begin": "<zz"}],
        "stop_after_first": True,
        "excludes": ["bad"],
    },
    "a tag and text": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL], "at_least_one": True},
    "texts of which one ends like another": {
        "type": "dispatch",
        "rules": [["e", words("12")], ["the", words("34")], ["he", words("56")]],
        "loop": True,
    },
    "tags with a separator": {"type": "tags_with_separator", "tags": [CALL], "separator": ";", "at_least_one": True},
    "tokens of text": in_turn(THOUGHT | {"max_tokens": 5}, words("</think>"), CONTENT),
    "no tokens of text": in_turn(THOUGHT | {"max_tokens": 0}, words("</think>"), CALL),
    "tokens": {"type": "plus", "content": {"type": "or", "elements": [of_token(300), of_token(999)]}},
    "all tokens but": in_turn(words("a"), {"type": "any_tokens", "exclude_tokens": [300, 266]}),
    "one token but": in_turn({"type": "exclude_token", "exclude_tokens": [266, 301]}, words("!")),
    "a special token": CALL | {"begin": f"call{MARK}", "content": THOUGHT, "end": MARK},
    "repetitions": {"type": "regex", "pattern": r"([A-Z][a-z]{1,12} ){60}"},
    "words": {"type": "regex", "pattern": r"([a-z]+[0-9]?){1,5}!"},
    "many ways to read a text": {"type": "regex", "pattern": r"([a-z]{1,7}[0-9a-z]{2,7}){1,6};"},
    "repetitions of alternatives": {"type": "regex", "pattern": r"((a|b|ab){2,7}c?){3,8}"},
    "nothing, repeated": {"type": "regex", "pattern": r"(a?){3,20}b"},
    "any characters": {"type": "regex", "pattern": r"(.|\n){5,30}(né|日本|🙂)*"},
    "all but": {"type": "regex", "pattern": r"[^a-z\u00e9]{1,60}!?"},
    "alternatives": {"type": "regex", "pattern": r"(\d{4}-(0[1-9]|1[0-2])|[^\d;]{3,9};){2,20}"},
    "ranges": {"type": "regex", "pattern": "[é-日🙂-🤿a]{4,30}"},
    "nested": {"type": "grammar", "grammar": 'root ::= (word " ")+ "."\nword ::= [a-zA-Zé]+ | "<" root ">"'},
    "left recursion": {"type": "grammar", "grammar": 'root ::= root "," item | item\nitem ::= [a-z]{1,8}'},
    "sums": {"type": "grammar", "grammar": 'root ::= root [-+] mul | mul\nmul ::= mul "*" one | one\none ::= [0-9]+'},
    "a long list of texts": {"type": "grammar", "grammar": f"root ::= {' | '.join(map(quoted, range(3500)))}"},
    "JSON": {"type": "grammar", "grammar": re.sub(r"\(=\(.*?\)\)", "", str(xgrammar.Grammar.builtin_json_grammar()))},
}
LARK = {
    "lark": 'start: "a" B+ "."\nB: /[0-9]+/ | "é"',
    "most tokens": 'start: (a "!")+\na[max_tokens=3]: /[a-z]+/',
    "most tokens within characters": 'start: (a "!")+\na[max_tokens=2]: /[a-zé日🙂]+/',
    "most tokens where it cannot end": 'start: (a "!")+\na[max_tokens=2]: /[a-z]{9}[0-9]*/',
    "shortest": 'start: a+ "!"\na[lazy]: /[a-z]*[aeiou]/',
    "shortest, which is nothing": 'start: a* ";"\na[lazy]: /[abc]*/',
    "up to": 'start: a+ "x"\na[stop="q"]: /[a-p0-9 ]+/',
    "up to a character of two bytes": 'start: a+ "x"\na[stop="é"]: /[a-p0-9 ]+/',
    "up to and with": 'start: a+ "x"\na[suffix="qq", max_tokens=4]: /[a-z]+/',
    "up to, or most tokens": 'start: "<" a ">"\na[stop="q", max_tokens=3]: /[a-p0-9 ]+/',
    "up to, or most tokens where it cannot end": 'start: a "!"\na[stop="qq", max_tokens=2]: /[a-p]{9}[0-9]*/',
    "JSON in it": 'start: "=" v\nv: %json {"type": "array", "items": {"type": "integer"}}',
    "nothing, again": 'start: a+ "x"\na: /[a-c]*/',
    "in any case": 'start: ("y" /hel+o[^k-q]/i)+ "É"',
    "part of a text": 'start: "a" (%regex {"substring_chars": "abcabdab"} "-")+ "z"',
    "some chunks of a text": 'start: %regex {"substring_chunks": ["a", "bc", "a", "b", "日本"]} "c"',
    "sums": '?start: product | start "+" product\nproduct: /[0-9]/+ | product "*" (/[0-9]/ | "(" start ")")',
    "by number": "start: <[300]> /[a-z]+/ <[999]>",
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(
        tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=2048, vocab_size=VOCABULARY
    )


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Iterator[AsyncEngine]:
    with pipeline(str(model_dir), backend_config=TurbomindEngineConfig(cache_max_entry_count=256)) as loaded:
        yield loaded


class Reference:
    """Compiles with the model's vocabulary, in which special tokens have no text but where a format names them."""

    def __init__(self, directory: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        self.vocabulary = list(xgrammar.TokenizerInfo.from_huggingface(tokenizer).decoded_vocab)
        self.special = {token: self.vocabulary[token] for token in tokenizer.all_special_ids}
        for token in self.special:
            self.vocabulary[token] = b""
        self.end = tokenizer.eos_token_id

    def compiler(self, text: str) -> xgrammar.GrammarCompiler:
        vocabulary = list(self.vocabulary)
        for token, content in self.special.items():
            if token != self.end and content.decode() in text:
                vocabulary[token] = content
        info = xgrammar.TokenizerInfo(
            vocabulary, vocab_type=xgrammar.VocabType.RAW, vocab_size=VOCABULARY, stop_token_ids=[self.end]
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


class Walk:
    """A random walk through a grammar that the engine has to follow.

    What may not come gets the highest scores by far, and one token that may come a higher one than all others that may.
    """

    def __init__(self, grammar: xgrammar.CompiledGrammar, seed: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._mask = torch.zeros((1, (VOCABULARY + 31) // 32), dtype=torch.int32)
        self._chance = random.Random(seed)
        self._prompt: int | None = None
        self.tokens: list[int] = []

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self._prompt is None:
            self._prompt = len(input_ids)
        assert input_ids[self._prompt :].tolist() == self.tokens
        self._mask.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._mask, 0)
        bits = np.unpackbits(self._mask.numpy().view(np.uint8).reshape(-1), bitorder="little")[:VOCABULARY]
        allowed = np.nonzero(bits)[0]
        token = int(self._chance.choice(allowed))
        assert self._matcher.accept_token(token)
        self.tokens.append(token)
        forced = torch.where(torch.from_numpy(bits) == 0, 100.0, 0.0).to(logits.dtype)
        forced[token] = 50.0
        return forced


FORMATS = {
    **{name: {"type": "structural_tag", "structural_tag": tag} for name, tag in TAGS.items()},
    **{f"lark: {name}": {"type": "lark", "lark": grammar} for name, grammar in LARK.items()},
}


@pytest.mark.alike(max_cases=33)
@pytest.mark.parametrize("name", FORMATS)
def test_the_tokens_that_may_come_are_those_of_xgrammars_matcher(
    name: str, model: AsyncEngine, reference: Reference, *, all_cases: bool
) -> None:
    text = translated(json.dumps(FORMATS[name])).text  # which xgrammar reads for the engine
    compiler = reference.compiler(text)
    grammar = (compiler.compile_structural_tag if name in TAGS else compiler.compile_lark)(text)
    for seed in range(8 if all_cases else 2):
        walk = Walk(grammar, seed)
        config = GenerationConfig(max_new_tokens=STEPS, response_format=FORMATS[name], logits_processors=[walk])
        response = model("Go on:", config)
        assert response.token_ids == (walk.tokens[:-1] if walk.tokens[-1] == reference.end else walk.tokens)
