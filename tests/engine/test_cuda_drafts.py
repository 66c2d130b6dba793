"""Draft models and heads on CUDA: no draft changes a response, and steps that draft are captured.

Calls of CUDA are counted, and work is deferred, on the emulation alone.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lmdeploy.turbomind.engine as engine_module
from lmdeploy import GenerationConfig
from tests.engine.test_heads import ONLY_HEADS
from tests.kernels.device import NativeModule, cuda_devices, load_module
from tests.support import heads
from tests.support.emulated_cuda import emulated_cuda, submit, wait
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine
from tools.bench.random_model import write_tokenizer

HIDDEN, VOCAB = 32, 1024
PROMPTS = [list(range(100 + 7 * i, 130 + 9 * i)) for i in range(2)]
LIKELY = GenerationConfig(max_new_tokens=6, ignore_eos=True)
DRAWN = GenerationConfig(max_new_tokens=6, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=5)
COUNTED = ("cudaStreamBeginCapture", "cudaGraphLaunch")


def counts_of(module: NativeModule) -> dict[str, int]:
    """Return how often the emulation was called; of a GPU nothing."""
    return {name: module.calls_of(name) for name in COUNTED} if hasattr(module, "calls_of") else {}


def eagle(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a model, and what ``speculative_config`` says of its head; as the others."""
    model = make_small(folder / "model", "LlamaForCausalLM")
    tensors = heads.eagle_tensors(HIDDEN, layers=2, bias=True)
    head = heads.write_head(folder / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=2, vocab_size=VOCAB)
    return model, {"method": "eagle", "model": str(head)}


def eagle3(folder: Path) -> tuple[Path, dict[str, Any]]:
    model = make_small(folder / "model", "LlamaForCausalLM", num_hidden_layers=6)
    tensors = heads.eagle3_tensors(HIDDEN, VOCAB, 100)
    head = heads.write_head(folder / "head", tensors, hidden_size=HIDDEN, num_hidden_layers=1, vocab_size=VOCAB)
    return model, {"method": "eagle3", "model": str(head)}


def mtp(folder: Path) -> tuple[Path, dict[str, Any]]:
    model = heads.make_tiny_deepseek_mtp(folder / "model", vocab_size=VOCAB, bos_token_id=256, eos_token_id=257)
    write_tokenizer(model)
    return model, {"method": "mtp"}


@pytest.fixture
def emulated() -> Iterator[NativeModule]:
    with emulated_cuda() as module:
        yield module


@pytest.fixture(params=cuda_devices() or ["none"])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NativeModule:
    """Engines that are made meanwhile use CUDA, emulated or on a GPU."""
    if request.param == "none":
        pytest.skip("CUDA is not built for the tests, neither emulated nor for a GPU: run `make build-tests`")
    module = load_module(request.param)
    monkeypatch.setattr(engine_module, "_turbomind", module)
    return module


def responses(engine: TokenEngine) -> list[list[int]]:
    """Return the tokens of requests that run together, twice: prompts are found in the cache the second time."""
    found = []
    for _ in range(2):
        pending = [submit(engine, prompt, how) for prompt in PROMPTS for how in (LIKELY, DRAWN)]
        found += [[token for output in wait(request) for token in output.token_ids] for request in pending]
    return found


def drafts_of(directory: Path, device: str, config: Any, **settings: Any) -> tuple[list[list[int]], float, float]:
    """Return the tokens of the requests, and how many drafts were made and right."""
    with TokenEngine(directory, device=device, speculative_config=config, **settings) as engine:
        tokens = responses(engine)
        metrics = engine.engine.metrics()
    return tokens, metrics["draft_tokens_total"], metrics["draft_tokens_accepted_total"]


@pytest.mark.alike(max_cases=2)  # test_drafts_are_the_same_when_work_is_done_later has the third
@pytest.mark.parametrize("made", [eagle, eagle3, mtp])
def test_heads_draft_and_leave_responses_as_they_are(
    made: Callable[[Path], tuple[Path, dict[str, Any]]], tmp_path: Path, cuda: NativeModule
) -> None:
    torch.manual_seed(11)
    model, head = made(tmp_path)
    config = ONLY_HEADS | head | {"num_speculative_tokens": 3}
    baseline, none, _ = drafts_of(model, "cuda", "none")
    tokens, drafted, _ = drafts_of(model, "cuda", config)
    assert none == 0
    assert drafted > 0
    assert tokens == baseline


# Without sampling on the device the next draft step is not launched ahead.
@pytest.mark.parametrize("kernels", ["", pytest.param("sampling=off", marks=pytest.mark.thorough)])
def test_a_model_drafts_in_captured_steps(
    tmp_path: Path, cuda: NativeModule, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", kernels)
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    # Its own weights: every draft is right. Few blocks: they move, and the drafter's part of them too.
    config = ONLY_HEADS | {"method": "draft_model", "num_speculative_tokens": 3}
    few: dict[str, Any] = {"cache_max_entry_count": 12, "num_cpu_blocks": 6, "session_len": 100}
    baseline, _, _ = drafts_of(directory, "cuda", "none", **few)
    with TokenEngine(directory, device="cuda", speculative_config=config, **few) as engine:
        before = counts_of(cuda)
        assert responses(engine) == baseline
        after = counts_of(cuda)
        metrics = engine.engine.metrics()
    assert metrics["draft_tokens_accepted_total"] == metrics["draft_tokens_total"] > 0
    if before:
        assert after["cudaStreamBeginCapture"] == before["cudaStreamBeginCapture"]
        assert after["cudaGraphLaunch"] > before["cudaGraphLaunch"]


def test_drafts_are_the_same_when_work_is_done_later(tmp_path: Path, emulated: NativeModule) -> None:
    torch.manual_seed(11)
    model, head = mtp(tmp_path)
    config = ONLY_HEADS | head | {"num_speculative_tokens": 2}
    few = {"cache_max_entry_count": 14, "num_cpu_blocks": 8, "session_len": 100}
    baseline, _, _ = drafts_of(model, "cuda", "none", **few)
    changed = emulated.calls_of("staging memory changed too early")
    emulated.defer_work(1)
    tokens, drafted, _ = drafts_of(model, "cuda", config, **few)
    assert drafted > 0
    assert tokens == baseline
    assert emulated.calls_of("staging memory changed too early") == changed


def test_what_drafts_runs_on_one_gpu(tmp_path: Path, emulated: NativeModule) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    config = {"method": "draft_model"}
    with pytest.raises(ValueError, match="draft models and heads run where tp is 1, or on CPUs"):
        TokenEngine(directory, device="cuda", tp=2, speculative_config=config)
