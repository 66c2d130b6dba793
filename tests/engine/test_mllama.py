"""Llama 3.2 Vision: what is its own. What all vision-language models promise is in `test_vision_models.py`."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import MllamaForConditionalGeneration

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.images import make_image
from tests.support.mllama_reference import MllamaReference, make_tiny_mllama
from tests.support.token_engine import relative_error

TOLERANCE = 1e-4
SETTINGS = {
    "device": "cpu", "session_len": 256, "cache_max_entry_count": 96, "cache_block_seq_len": 16, "max_batch_size": 4,
    "num_tokens_per_iter": 20,
}  # fmt: skip
ALL = GenerationConfig(max_new_tokens=6, output_logits="all", do_sample=False, ignore_eos=True)
GREEDY = GenerationConfig(max_new_tokens=8, do_sample=False, ignore_eos=True)


def engine_of(directory: Path, **settings: Any) -> AsyncEngine:
    return pipeline(str(directory), TurbomindEngineConfig(**(WITHOUT_REUSE | SETTINGS | settings)))


def turn(*content: Image.Image | str) -> list[dict[str, Any]]:
    def part(one: Image.Image | str) -> dict[str, Any]:
        return {"type": "text", "text": one} if isinstance(one, str) else image_data(one)

    return [{"role": "user", "content": [part(one) for one in content]}]


def image_data(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_data", "image_data": {"data": image}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_mllama(tmp_path_factory.mktemp("mllama") / "model")


@pytest.mark.parametrize(("looking", "layers"), [([3], 5), ([0, 1, 3], 8), ([3, 8], 10)], ids=str)
def test_layers_that_look_may_stand_anywhere(tmp_path: Path, looking: Sequence[int], layers: int) -> None:
    made = make_tiny_mllama(tmp_path / "model", looking=looking, layers=layers)
    messages = turn(make_image(60, 40), "what is it?")
    with engine_of(made) as pipe:
        response, ids = pipe(messages, ALL), pipe.prepare(messages).ids
    expected = MllamaReference(made)(ids, [make_image(60, 40)])
    assert relative_error(response.logits[: len(ids)], expected) < TOLERANCE


def test_images_that_follow_each_other_are_looked_at_together(directory: Path) -> None:
    shown = [make_image(60, 40, seed) for seed in range(3)]
    messages = [*turn(shown[0], shown[1], "alike?"), {"role": "assistant", "content": "no"}, *turn(shown[2], "now?")]
    with engine_of(directory, enable_prefix_caching=True) as pipe:
        ids = pipe.prepare(messages).ids
        whole = pipe(messages, ALL)
        assert relative_error(whole.logits[: len(ids)], MllamaReference(directory)(ids, shown)) < TOLERANCE
        others = pipe([*turn(shown[1], shown[0], "alike?"), *messages[1:]], ALL)
        assert not torch.equal(others.logits, whole.logits), "their order makes no difference"
        assert torch.equal(pipe(messages, ALL).logits, whole.logits)


@pytest.mark.parametrize(
    "settings",
    [
        {"tp": 2},
        {"dtype": "bfloat16"},
        {"quant_policy": 8},
        {"quant_policy": 4},
        {"weight_bits": 8},
        {"weight_bits": 4},
    ],
    ids=str,
)
def test_settings_lose_no_more_of_images_than_of_texts(directory: Path, settings: dict[str, Any]) -> None:
    reference = MllamaReference(directory)
    errors = []
    with engine_of(directory, **({"dtype": "float32"} | settings)) as pipe:
        for shown in ([], [make_image(60, 40)]):
            messages = turn(*shown, "what is it? " * 2)
            ids, logits = pipe.prepare(messages).ids, pipe(messages, ALL).logits
            errors.append(relative_error(logits[: len(ids)], reference(ids, shown)))
    assert errors[1] < 2 * errors[0] + TOLERANCE


def test_a_session_goes_on_looking_at_its_image(directory: Path) -> None:
    shown = make_image(60, 40)
    config = dataclasses.replace(GREEDY, output_logits="generation")
    with engine_of(directory) as pipe:
        session = pipe.chat(("what is it?", shown), gen_config=config)
        ids = [*pipe.prepare(("what is it?", shown)).ids, *session.response.token_ids]
        session = pipe.chat("and where?", session=session, gen_config=config)
        prompts = pipe.tokenizer.encode(" USER: and where? ASSISTANT:", add_bos=False)
    response = session.response
    assert (response.history_token_len, response.input_token_len) == (len(ids), len(prompts))
    ids += prompts
    expected = MllamaReference(directory)([*ids, *response.token_ids], [shown])[len(ids) - 1 : -1]
    assert relative_error(response.logits, expected[: len(response.logits)]) < TOLERANCE


def test_images_swapped_to_the_host_come_back(directory: Path) -> None:
    prompts = [turn(make_image(60, 40, seed), "what is it?") for seed in range(6)]
    with engine_of(directory) as plenty:
        expected = [plenty(messages, GREEDY).token_ids for messages in prompts]
    short = {"session_len": 96, "cache_max_entry_count": 10, "num_cpu_blocks": 64, "enable_prefix_caching": True}
    with engine_of(directory, **short) as pipe:
        for _ in range(2):
            assert [pipe(messages, GREEDY).token_ids for messages in prompts] == expected
        assert pipe.engine.metrics()["swapped_in_total"] > 0


def test_images_that_leave_no_room_are_refused_and_disturb_nobody(directory: Path) -> None:
    with engine_of(directory, session_len=64, cache_max_entry_count=5) as pipe:
        many = [message for seed in range(4) for message in turn(make_image(28, 28, seed), "and?")]
        with pytest.raises(ValueError, match=r"the images leave no room in the cache for a prompt of 59 tokens"):
            pipe(many, GREEDY)
        assert pipe(turn(make_image(28, 28), "?"), GREEDY).generate_token_len == 8


def test_an_adapter_for_the_layers_that_look_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    model = MllamaForConditionalGeneration.from_pretrained(directory)
    config = LoraConfig(r=2, target_modules=r".*language_model.*\.(q_proj|v_proj)")
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=re.compile("cross_attn|adapt", re.IGNORECASE)):
        engine_of(directory, adapters={"all": str(tmp_path / "adapter")})
