"""Which sampling parameters a checkpoint recommends, and which requests of the offline API take them."""

import copy
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers

from lmdeploy import GenerationConfig
from lmdeploy.model_metadata.sampling_defaults import AUTO, NONE, sampling_defaults
from lmdeploy.offline.inputs import config_with, configs_for

# The sampling parameters as these checkpoints are published, in the form `save_pretrained` writes them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B-Instruct": {
        "do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
        "eos_token_id": [151645, 151643], "pad_token_id": 151643,
    },
    "Llama-3.1-8B-Instruct": {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [128001, 128009]},
    "gemma-3-4b-it": {"do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 106]},
    "Qwen2.5-VL-7B-Instruct": {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.000001},
}  # fmt: skip
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
RECOMMENDED = {**NEUTRAL, "temperature": 0.2, "top_p": 0.9}


def write(folder: Path, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recommendations_are_those_that_transformers_reads(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, PUBLISHED[name])
    # vLLM's rule: values that differ from the defaults of transformers.
    reference = transformers.GenerationConfig.from_pretrained(model).to_diff_dict()
    expected = NEUTRAL | {field: reference[field] for field in NEUTRAL if reference.get(field) is not None}
    assert sampling_defaults(AUTO, model) == expected
    assert sampling_defaults(str(model), None) == expected
    assert sampling_defaults(NONE, model) == {}


def test_an_engine_directory_has_the_checkpoints_file(tmp_path: Path) -> None:
    write(tmp_path / "tokenizer", {"temperature": 0.2, "top_p": 0.9})
    assert sampling_defaults(AUTO, tmp_path) == RECOMMENDED


@pytest.mark.parametrize("content", [None, {}, {"eos_token_id": 2, "do_sample": False}, {"temperature": None}])
def test_a_checkpoint_that_recommends_nothing_changes_nothing(content: object, tmp_path: Path) -> None:
    if content is not None:
        write(tmp_path, content)
    assert sampling_defaults(AUTO, tmp_path) == {}
    assert sampling_defaults(AUTO, None) == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not JSON"), ([], "JSON object"), ({"temperature": "hot"}, "temperature must be"), ({"top_p": 2}, "top_p")],
)
def test_a_file_that_cannot_be_used_is_ignored_with_a_warning_and_refused_where_it_was_named(
    content: object, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write(tmp_path, content)
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults(AUTO, model) == {}
    assert reason in caplog.text
    with pytest.raises(ValueError, match=reason):
        sampling_defaults(str(model), None)


def test_a_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be auto, none or a folder with a generation_config\.json"):
        sampling_defaults(str(tmp_path), None)


def test_all_tokens_may_be_called_minus_one(tmp_path: Path) -> None:
    assert sampling_defaults(AUTO, write(tmp_path, {"top_k": -1, "top_p": 0.5}))["top_k"] == 0


def test_a_config_that_samples_takes_what_it_does_not_set() -> None:
    config = config_with(GenerationConfig(do_sample=True, temperature=0.8), {"top_k": 7}, RECOMMENDED)
    assert (config.temperature, config.top_p, config.top_k) == (0.8, 0.9, 7)
    by_name = config_with(None, {"do_sample": True}, RECOMMENDED)
    assert {name: getattr(by_name, name) for name in RECOMMENDED} == RECOMMENDED
    unset = config_with(GenerationConfig(do_sample=True), {}, {})
    assert unset == GenerationConfig(do_sample=True)


def test_a_field_set_after_construction_is_given() -> None:
    config = GenerationConfig(do_sample=True)
    config.top_p = 0.3
    assert config_with(config, {}, RECOMMENDED).top_p == 0.3


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_a_copied_config_knows_what_was_given(copied: Any) -> None:
    config = copied(GenerationConfig(do_sample=True, temperature=0.8))
    assert (config.is_given("temperature"), config.is_given("top_p")) == (True, False)


@pytest.mark.parametrize("greedy", [{}, {"do_sample": True, "temperature": 0}, {"do_sample": True, "top_k": 1}])
def test_greedy_stays_greedy(greedy: dict[str, Any]) -> None:
    config = GenerationConfig(**greedy)
    penalty = RECOMMENDED | {"repetition_penalty": 1.1}
    assert configs_for(config, 2, {}, penalty) == [config, config]
