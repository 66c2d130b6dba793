"""Tokens chosen on CUDA, emulated and on a GPU: what the engine on the CPU chooses from the same logits.

Both take the same random numbers, so they differ only where a number falls on the border between two tokens, which
rounding moves by about one in a hundred thousand. The CPU's sampler is held against the textbook in
``backend_cpp/tests/test_parts.cc``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, Response, TurbomindEngineConfig, pipeline
from tests.engine.test_cuda_engine import on_cuda, two_gpus
from tests.support.both_engines import WITHOUT_REUSE
from tools.bench import random_model

__all__ = ["on_cuda", "two_gpus"]

# The model's 300 tokens are one chunk of the kernels; more are in tests/kernels/test_cuda_sampling.py.
PROMPTS = ["a b a b a b", "one two three", "1 2 3 4 5 6 7 8 9", "x", "The cat sat on the mat and"]

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "all": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "top-k": {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 1.0},
    "top-p": {"do_sample": True, "temperature": 1.2, "top_k": 0, "top_p": 0.6},
    "min-p": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.5},
    "repetition": {"do_sample": True, "temperature": 1.0, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.8},
    "presence and frequency": {"do_sample": False, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    "bias": {"do_sample": True, "top_k": 0, "logit_bias": {17: 4.0, 200: 3.5, 299: -50.0}},
    "bad words": {"do_sample": True, "top_k": 0, "bad_words": ["e", "12"]},
    "bad and few": {"do_sample": True, "top_k": 0, "bad_token_ids": list(range(0, 290, 2)), "min_new_tokens": 9},
    "log probabilities": {"do_sample": True, "top_k": 0, "logprobs": 7},
    "logits": {"do_sample": True, "top_k": 0, "output_logits": "generation"},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model.write("tiny", tmp_path_factory.mktemp("sampling") / "model")


def config(device: str, batch: int = 4, **more: Any) -> TurbomindEngineConfig:
    settings: dict[str, Any] = {"dtype": "float32", "session_len": 96, "cache_block_seq_len": 16}
    settings |= {"cache_max_entry_count": 40, "max_prefill_token_num": 64} | more
    return TurbomindEngineConfig(device=device, max_batch_size=batch, **WITHOUT_REUSE | settings)


def sampled(name: str, seed: int) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=10, ignore_eos=True, random_seed=seed, **SETTINGS[name])


def requests_of(prompts: list[str], step: int, *, all_cases: bool) -> list[tuple[str, GenerationConfig]]:
    """Return a request of each kind for each prompt; of a sample, each kind for one prompt in turn."""
    return [
        (prompt, sampled(name, step * seed))
        for seed, prompt in enumerate(prompts)
        for kind, name in enumerate(SETTINGS)
        if all_cases or kind % len(prompts) == seed
    ]


def responses(
    directory: Path, device: str, requests: list[tuple[str, GenerationConfig]], **more: Any
) -> list[Response]:
    with pipeline(str(directory), backend_config=config(device, **more)) as pipe:
        responses = pipe([prompt for prompt, _ in requests], gen_config=[chosen for _, chosen in requests])
    assert isinstance(responses, list)
    return responses


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_that_the_cpu_chooses(name: str, tiny: Path, on_cuda: None) -> None:
    requests = [(prompt, sampled(name, seed)) for seed, prompt in enumerate(PROMPTS)]
    here = responses(tiny, "cuda", requests)
    there = responses(tiny, "cpu", requests)
    assert [response.token_ids for response in here] == [response.token_ids for response in there]
    if name == "log probabilities":
        for native, reference in zip(here, there, strict=True):
            assert native.logprobs is not None
            assert reference.logprobs is not None
            for one, other in zip(native.logprobs, reference.logprobs, strict=True):
                assert list(one) == list(other)
                assert list(one.values()) == pytest.approx(list(other.values()), abs=1e-4)


def test_a_mixed_crowd_that_waits_and_is_preempted_gets_what_each_gets_alone(
    tiny: Path, on_cuda: None, *, all_cases: bool
) -> None:
    requests = requests_of(PROMPTS, 7, all_cases=all_cases)
    with pipeline(str(tiny), backend_config=config("cuda", 16, cache_max_entry_count=20, num_cpu_blocks=30)) as pipe:
        crowd = pipe([prompt for prompt, _ in requests], gen_config=[chosen for _, chosen in requests])
        assert pipe.engine.metrics()["swapped_in_total"] > 0
    alone = responses(tiny, "cpu", requests, batch=1)
    assert [response.token_ids for response in crowd] == [response.token_ids for response in alone]


def test_two_ranks_choose_what_one_does(tiny: Path, two_gpus: None, *, all_cases: bool) -> None:
    requests = requests_of(PROMPTS[:2], 3, all_cases=all_cases)
    here = responses(tiny, "cuda", requests, batch=8, tp=2)
    there = responses(tiny, "cpu", requests)
    assert [response.token_ids for response in here] == [response.token_ids for response in there]


def test_what_does_not_fit_on_the_device_is_chosen_on_the_host(tiny: Path, on_cuda: None) -> None:
    # Penalties of 64 sequences, and lists of about 270 kB.
    penalties = GenerationConfig(max_new_tokens=4, ignore_eos=True, repetition_penalty=1.7)
    long_list = GenerationConfig(max_new_tokens=4, ignore_eos=True, bad_token_ids=list(range(0, 290, 2)) * 68)
    requests = [(chr(97 + i % 26) * (1 + i // 26), long_list if i % 7 == 0 else penalties) for i in range(77)]
    here = responses(tiny, "cuda", requests, batch=77, cache_max_entry_count=100)
    there = responses(tiny, "cpu", requests)
    assert [response.token_ids for response in here] == [response.token_ids for response in there]


def test_several_responses_and_stop_words(tiny: Path, on_cuda: None) -> None:
    several = GenerationConfig(max_new_tokens=8, n=3, do_sample=True, top_k=0, random_seed=5, ignore_eos=True)
    greedy = GenerationConfig(max_new_tokens=12, ignore_eos=True)
    with (
        pipeline(str(tiny), backend_config=config("cuda")) as here,
        pipeline(str(tiny), backend_config=config("cpu")) as there,
    ):
        assert [r.token_ids for r in here(PROMPTS[0], gen_config=several)] == [
            r.token_ids for r in there(PROMPTS[0], gen_config=several)
        ]
        text = there(PROMPTS[1], gen_config=greedy).text
        stop = next(character for character in text[3:] if character != "\ufffd")  # which stands for broken bytes
        stops = GenerationConfig(max_new_tokens=12, ignore_eos=True, stop_words=[stop])
        native, reference = here(PROMPTS[1], gen_config=stops), there(PROMPTS[1], gen_config=stops)
        assert (native.text, native.finish_reason) == (reference.text, "stop")
        # A step that was begun behind the stop word leaves nothing behind.
        assert here(PROMPTS[1], gen_config=greedy).text == text


def test_responses_keep_to_a_response_format(tiny: Path, on_cuda: None) -> None:
    jsonschema = pytest.importorskip("jsonschema")  # machines with a GPU need not have it,
    pytest.importorskip("xgrammar")  # nor what makes grammars
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 999}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    chosen = GenerationConfig(max_new_tokens=60, do_sample=True, top_k=0, random_seed=3, response_format=form)
    for response in responses(tiny, "cuda", [(prompt, chosen) for prompt in PROMPTS[:3]]):
        jsonschema.validate(json.loads(response.text), schema)
