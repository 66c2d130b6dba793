"""Lines of older manuals, and fields and names that they use, run as written, the default model in place of theirs."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmdeploy import (
    ChatTemplateConfig,
    GenerationConfig,
    PytorchEngineConfig,
    Response,
    TurbomindEngineConfig,
    pipeline,
)
from lmdeploy.messages import ResponseType, VisionConfig
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind import TurboMind
from lmdeploy.turbomind.instance import TurboMindInstance

PROMPTS = ["Hi, pls intro yourself", "Shanghai is"]
SETTINGS = TurbomindEngineConfig(dtype="float32", session_len=512, cache_max_entry_count=64)


@pytest.fixture(scope="module")
def pipe(default_model_dir: Path) -> Iterator[AsyncEngine]:
    with pipeline(str(default_model_dir), backend_config=SETTINGS, gen_config=GenerationConfig(max_new_tokens=6)) as it:
        yield it


@pytest.fixture(scope="module")
def instance(pipe: AsyncEngine) -> TurboMindInstance:
    return TurboMindInstance(pipe.engine)  # what TurboMind.create_instance returns, without a second model


def test_a_pipeline_generates_as_its_gen_config_says_where_a_call_does_not(pipe: AsyncEngine) -> None:
    assert [one.generate_token_len for one in pipe(PROMPTS)] == [6, 6]
    assert pipe(PROMPTS[0], max_new_tokens=3).generate_token_len == 3
    assert pipe(PROMPTS[0], GenerationConfig(max_new_tokens=2)).generate_token_len == 2
    assert pipe.chat(PROMPTS[0]).response.generate_token_len == 6


def test_a_chat_template_of_one_call(pipe: AsyncEngine) -> None:
    base = ChatTemplateConfig("base")
    expected = pipe(PROMPTS, do_preprocess=False)
    assert [one.text for one in pipe.batch_infer(PROMPTS, chat_template_config=base)] == [one.text for one in expected]
    assert pipe(PROMPTS[1]).text != expected[1].text
    with pytest.raises(ValueError, match="chat_template_config must be a ChatTemplateConfig, got str"):
        pipe.batch_infer(PROMPTS, chat_template_config="base")


async def test_generate_stops_a_session_and_takes_a_chat_template(pipe: AsyncEngine) -> None:
    async def text(**fields: object) -> list[Response]:
        return [piece async for piece in pipe.generate(PROMPTS[1], 7, **fields)]

    pieces = await text(stop=False, chat_template_config=ChatTemplateConfig("base"), step=0)
    assert "".join(piece.text for piece in pieces) == pipe(PROMPTS[1], do_preprocess=False).text
    running = pipe.generate(PROMPTS[0], 8, GenerationConfig(max_new_tokens=400, ignore_eos=True), sequence_end=False)
    await anext(running)
    [stopped] = [piece async for piece in pipe.generate("", 8, stop=True)]
    assert stopped.finish_reason == "cancelled"
    assert [piece.finish_reason async for piece in running][-1] == "cancelled"
    await pipe.end_session(8)
    with pytest.raises(ValueError, match="strings that end the response are stop_words"):
        await anext(pipe.generate("Hi", 9, stop="end"))


def test_top_p_of_nothing_is_the_most_likely_token(pipe: AsyncEngine) -> None:
    greedy = pipe(PROMPTS, GenerationConfig(max_new_tokens=8))
    sampled = pipe(PROMPTS, GenerationConfig(max_new_tokens=8, do_sample=True, temperature=2, top_k=0, top_p=0))
    assert [one.token_ids for one in sampled] == [one.token_ids for one in greedy]


def test_a_result_of_the_role_ipython_is_that_of_a_tool(pipe: AsyncEngine) -> None:
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "call"}]
    ids = [pipe.prepare([*messages, {"role": role, "content": "4"}]).ids for role in ("ipython", "tool")]
    assert ids[0] == ids[1]


OLDER_FIELDS = {
    "model_name": "internlm-chat-7b",
    "group_size": 128,
    "max_context_token_num": 1,
    "use_context_fmha": 1,
    "use_dynamic_ntk": False,
    "kv_bits": 8,
}


def test_older_fields_are_accepted_with_a_sentence_each(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lmdeploy"):
        assert TurbomindEngineConfig(tp=2, **OLDER_FIELDS) == TurbomindEngineConfig(tp=2)
        assert PytorchEngineConfig(model_name="", eviction_type="copy") == PytorchEngineConfig()
    for name in (*OLDER_FIELDS, "eviction_type"):
        assert f"{name} has no effect: " in caplog.text
    assert "8 bits" not in caplog.text
    with pytest.raises(TypeError, match="group_sise"):
        TurbomindEngineConfig(group_sise=128)


def test_a_quant_policy_of_a_config_of_that_age_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    TurbomindEngineConfig(quant_policy=4)
    assert not caplog.records
    TurbomindEngineConfig(quant_policy=4, kv_bits=8)
    assert "quant_policy=4 means a cache of 4 bits" in caplog.text
    assert "kv_bits meant 8 bits by it: say quant_policy=8" in caplog.text


def test_more_than_one_image_a_batch_is_answered_with_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    VisionConfig()
    assert not caplog.records
    VisionConfig(max_batch_size=16)
    assert "VisionConfig.max_batch_size has no effect: images are encoded one at a time" in caplog.text


def test_an_instance_of_turbomind_streams_token_ids(pipe: AsyncEngine, instance: TurboMindInstance) -> None:
    ids, config = pipe.prepare(PROMPTS[0]).ids, GenerationConfig(max_new_tokens=6)
    expected = pipe(PROMPTS[0], config).token_ids
    outputs = list(instance.stream_infer(1, ids, config, sequence_end=True, stream_output=True))
    assert [output.status for output in outputs] == [ResponseType.SUCCESS] * (len(outputs) - 1) + [ResponseType.FINISH]
    assert all(expected[: output.num_token] == output.token_ids for output in outputs)
    assert outputs[-1].token_ids == expected
    [whole] = instance.stream_infer(2, ids, config, sequence_end=True)
    assert (whole.status, whole.token_ids) == (ResponseType.FINISH, expected)


def test_an_instance_of_turbomind_says_by_its_status_why_there_is_nothing(instance: TurboMindInstance) -> None:
    config = GenerationConfig(max_new_tokens=2)
    assert [one.status for one in instance.stream_infer(3, [], config)] == [ResponseType.INPUT_LENGTH_ERROR]
    assert [one.status for one in instance.stream_infer(3, [1] * 600, config)] == [ResponseType.INPUT_LENGTH_ERROR]
    unknown = instance.stream_infer(99, [1, 2], config, sequence_start=False)
    assert [one.status for one in unknown] == [ResponseType.SESSION_NOT_EXIST]
    instance.cancel(99)
    instance.end(99)


def test_turbomind_is_made_from_a_checkpoint(default_model_dir: Path, pipe: AsyncEngine) -> None:
    model = TurboMind.from_pretrained(str(default_model_dir), engine_config=SETTINGS)
    ids, config = pipe.prepare(PROMPTS[1]).ids, GenerationConfig(max_new_tokens=3)
    [output] = model.create_instance().stream_infer(0, ids, config, sequence_end=True)
    model.close()
    assert output.token_ids == pipe(PROMPTS[1], config).token_ids
