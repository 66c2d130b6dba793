"""Responses that repeat themselves end; texts that are only regular do not."""

import base64
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.tiny_models import make_tiny_llama

WORDS = "the moon over silent water keeps her lantern low and every boat is going home to me".split()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    directory = make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=2048)
    with pipeline(str(directory), backend_config=TurbomindEngineConfig(cache_max_entry_count=1024)) as loaded:
        yield loaded


def table(chance: random.Random) -> str:
    columns = chance.randint(2, 6)
    rows = [["OK" if chance.random() < 0.7 else str(chance.randint(0, 99)) for _ in range(columns)] for _ in range(60)]
    head = [f"column {number}" for number in range(columns)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * columns, *rows])


def csv(chance: random.Random) -> str:
    rows = ([line, *(0 if chance.random() < 0.8 else chance.randint(0, 9) for _ in range(8))] for line in range(70))
    return "\n".join(",".join(map(str, row)) for row in rows)


def encoded(chance: random.Random) -> str:
    content = b"".join(bytes(chance.randint(0, 12)) + chance.randbytes(chance.randint(1, 8)) for _ in range(90))
    return base64.encodebytes(content).decode()


def code(chance: random.Random) -> str:
    names = [f"{chance.choice(WORDS)}_{number}" for number in range(30)]
    return "\n\n".join(f"    def get_{name}(self) -> int:\n        return self._{name}" for name in names)


def verse(chance: random.Random) -> str:
    refrain = "\n".join(" ".join(chance.choices(WORDS, k=6)) for _ in range(4))
    stanzas = ("\n".join(" ".join(chance.choices(WORDS, k=6)) for _ in range(4)) for _ in range(14))
    return "\n\n".join(f"{stanza}\n{refrain}" for stanza in stanzas)


def forced(tokens: list[int]) -> Callable[[Any, Any], Any]:
    """Return a logits processor that lets a model write these tokens alone."""
    prompt_len: list[int] = []

    def process(ids: Any, logits: Any) -> Any:
        prompt_len.append(len(ids))
        logits[tokens[len(ids) - prompt_len[0]]] = 1000
        return logits

    return process


@pytest.mark.parametrize("kind", [table, csv, encoded, code, verse])
def test_a_regular_text_is_written_to_its_end(
    tiny: AsyncEngine, kind: Callable[[random.Random], str], *, all_cases: bool
) -> None:
    texts = [kind(random.Random(seed)) for seed in range(100 if all_cases else 3)]
    ids = [tiny.tokenizer.encode(text, add_bos=False)[:1500] for text in texts]
    assert min(map(len, ids)) > 300
    configs = [
        GenerationConfig(max_new_tokens=len(tokens), repetition_detection="all", logits_processors=[forced(tokens)])
        for tokens in ids
    ]
    responses = tiny(["x"] * len(ids), configs, do_preprocess=False)
    assert [response.token_ids for response in responses] == ids
    assert {response.stop_reason for response in responses} == {None}


@pytest.mark.parametrize("span", [1, 7, 64])
def test_a_response_that_repeats_itself_ends_where_that_is_wanted(tiny: AsyncEngine, span: int) -> None:
    tokens = [*range(1000, 1020), *(list(range(1900, 1900 + span)) * 400)][:400]
    for detection in ("off", "reasoning", "all"):
        config = GenerationConfig(
            max_new_tokens=400, repetition_detection=detection, logits_processors=[forced(tokens)]
        )
        response = tiny("x", config, do_preprocess=False)
        is_cut = detection == "all"
        assert response.token_ids == (tokens[: 20 + 256] if is_cut else tokens)
        assert (response.finish_reason, response.stop_reason) == ("length", "repetition" if is_cut else None)
