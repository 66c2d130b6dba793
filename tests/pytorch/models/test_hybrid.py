"""Models of ``transformers`` whose layers keep a state, in worker processes: its tokens, the same bits however run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine_dir import resolve
from tests.pytorch.models.test_served import CONFIG, PROMPT, tokens_of
from tests.support.hybrid_models import MODELS, make_hybrid
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny

# Those that the TurboMind engine does not have.
UNTIED: dict[str, Any] = {"pad_token_id": 0, "tie_word_embeddings": False}
MAMBA = UNTIED | {"state_size": 8, "time_step_rank": 4}
OF_THIS_ENGINE: dict[str, tuple[str, dict[str, Any]]] = {
    "Mamba": ("MambaForCausalLM", MAMBA),
    "Falcon Mamba": ("FalconMambaForCausalLM", MAMBA),
    "Jamba": (
        "JambaForCausalLM",
        UNTIED
        | {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8}
        | {"mamba_dt_rank": 4, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "Zaya": (
        "ZayaForCausalLM",
        UNTIED
        | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "cca_time0": 3},
    ),
}
QUESTIONS = CONVERSATIONS[::4]
SAMPLED = GenerationConfig(
    max_new_tokens=24, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)


def make(name: str, directory: Path) -> Path:
    architecture, overrides = (MODELS | OF_THIS_ENGINE)[name]
    return make_tiny(directory / "model", architecture, **overrides)


@pytest.fixture(scope="module", params=["Falcon-H1 with norms", "Mamba2", "Jamba", "Zaya"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp("tiny"))


def engine(directory: Path, **settings: Any) -> AsyncEngine:
    config = {"dtype": "float32", "num_gpu_blocks": 200, "block_size": 16, "session_len": 512}
    return pipeline(str(directory), backend_config=PytorchEngineConfig(**(config | settings)))


def traces(model: AsyncEngine) -> list[Any]:
    """Return all that a batch answers, exactly."""
    return [
        (answer.token_ids, [list(entry.items()) for entry in answer.logprobs or []])
        for answer in model(QUESTIONS, SAMPLED)
    ]


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[list[Any]]:
    with engine(directory, max_batch_size=1) as model:
        assert model.backend == "pytorch"
        yield traces(model)


@pytest.mark.parametrize(
    "name", ["Granite 4", "Falcon-H1", "Falcon-H1 with norms", "Nemotron-H", "Mamba2", *OF_THIS_ENGINE]
)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = make(name, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    length: Any = {"min_new_tokens": CONFIG.max_new_tokens, "max_new_tokens": CONFIG.max_new_tokens}
    expected = reference.generate(torch.tensor([PROMPT]), do_sample=False, **length)
    assert tokens_of(model, max_prefill_token_num=32) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_size": 8, "max_prefill_token_num": 24, "enable_prefix_caching": True},
        {"max_batch_size": 8, "num_gpu_blocks": 40, "session_len": 256},
        {"max_batch_size": 8, "speculative_config": {"method": "ngram"}},
    ],
    ids=["chunks, prefixes", "crowded", "draft tokens"],
)
def test_responses_are_bitwise_equal(directory: Path, alone: list[Any], settings: dict[str, Any]) -> None:
    with engine(directory, **settings) as model:
        assert traces(model) == alone
        if "enable_prefix_caching" in settings:  # a second time from the cache
            assert traces(model) == alone
            metrics = model.engine.metrics()
            assert metrics["prefix_cache_hits_total"] > 0


@pytest.mark.parametrize(
    "name", ["Qwen3.5", "Qwen3-Next", "Kimi Linear", "LFM2", "LFM2 with experts", "MiniMax-Text-01", "OLMo Hybrid"]
)
def test_turbomind_runs_the_other_states(name: str, tmp_path: Path) -> None:
    assert resolve(make_hybrid(tmp_path / "model", name), backend="pytorch").backend == "turbomind"
