"""Drafted tokens change when tokens come, and nothing else: responses are bitwise those without drafts."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, Response, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.both_engines import BACKENDS, config_for
from tests.support.heads import rewrite_weights, without_memory
from tests.support.images import make_image
from tests.support.mllama_reference import make_tiny_mllama
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_vision_models import make_tiny_qwen_vl

DRAFTS = {"num_speculative_tokens": 6, "adaptive": False, "prompt_lookup_min": 1}
FEW = dict.fromkeys((65, 66, 67, 1000, 2000), 40.0)  # a random model that says little else repeats itself
FEW_LETTERS = dict.fromkeys((65, 66, 67), 40.0)
PROMPTS = ["la la la la la la la", "one two three one two three one", "Who baked the first bread?", "x" * 200]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=48, max_position_embeddings=2048)


def engine(directory: Path, backend: str = "turbomind", **fields: Any) -> AsyncEngine:
    config = {
        "dtype": "float32",
        "cache_max_entry_count": 400,
        "cache_block_seq_len": 16,
        "session_len": 1024,
        **fields,
    }
    return pipeline(str(directory), backend_config=config_for(backend, **config))


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request: pytest.FixtureRequest, directory: Path) -> Iterator[tuple[AsyncEngine, AsyncEngine]]:
    """An engine that drafts nothing, and one that drafts all it can."""
    with (
        engine(directory, request.param) as baseline,
        engine(directory, request.param, speculative_config=DRAFTS) as drafting,
    ):
        yield baseline, drafting


def trace(response: Response) -> tuple[Any, ...]:
    """Return everything that must not change, exactly."""
    logprobs = [list(entry.items()) for entry in response.logprobs or []]
    return response.token_ids, logprobs, response.text, response.finish_reason, response.generate_token_len


def accepted(model: AsyncEngine) -> float:
    return model.engine.metrics()["draft_tokens_accepted_total"]


def drafted(model: AsyncEngine) -> float:
    return model.engine.metrics()["draft_tokens_total"]


GENERATION = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(20, 40),
        "min_new_tokens": st.one_of(st.none(), st.integers(1, 20)),
        "do_sample": st.booleans(),
        "temperature": st.sampled_from([0.05, 0.3, 1.0]),
        "top_k": st.sampled_from([0, 1, 5, 40]),
        "top_p": st.sampled_from([0.5, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 0.8, 1.2]),
        "random_seed": st.integers(0, 5),
        "logprobs": st.one_of(st.none(), st.integers(1, 4)),
        "stop_words": st.one_of(st.none(), st.lists(st.sampled_from(["la", "o", "e t", "\n", "."]), max_size=2)),
        "bad_words": st.one_of(st.none(), st.lists(st.sampled_from(["la", "th", "x"]), max_size=2)),
        "ignore_eos": st.booleans(),
        "logit_bias": st.sampled_from([None, FEW]),
    }
)


@given(prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=4), how=GENERATION)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_request_is_answered_as_without_drafts(
    pair: tuple[AsyncEngine, AsyncEngine], prompts: list[str], how: dict[str, Any]
) -> None:
    baseline, drafting = pair
    config = GenerationConfig(**how)
    assert [trace(response) for response in drafting(prompts, config)] == [
        trace(response) for response in baseline(prompts, config)
    ]


def test_what_repeats_takes_fewer_steps(pair: tuple[AsyncEngine, AsyncEngine]) -> None:
    config = GenerationConfig(max_new_tokens=120, ignore_eos=True, logit_bias=FEW)
    measurements = []
    for model in pair:
        before = model.engine.metrics()
        response = model(PROMPTS[0], config)
        after = model.engine.metrics()
        measurements.append((trace(response), {name: after[name] - before[name] for name in after}))
    (baseline_trace, baseline), (drafted_trace, drafted) = measurements
    assert drafted_trace == baseline_trace
    assert baseline["draft_tokens_total"] == 0
    assert drafted["draft_tokens_accepted_total"] > 40
    assert drafted["steps_total"] == baseline["steps_total"] - drafted["draft_tokens_accepted_total"]
    assert drafted["tokens_out_total"] == baseline["tokens_out_total"] == 120


@pytest.mark.parametrize(("setting", "drafts"), [("auto", True), ("none", False), (None, False)])
def test_tokens_are_drafted_by_default_and_not_where_that_is_off(directory: Path, setting: Any, drafts: bool) -> None:
    given = TurbomindEngineConfig(speculative_config=setting, cache_max_entry_count=64)
    defaults = TurbomindEngineConfig(cache_max_entry_count=64)
    assert (given.speculative_config == defaults.speculative_config) == drafts
    with pipeline(str(directory), backend_config=given) as model:
        for _ in range(20):  # where that seems to pay, by the time that steps take
            if drafted(model) == 0:
                model(PROMPTS[0], GenerationConfig(max_new_tokens=60, ignore_eos=True, logit_bias=FEW))
        assert (drafted(model) > 0) == drafts


@pytest.mark.parametrize("quant_policy", [0, 4, 8])
def test_several_responses_preemption_prefixes_and_quantized_caches(directory: Path, quant_policy: int) -> None:
    config = GenerationConfig(max_new_tokens=60, ignore_eos=True, logprobs=2, n=2, do_sample=True, temperature=0.2,
                              random_seed=3, logit_bias=FEW)  # fmt: skip
    traces = []
    for drafts in (None, DRAFTS):
        with engine(
            directory,
            quant_policy=quant_policy,
            cache_max_entry_count=26,
            enable_prefix_caching=True,
            speculative_config=drafts,
        ) as model:
            first = [trace(response) for responses in model(PROMPTS * 3, config) for response in responses]
            again = [trace(response) for responses in model(PROMPTS * 3, config) for response in responses]
            assert first == again
            traces.append(first)
            assert model.engine.metrics()["preemptions_total"] > 0
            assert (accepted(model) > 0) == (drafts is not None)
    assert traces[0] == traces[1]


def test_structured_responses(pair: tuple[AsyncEngine, AsyncEngine]) -> None:
    baseline, drafting = pair
    schema = {"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 20, "maxItems": 20}
    for sampling in ({}, {"do_sample": True, "top_k": 10, "random_seed": 4}, {"do_sample": True, "top_k": 0}):
        config = GenerationConfig(
            max_new_tokens=200,
            response_format={"type": "json_schema", "json_schema": {"name": "answers", "schema": schema}},
            **{"random_seed": 1, **sampling},
        )
        before = accepted(drafting)
        assert trace(drafting(PROMPTS[2], config)) == trace(baseline(PROMPTS[2], config))
        # Without top_k, all tokens have to be asked about; what repeats is known by then.
        assert accepted(drafting) > before


def test_drawn_tokens_are_distributed_as_the_model_says(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", hidden_size=48, max_position_embeddings=2048)
    rewrite_weights(model, without_memory)
    ids = [65, 66, 67, 1000, 2000]
    # The next token depends on the last one alone.
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    with torch.no_grad():
        rows = network(torch.tensor(ids)[:, None]).logits[:, -1, ids]
    expected = (rows / 2).softmax(-1)
    counts = torch.zeros(5, 5, dtype=torch.float64)
    with engine(model, speculative_config=DRAFTS) as drafting:
        for seed in range(4):
            config = GenerationConfig(max_new_tokens=700, ignore_eos=True, logit_bias=dict.fromkeys(ids, 90.0),
                                      do_sample=True, temperature=2.0, top_k=0, random_seed=seed)  # fmt: skip
            tokens = [ids.index(token) for token in drafting("la", config).token_ids]
            for before, token in itertools.pairwise(tokens):
                counts[before, token] += 1
        assert accepted(drafting) > 200
    means = counts.sum(-1, keepdim=True) * expected
    is_seen = means > 5
    chi_square = float(((counts - means) ** 2 / means)[is_seen].sum())
    degrees = int(is_seen.sum()) - 5
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5 + 10  # beyond p = 1e-5


@pytest.fixture(scope="module")
def modelled(directory: Path) -> Iterator[AsyncEngine]:
    """An engine whose own quantized weights draft, in a small cache with prefixes."""
    config = {"method": "draft_model", "weight_bits": 8, "adaptive": False, "num_speculative_tokens": 3}
    with engine(directory, cache_max_entry_count=60, enable_prefix_caching=True, speculative_config=config) as model:
        yield model


def test_a_models_drafts_change_no_response_and_most_are_right(directory: Path, modelled: AsyncEngine) -> None:
    prompts = [f"{text} {i}" for text in PROMPTS for i in range(4)]
    most_likely = GenerationConfig(max_new_tokens=40, ignore_eos=True, logprobs=2)
    drawn = GenerationConfig(
        max_new_tokens=40, ignore_eos=True, logprobs=2, do_sample=True, temperature=0.9, random_seed=6
    )
    with engine(directory) as baseline:
        # A random model's tokens are nearly all as likely, so a little rounding often has another one drawn.
        for config, share in ((most_likely, 0.5), (drawn, 0.1)):
            before = drafted(modelled), accepted(modelled)
            expected = [trace(response) for response in baseline(prompts, config)]
            for _ in range(2):  # the second time, prompts are found in the cache
                assert [trace(response) for response in modelled(prompts, config)] == expected
            assert accepted(modelled) - before[1] > share * (drafted(modelled) - before[0]) > 0
    assert modelled.engine.metrics()["preemptions_total"] > 0


def test_another_model_with_the_same_tokenizer_drafts(
    directory: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_tiny_llama(tmp_path / "small", hidden_size=32, num_hidden_layers=1)
    config = GenerationConfig(max_new_tokens=30, ignore_eos=True, logit_bias=FEW, logprobs=1)
    with engine(directory) as baseline, engine(directory, speculative_config={"model": str(other)}) as drafting:
        for prompt in PROMPTS:
            assert trace(drafting(prompt, config)) == trace(baseline(prompt, config))
        assert drafted(drafting) > 0


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"method": "medusa"},
            "method must be one of 'ngram', 'draft_model', 'mtp', 'deepseek_mtp', 'eagle', 'eagle3', got 'medusa'",
        ),
        ({"num_speculative_tokens": 33}, "num_speculative_tokens must be"),
        ({"num_spec_tokens": 3}, "there is no field num_spec_tokens; did you mean num_speculative_tokens"),
        ({"prompt_lookup_min": 9, "prompt_lookup_max": 8}, "prompt_lookup_min must not be larger"),
        ({"model": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_taken_is_named(directory: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        engine(directory, speculative_config=config)


@pytest.mark.parametrize("make", [make_tiny_mllama, make_tiny_qwen_vl], ids=["cross attention", "positions on a grid"])
def test_responses_about_images(make: Callable[[Path], Path], tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    config = GenerationConfig(max_new_tokens=40, ignore_eos=True, logprobs=2, logit_bias=FEW_LETTERS)
    prompts = [("What is there?", make_image(40, 60)), "And here?", ("And there?", make_image(90, 31))]
    with (
        engine(model, session_len=512) as baseline,
        engine(model, session_len=512, speculative_config=DRAFTS) as drafting,
    ):
        assert [trace(response) for response in drafting(prompts, config)] == [
            trace(response) for response in baseline(prompts, config)
        ]
        assert accepted(drafting) > 20


def test_a_model_in_two_parts(directory: Path) -> None:
    config = GenerationConfig(max_new_tokens=60, ignore_eos=True, logprobs=2, logit_bias=FEW)
    with engine(directory, tp=2) as baseline, engine(directory, tp=2, speculative_config=DRAFTS) as drafting:
        assert [trace(response) for response in drafting(PROMPTS, config)] == [
            trace(response) for response in baseline(PROMPTS, config)
        ]
        assert accepted(drafting) > 20
