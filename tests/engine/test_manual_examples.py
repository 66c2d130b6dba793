"""Examples of the Python API in LMDeploy's manual run as written, with the default model in place of the named one."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lmdeploy import GenerationConfig, Response, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.pytorch import EngineConfig as PytorchSettings
from lmdeploy.turbomind import EngineConfig as TurbomindSettings

PROMPTS = ["Hi, pls intro yourself", "Shanghai is"]
SHORT = GenerationConfig(max_new_tokens=8)


@pytest.fixture(scope="module")
def pipe(default_model_dir: Path) -> Iterator[AsyncEngine]:
    config = TurbomindEngineConfig(dtype="float32", session_len=512, cache_max_entry_count=64)
    with pipeline(str(default_model_dir), backend_config=config) as loaded:
        yield loaded


def joined(pieces: Iterator[Response]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for piece in pieces:
        texts[piece.index] = texts.get(piece.index, "") + piece.text
    return texts


def test_a_list_of_texts_is_answered_in_order_each_under_a_session_id_of_its_own(pipe: AsyncEngine) -> None:
    response = pipe(PROMPTS, SHORT)
    assert [one.text for one in response] == [pipe(prompt, SHORT).text for prompt in PROMPTS]
    assert all(isinstance(one, Response) and one.text for one in response)
    assert response[0].session_id != response[1].session_id
    assert "session_id=" in repr(response[0])


@pytest.mark.parametrize(
    ("config", "keywords"),
    [
        (TurbomindEngineConfig(cache_max_entry_count=0.2), {}),
        (TurbomindEngineConfig(tp=3), {}),
        (TurbomindEngineConfig(quant_policy=8), {"log_level": "INFO"}),
        (
            TurbomindEngineConfig(
                rope_scaling_factor=2.5, session_len=4096, max_batch_size=1, cache_max_entry_count=0.7
            ),
            {},
        ),
        (TurbomindSettings(tp=1, session_len=1024), {"backend": "turbomind"}),
        (None, {"tp": 1, "session_len": 1024, "instance_num": 2, "model_name": "internlm-chat-7b"}),
    ],
    ids=["cache", "tp", "quant_policy", "long context", "before 0.2.0", "keywords"],
)
def test_engine_settings_of_the_examples(
    default_model_dir: Path, config: TurbomindEngineConfig | None, keywords: dict[str, Any]
) -> None:
    with pipeline(str(default_model_dir), backend_config=config, **keywords) as pipe:
        assert all(one.generate_token_len for one in pipe(PROMPTS, max_new_tokens=2))
        correct = config or TurbomindEngineConfig(tp=1, session_len=1024, max_batch_size=2)
        assert pipe.backend_config == correct
        assert pipe.session_len == (correct.session_len or pipe.session_len)
        assert pipe.model_name == keywords.get("model_name", "SmolLM2-135M-Instruct")
        assert pipe.backend == "turbomind"


def test_sampling_fields_by_name_go_before_the_config(pipe: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=12, do_sample=True, temperature=1.5, top_k=0, random_seed=9)
    by_name = pipe(PROMPTS[0], request_output_len=12, do_sample=True, temperature=1.5, top_k=0, random_seed=9)
    assert by_name.token_ids == pipe(PROMPTS[0], config).token_ids
    assert pipe(PROMPTS[0], config, max_new_tokens=3).generate_token_len == 3
    assert config.max_new_tokens == 12
    assert joined(pipe.stream_infer(PROMPTS[0], config, random_seed=10)) == {
        0: pipe(PROMPTS[0], config, random_seed=10).text
    }


def test_sampling_fields_without_do_sample_are_answered_with_a_word(
    pipe: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lmdeploy"):
        pipe(PROMPTS[0], max_new_tokens=1, min_p=0.25, random_seed=4)
    assert "do_sample is False: decoding is greedy, and min_p, random_seed has no effect" in caplog.text


def test_a_text_after_which_the_model_would_end_has_logits_of_all_its_tokens(
    pipe: AsyncEngine, default_model_dir: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    response = pipe(messages, gen_config=GenerationConfig(max_new_tokens=64))
    assert response.finish_reason == "stop"
    ids = prompt + response.token_ids
    logits = pipe.get_logits(ids)
    assert logits.shape == (1, len(ids), pipe.engine.vocab_size)
    assert int(logits[0, -1].argmax()) == tokenizer.eos_token_id


def test_the_tokenizer_measures_a_long_prompt_and_the_prompt_is_answered(pipe: AsyncEngine) -> None:
    tok = pipe.tokenizer
    garbage = "The grass is green. The sky is blue."
    n_times = 200 // len(tok.encode(garbage))
    prompt = " ".join([*[garbage] * n_times, "The pass key is 41. What is the pass key? The pass key is"])
    [response] = pipe([prompt], max_new_tokens=4)
    assert response.input_token_len == len(pipe.prepare_inputs(prompt)["input_ids"][0])


def test_a_session_is_called_for_each_turn_streamed_or_whole(pipe: AsyncEngine) -> None:
    with pipe.session(SHORT) as session:
        first = "".join(piece.text for piece in session("What is the capital of France?"))
        assert session.response.text == first
        second = session("And of Italy?", stream_response=False)
        assert second.history_token_len > 0
        assert session.history == [("What is the capital of France?", first), ("And of Italy?", second.text)]
        streamed = pipe.chat("Why?", session, stream_response=True, max_new_tokens=4)
        assert streamed.generator is not None
        assert "".join(piece.text for piece in streamed.generator) == session.history[-1][1]
        assert session.response.generate_token_len <= 4


def test_infer_gives_an_iterator_a_prompt_or_all_as_one(pipe: AsyncEngine) -> None:
    correct = [one.text for one in pipe(PROMPTS, SHORT)]
    streams = pipe.infer(PROMPTS, SHORT, stream_response=True)
    assert ["".join(piece.text for piece in stream) for stream in streams] == correct
    both = list(pipe.infer(PROMPTS, SHORT))
    assert [one.text for stream in reversed(both) for one in stream] == correct[::-1]
    assert joined(pipe.infer(PROMPTS, SHORT, multiplex=True, stream_response=True)) == dict(enumerate(correct))


async def test_generate_takes_either_messages_or_ids(pipe: AsyncEngine) -> None:
    ids = pipe.prepare(PROMPTS[0]).ids
    pieces = [piece async for piece in pipe.generate(None, 3, SHORT, input_ids=ids)]
    assert "".join(piece.text for piece in pieces) == pipe(PROMPTS[0], SHORT).text
    assert {piece.session_id for piece in pieces} == {3}
    with pytest.raises(ValueError, match="messages or input_ids must be given, got both"):
        await anext(pipe.generate("Hi", 3, input_ids=ids))
    with pytest.raises(ValueError, match="skip_stop_tokens must be True"):
        await anext(pipe.generate("Hi", 3, skip_stop_tokens=False))
    with pytest.raises(ValueError, match="got neither"):
        await anext(pipe.generate(None, 3))


REJECTED_CALLS = {
    "image": (lambda pipe: pipe(("describe this image", "tiger.jpeg")), ValueError, "this model reads text only"),
    "images": (lambda pipe: pipe([("describe this image", "a.png")] * 2), ValueError, "this model reads text only"),
    "adapter": (lambda pipe: pipe("Hi", adapter_name="lora"), ValueError, r"one of adapters \(none\), got 'lora'"),
    "typo": (lambda pipe: pipe("Hi", temprature=1), TypeError, "'temprature'; did you mean 'temperature'"),
    "range": (lambda pipe: pipe("Hi", top_p=2), ValueError, "top_p"),
    "config": (lambda pipe: pipe("Hi", {"top_p": 1}), ValueError, "gen_config must be a GenerationConfig"),
    "choices": (lambda pipe: pipe.chat("Hi", n=2), ValueError, "n must be 1 in a conversation"),
}


@pytest.mark.parametrize("case", REJECTED_CALLS)
def test_a_call_that_cannot_be_served_is_refused_with_the_reason(pipe: AsyncEngine, case: str) -> None:
    call, error, reason = REJECTED_CALLS[case]
    with pytest.raises(error, match=reason):
        call(pipe)


REJECTED_PIPELINES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "device": ({"backend": "pytorch", "backend_config": PytorchSettings(device_type="maca")}, ValueError, "MetaX"),
    "unknown backend": ({"backend": "magic"}, ValueError, "backend must be one of"),
    "two backends": (
        {"backend": "pytorch", "backend_config": TurbomindEngineConfig()},
        ValueError,
        "backend='pytorch' contradicts backend_config",
    ),
    "two values": (
        {"tp": 2, "backend_config": TurbomindEngineConfig(tp=4)},
        ValueError,
        "tp=2 contradicts backend_config.tp=4",
    ),
    "typo": ({"sesion_len": 5}, TypeError, "'sesion_len'; did you mean 'session_len'"),
    "vision": ({"vision_config": object()}, ValueError, "vision_config must be a VisionConfig"),
    "positional name": ({"backend_config": "internlm-chat-7b"}, TypeError, "got 'internlm-chat-7b'"),
}


@pytest.mark.parametrize("case", REJECTED_PIPELINES)
def test_a_pipeline_that_cannot_be_had_is_refused_with_the_reason(case: str) -> None:
    keywords, error, reason = REJECTED_PIPELINES[case]
    with pytest.raises(error, match=reason):
        pipeline("", **keywords)
