"""Workers that choose tokens, and get the next step before the engine has seen them, give what the engine's own sampler
gives: here on the CPU, where LMDEPLOY_CUDA_KERNELS asks for it; on a GPU it is how steps run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline
from tests.engine.test_cuda_sampling import PROMPTS, SETTINGS, sampled
from tests.pytorch.test_worker import Answer
from tests.support.both_engines import WITHOUT_REUSE
from tools.bench import random_model

Pair = tuple[Any, Any]  # pipelines: the worker chooses, the engine chooses


@contextmanager
def opened(directory: Path, chooser: str, **more: Any) -> Iterator[Any]:
    settings: dict[str, Any] = {"dtype": "float32", "session_len": 96, "block_size": 16, "num_gpu_blocks": 60}
    config = PytorchEngineConfig(device_type="cpu", **WITHOUT_REUSE | settings | {"max_batch_size": 8} | more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDEPLOY_CUDA_KERNELS", "sampling=torch" if chooser == "worker" else "sampling=off")
        pipe = pipeline(str(directory), backend_config=config)
    with pipe:
        yield pipe


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model.write("tiny", tmp_path_factory.mktemp("overlap") / "model")


@pytest.fixture(scope="module")
def pair(directory: Path) -> Iterator[Pair]:
    with opened(directory, "worker") as native, opened(directory, "engine") as reference:
        yield native, reference


def all_requests() -> tuple[list[str], list[GenerationConfig]]:
    kinds = [(prompt, sampled(name, 3 * seed)) for seed, prompt in enumerate(PROMPTS) for name in SETTINGS]
    return [prompt for prompt, _ in kinds], [chosen for _, chosen in kinds]


def test_a_crowd_gets_the_same_tokens_and_log_probabilities(pair: Pair) -> None:
    native, reference = (pipe(prompts, gen_config=chosen) for pipe in pair for prompts, chosen in [all_requests()])
    assert [response.token_ids for response in native] == [response.token_ids for response in reference]
    reported = 0
    for one, other in zip(native, reference, strict=True):
        assert one.finish_reason == other.finish_reason
        for mine, its in zip(one.logprobs or [], other.logprobs or [], strict=True):
            assert list(mine) == list(its)
            assert list(mine.values()) == pytest.approx(list(its.values()), rel=2.0**-20)
            reported += 1
    assert reported == 10 * len(PROMPTS)


def test_a_crowd_that_is_preempted_gets_what_each_gets_alone(directory: Path, pair: Pair) -> None:
    prompts, chosen = all_requests()
    with opened(directory, "worker", max_batch_size=16, num_gpu_blocks=12, session_len=64) as pipe:
        crowd = pipe(prompts, gen_config=chosen)
        assert pipe.engine.metrics()["preemptions_total"] > 0
    assert [response.token_ids for response in crowd] == [
        response.token_ids for response in pair[1](prompts, gen_config=chosen)
    ]


def test_two_ranks_go_on_with_the_first_ones_tokens(directory: Path) -> None:
    prompts = PROMPTS[:2] * len(SETTINGS)
    chosen = [sampled(name, seed) for name in SETTINGS for seed in range(2)]
    tokens = []
    for chooser in ("worker", "engine"):
        with opened(directory, chooser, tp=2) as pipe:
            tokens.append([response.token_ids for response in pipe(prompts, gen_config=chosen)])
    assert tokens[0] == tokens[1]


def test_the_step_after_a_stop_word_was_under_way_and_leaves_nothing_behind(pair: Pair) -> None:
    greedy = GenerationConfig(max_new_tokens=12, ignore_eos=True)
    text = pair[1](PROMPTS[1], gen_config=greedy).text
    stop = next(character for character in text[3:] if character != "\ufffd")  # which stands for broken bytes
    stops = GenerationConfig(max_new_tokens=12, ignore_eos=True, stop_words=[stop])
    responses, steps = [], []
    for pipe in pair:
        before = pipe.engine.metrics()["steps_total"]
        responses.append(pipe(PROMPTS[1], gen_config=stops))
        steps.append(pipe.engine.metrics()["steps_total"] - before)
    assert responses[0].text == responses[1].text
    assert responses[0].finish_reason == responses[1].finish_reason == "stop"
    assert steps[0] == steps[1] + 1
    assert pair[0](PROMPTS[1], gen_config=greedy).text == text


def test_drafts_from_the_text_leave_tokens_as_they_are(directory: Path, pair: Pair) -> None:
    drafts = {"num_speculative_tokens": 4, "adaptive": False, "prompt_lookup_min": 1}
    few = dict.fromkeys((65, 66, 67), 40.0)  # what says little else repeats itself
    chosen = [
        GenerationConfig(max_new_tokens=30, ignore_eos=True, do_sample=True, random_seed=seed, logit_bias=few)
        for seed in range(len(PROMPTS))
    ]
    with opened(directory, "worker", speculative_config=drafts) as pipe:
        drafted = pipe(PROMPTS, gen_config=chosen)
        assert pipe.engine.metrics()["draft_tokens_accepted_total"] > 0
    assert [response.token_ids for response in drafted] == [
        response.token_ids for response in pair[1](PROMPTS, gen_config=chosen)
    ]


def test_several_responses_of_a_request(pair: Pair) -> None:
    several = GenerationConfig(max_new_tokens=8, n=3, do_sample=True, top_k=0, random_seed=5, ignore_eos=True)
    native, reference = ([response.token_ids for response in pipe(PROMPTS[0], gen_config=several)] for pipe in pair)
    assert native == reference


def test_responses_keep_to_a_response_format(pair: Pair) -> None:
    pytest.importorskip("xgrammar", reason="grammars need xgrammar")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 999}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    chosen = GenerationConfig(max_new_tokens=40, do_sample=True, random_seed=3, response_format=form)
    native, reference = ([response.token_ids for response in pipe(PROMPTS, gen_config=chosen)] for pipe in pair)
    assert native == reference


def answer(pipe: Any, seed: int, **more: Any) -> Answer:
    return Answer(pipe.engine, 60, prompt=[5, 17, 200 + seed], do_sample=True, top_k=0, random_seed=seed, **more)


def test_cancelled_requests_end_and_the_others_go_on(pair: Pair) -> None:
    native, reference = pair
    expected = [answer(reference, seed).wait().tokens for seed in range(8)]
    answers = [answer(native, seed, cancel_after=seed % 2 * (1 + seed)) for seed in range(8)]
    for seed, one in enumerate(answers):
        one.wait()
        assert one.tokens == expected[seed][: len(one.tokens)]
        if seed % 2 == 0:
            assert (len(one.tokens), one.reason) == (60, "length")
    assert answer(native, 3).wait().tokens == expected[3]
