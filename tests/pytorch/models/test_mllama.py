"""Llama 3.2 Vision in the PyTorch engine; `test_seeing` has what all vision-language models share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.both_engines import config_for
from tests.support.images import make_image
from tests.support.mllama_reference import MllamaReference, make_tiny_mllama
from tests.support.token_engine import relative_error

TOLERANCE = 1e-4
SETTINGS: dict[str, Any] = {
    "session_len": 256, "cache_max_entry_count": 96, "cache_block_seq_len": 16, "max_batch_size": 4,
    "num_tokens_per_iter": 20,
}  # fmt: skip
ALL = GenerationConfig(max_new_tokens=6, output_logits="all", do_sample=False, ignore_eos=True)
GREEDY = GenerationConfig(max_new_tokens=8, do_sample=False, ignore_eos=True)


def engine_of(directory: Path, **settings: Any) -> AsyncEngine:
    return pipeline(str(directory), config_for("pytorch", **SETTINGS | settings))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_mllama(tmp_path_factory.mktemp("mllama") / "model")


@pytest.mark.parametrize(("looking", "layers"), [([3], 5), ([0, 3], 5)], ids=str)
def test_logits_are_those_of_transformers(tmp_path: Path, looking: Sequence[int], layers: int) -> None:
    made = make_tiny_mllama(tmp_path / "model", looking=looking, layers=layers)
    shown = [make_image(60, 40), make_image(30, 90, 1)]
    reference = MllamaReference(made)
    with engine_of(made) as pipe:
        for images in ([], shown[:1], shown):
            prompt = ("which is it?", images) if images else "which is it?"
            response, ids = pipe(prompt, ALL), pipe.prepare(prompt).ids
            assert relative_error(response.logits[: len(ids)], reference(ids, images)) < TOLERANCE


@pytest.mark.parametrize(
    "settings",
    [{"tp": 2}, {"dtype": "bfloat16"}, {"quant_policy": 8}, {"quant_policy": 4}],
    ids=str,
)
def test_settings_lose_no_more_of_images_than_of_texts(directory: Path, settings: dict[str, Any]) -> None:
    reference = MllamaReference(directory)
    errors = []
    with engine_of(directory, **({"dtype": "float32"} | settings)) as pipe:
        for shown in ([], [make_image(60, 40)]):
            prompt = ("what is it? " * 2, shown) if shown else "what is it? " * 2
            ids, logits = pipe.prepare(prompt).ids, pipe(prompt, ALL).logits
            errors.append(relative_error(logits[: len(ids)], reference(ids, shown)))
    assert errors[1] < 2 * errors[0] + TOLERANCE


def test_images_swapped_to_the_host_come_back(directory: Path) -> None:
    asked = [("what is it?", make_image(60, 40, seed)) for seed in range(6)]
    with engine_of(directory) as plenty:
        expected = [plenty(prompt, GREEDY).token_ids for prompt in asked]
    short = {"session_len": 96, "cache_max_entry_count": 10, "num_cpu_blocks": 64, "enable_prefix_caching": True}
    with engine_of(directory, **short) as pipe:
        for _ in range(2):
            assert [pipe(prompt, GREEDY).token_ids for prompt in asked] == expected
        assert pipe.engine.metrics()["swapped_in_total"] > 0
