"""CUDA calls of a decoding step, counted by the emulation, and deferred work that changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmdeploy import GenerationConfig
from tests.kernels.device import NativeModule
from tests.support.emulated_cuda import emulated_cuda, submit, wait
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine

PROMPT = list(range(100, 130))


@pytest.fixture
def cuda() -> Iterator[NativeModule]:
    with emulated_cuda() as module:
        yield module


def calls_of_one_more_token(cuda: NativeModule, engine: TokenEngine, *names: str) -> list[float]:
    """Return how often each call is made for a further token of a response, where all shapes have come before."""

    def count(tokens: int) -> list[int]:
        before = [cuda.calls_of(name) for name in names]
        wait(submit(engine, PROMPT, tokens))
        return [cuda.calls_of(name) - known for name, known in zip(names, before, strict=True)]

    count(9)
    return [(long - short) / 8 for long, short in zip(count(12), count(4), strict=True)]


@pytest.mark.parametrize("tp", [1, 2])
def test_steps_that_decode_are_captured_before_the_first_request(tmp_path: Path, cuda: NativeModule, tp: int) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    counted = ("cudaStreamBeginCapture", "cudaGraphLaunch")
    with TokenEngine(directory, device="cuda", tp=tp) as engine:
        before = [cuda.calls_of(name) for name in counted]
        pending = [submit(engine, PROMPT[i:], 6) for i in range(3)]
        for response in pending:
            wait(response)
        captures, launches = (cuda.calls_of(name) - known for name, known in zip(counted, before, strict=True))
    assert before[0] > 0
    assert captures == 0
    assert launches >= 5 * tp


def test_steps_run_without_what_the_environment_leaves_out(
    tmp_path: Path, cuda: NativeModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    tokens, copies = [], {}
    for kernels in ("", "graphs=off", "sampling=off", "own,graphs=off,sampling=off"):
        monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", kernels)
        with TokenEngine(directory, device="cuda") as engine:
            launches = cuda.calls_of("cudaGraphLaunch")
            tokens.append([token for output in wait(submit(engine, PROMPT, 6)) for token in output.token_ids])
            assert (cuda.calls_of("cudaGraphLaunch") == launches) == ("graphs" in kernels)
            copies[kernels] = calls_of_one_more_token(cuda, engine, "cudaMemcpyAsync")
    assert tokens == tokens[:1] * 4
    assert copies["sampling=off"] > copies[""]  # logits come to the host


@pytest.mark.parametrize("kernels", ["", pytest.param("sampling=off", marks=pytest.mark.thorough)])
def test_drafts_from_the_text_leave_responses_as_they_are(
    tmp_path: Path, cuda: NativeModule, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", kernels)
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    few = dict.fromkeys(PROMPT[:3], 40.0)  # what says little else repeats itself
    drafts = {"num_speculative_tokens": 4, "adaptive": False, "prompt_lookup_min": 1}
    responses = []
    for config in ("none", drafts):
        with TokenEngine(directory, device="cuda", speculative_config=config) as engine:
            before = cuda.calls_of("cudaStreamBeginCapture")
            how = GenerationConfig(max_new_tokens=40, ignore_eos=True, logit_bias=few, do_sample=True, random_seed=3)
            pending = [submit(engine, PROMPT[i:], how) for i in range(2)]
            responses.append([[token for output in wait(request) for token in output.token_ids] for request in pending])
            assert cuda.calls_of("cudaStreamBeginCapture") == before  # single tokens were captured at start
            accepted = engine.engine.metrics()["draft_tokens_accepted_total"]
            assert (accepted > 0) == (config is drafts)
    assert responses[0] == responses[1]


def test_kernels_of_a_model_on_several_gpus_are_loaded_at_start(tmp_path: Path, cuda: NativeModule) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    os.unsetenv("CUDA_MODULE_LOADING")  # as the process sees it
    try:
        for tp in (1, 2):
            cuda.restart_runtime()
            with TokenEngine(directory, device="cuda", tp=tp):
                assert cuda.loads_eagerly() == (tp == 2)
    finally:
        os.unsetenv("CUDA_MODULE_LOADING")


@pytest.mark.parametrize(("dtype", "head_dim", "of_a_layer"), [("float32", 16, 10), ("bfloat16", 64, 9 - 4)])
def test_a_layer_of_a_step_that_decodes_is_few_launches(
    tmp_path: Path, cuda: NativeModule, dtype: str, head_dim: int, of_a_layer: int
) -> None:
    def launches(layers: int, sequences: int) -> int:
        directory = tmp_path / f"model-{layers}"
        if not directory.exists():
            make_small(directory, "LlamaForCausalLM", num_hidden_layers=layers, head_dim=head_dim)
        before: int = cuda.calls_of("cudaLaunchKernel")
        with TokenEngine(directory, device="cuda", dtype=dtype, max_batch_size=sequences):
            after: int = cuda.calls_of("cudaLaunchKernel")
        return after - before

    # A second sequence adds a shape of steps, which is dry-run and captured.
    of_steps = {layers: (launches(layers, 2) - launches(layers, 1)) / 2 for layers in (1, 2)}
    # A norm and a product twice, the activation and a product after each; queries and keys are rotated where keys and
    # values are written; attention, and what puts the parts of the context together, which attention of heads of 64 and
    # 128 does itself. Four products of bfloat16 are a library's, and not counted.
    assert of_steps[2] - of_steps[1] == of_a_layer


def test_what_a_step_is_reported_comes_by_one_launch(tmp_path: Path, cuda: NativeModule) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM")
    with TokenEngine(directory, device="cuda") as engine:
        copies, graphs = calls_of_one_more_token(cuda, engine, "copy to the device", "cudaGraphLaunch")
    # Tokens, positions, factors of queries, outputs, spans, blocks, rows of the sampler and moves of tokens.
    assert (copies, graphs) == (0, 1)


PROMPTS = [list(range(100 + 7 * i, 145 + 9 * i)) for i in range(3)]
SMALL_HEADS = {"head_dim": 16, "sliding_window": 24}


def responses(directory: Path, **settings: object) -> list[tuple[list[int], torch.Tensor]]:
    """Return the tokens and logits of prompts that share prefixes, in chunks and steps."""
    with TokenEngine(directory, device="cuda", **settings) as engine:
        found = [engine.generate(prompt, 6, rows) for prompt in PROMPTS for rows in ("all", "generation")]
        engine.generate(PROMPTS[0] * 4, 3, "generation")  # what was cached goes to the host, or is lost
        return [*found, engine.generate(PROMPTS[1], 6, "generation")]


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
@pytest.mark.parametrize("seed", [1, 2])
def test_work_that_is_done_later_brings_the_same(tmp_path: Path, architecture: str, seed: int) -> None:
    overrides = SMALL_HEADS if architecture.startswith("Gemma") else {}
    directory = make_small(tmp_path / "model", architecture, **overrides)
    settings = {"cache_max_entry_count": 14, "num_cpu_blocks": 8, "session_len": 220}
    with emulated_cuda() as module:
        at_once = responses(directory, **settings)
        changed = module.calls_of("staging memory changed too early")
        module.defer_work(seed)
        later = responses(directory, **settings)
        assert module.calls_of("staging memory changed too early") == changed
    for (tokens, logits), (same_tokens, same_logits) in zip(at_once, later, strict=True):
        assert tokens == same_tokens
        assert torch.equal(logits, same_logits)
