"""Faults on CUDA: too little memory, a graph that cannot be captured, a device that is lost or cannot be used.

The emulation plays them (backend_cpp/testing/cuda_emulated/faults.h).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_model_families import CASES
from tests.kernels.device import NativeModule
from tests.kernels.emulated_library import NONE, RIGHT
from tests.support.emulated_cuda import emulated_cuda, submit, wait
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine

MIB = 1 << 20
NO_MEMORY, OLD_DRIVER, LOST, NO_CODE = 2, 35, 46, 209  # cudaError_t
STOPPED = "the engine has stopped after a device fault"
PROMPT = list(range(100, 130))


@pytest.fixture
def cuda() -> Iterator[NativeModule]:
    with emulated_cuda() as module:
        yield module
        module.set_library("experts", NONE)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_small(tmp_path / "model", "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("memory", "settings", "reported"),
    [
        (0, {}, r"not enough GPU memory: 1 MiB for weights: 0 MiB are free; use weight_bits 8 or 4"),
        (
            20,
            {"num_tokens_per_iter": 256},
            r"not enough GPU memory: \d+ MiB for steps: \d+ MiB are free, 1 MiB went to weights, .*lower max_prefill",
        ),
        (
            100,
            {"cache_max_entry_count": 20000},
            r"not enough GPU memory: 79 MiB for the cache: \d+ MiB are free, "
            r"1 MiB went to weights, \d+ MiB went to steps; lower cache_max_entry_count",
        ),
    ],
)
def test_too_little_memory_at_start_is_reported_with_what_took_it_and_what_lowers_it(
    memory: int, settings: dict[str, Any], reported: str, model: Path, cuda: NativeModule
) -> None:
    cuda.set_device_memory(memory * MIB + 100_000)
    with pytest.raises(RuntimeError, match=reported):
        TokenEngine(model, device="cuda", **settings)


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"dtype": "bfloat16", "quant_policy": 8}),
        ("Gemma 2", {"weight_bits": 4}),
        ("GPT-OSS", {"weight_bits": 4}),
        ("DeepSeek-V2", {"dtype": "bfloat16"}),
        ("DeepSeek-MoE", {"dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_no_step_takes_more_memory_than_was_taken_at_start(
    name: str, settings: dict[str, Any], tmp_path: Path, cuda: NativeModule
) -> None:
    case = CASES[name]
    directory = make_small(tmp_path / "model", case.architecture, **case.overrides)
    case.publish(directory)
    long = [100 + i % 1000 for i in range(470)]
    cuda.set_library("experts", RIGHT)  # takes experts of bfloat16 in long chunks alone
    with TokenEngine(directory, device="cuda", num_tokens_per_iter=230, max_batch_size=8, **settings) as engine:
        cuda.set_device_memory(0)
        _, logits = engine.generate(long, 6, "all")  # long products, all logits, decoding far beyond them
        assert len(logits) == len(long) + 5
        outputs = [
            submit(engine, [*long, i], 6) for i in range(8)
        ]  # their block tables name more blocks than there are
        assert [wait(output)[-1].error for output in outputs] == [""] * 8


@pytest.mark.alike
@pytest.mark.parametrize(
    "call", ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"]
)
@pytest.mark.parametrize("when", ["at start", "in a step"])
def test_a_step_that_cannot_be_captured_runs_as_it_is(call: str, when: str, model: Path, cuda: NativeModule) -> None:
    if when == "at start":
        cuda.inject_fault(call, 0, NO_MEMORY, False)
    else:
        cuda.set_device_memory(250 * MIB)  # less than has to be left for steps to be prepared
    with TokenEngine(model, device="cuda") as engine:
        if when == "in a step":
            cuda.clear_faults()
            cuda.inject_fault(call, 0, NO_MEMORY, False)
        without, _ = engine.generate(PROMPT, 8, "generation")
        after, _ = engine.generate(PROMPT, 8, "generation")
    with TokenEngine(model, device="cuda") as engine:
        assert engine.generate(PROMPT, 8, "generation")[0] == without == after


@pytest.mark.parametrize("call", ["cudaStreamBeginCapture", "cudaGraphUpload"])
def test_what_one_of_two_ranks_cannot_capture_neither_launches(call: str, model: Path, cuda: NativeModule) -> None:
    found = []
    for error in (0, NO_MEMORY):
        cuda.inject_fault(call, 0, error, False)  # of one rank, and the only shape
        with TokenEngine(model, device="cuda", tp=2, max_batch_size=1) as engine:
            before = cuda.calls_of("cudaGraphLaunch")
            response = wait(submit(engine, PROMPT, 8))
            tokens = [token for output in response for token in output.token_ids]
            found.append((tokens, cuda.calls_of("cudaGraphLaunch") - before))
    assert found[0][1] >= 2 * 7
    assert found[1][1] == 0
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize("calls", [0, 1, 2, 7, 30, 100, 300])
def test_a_device_that_is_lost_ends_open_requests_and_refuses_new_ones(
    calls: int, model: Path, cuda: NativeModule
) -> None:
    with TokenEngine(model, device="cuda") as engine:
        pending = [submit(engine, PROMPT[i:], 200) for i in range(3)]
        cuda.inject_fault("", calls, LOST, True)
        errors = [wait(output)[-1].error for output in pending]
        cause = r"the engine stopped: .*CUDA: CUDA-capable device\(s\) is/are busy or unavailable"
        assert re.match(cause, errors[0])
        assert all(re.match(cause, error) or error == STOPPED for error in errors)
        with pytest.raises(RuntimeError, match=STOPPED):
            submit(engine, PROMPT, 1)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("call", "calls"),
    [
        *(("cudaMemcpyAsync", calls) for calls in (0, 1, 40)),
        *(("cudaGraphLaunch", calls) for calls in (20, 21, 22, 23)),
    ],
)
def test_one_of_two_devices_that_fails_ends_the_waiting_of_the_other(
    call: str, calls: int, model: Path, cuda: NativeModule
) -> None:
    with TokenEngine(model, device="cuda", tp=2) as engine:
        pending = submit(engine, PROMPT, 200)
        cuda.inject_fault(call, calls, LOST, False)  # of one rank, before it meets the other
        reported = r"the engine stopped: (copying (to|from) the GPU|launching a step): CUDA: "
        assert re.match(reported, wait(pending)[-1].error)
        with pytest.raises(RuntimeError, match=STOPPED):
            submit(engine, PROMPT, 1)


@pytest.mark.parametrize(
    ("call", "error", "reported"),
    [
        (
            "cudaGetDeviceCount",
            OLD_DRIVER,
            r"driver version is insufficient.* \(the driver is for CUDA 12.4, this build for CUDA 13.0\)",
        ),
        ("cudaLaunchKernel", NO_CODE, r"no kernel image.*no code for this GPU: it needs compute capability 8.0"),
        ("cudaStreamCreateWithFlags", LOST, "creating a stream: CUDA: CUDA-capable device"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_at_start(
    call: str, error: int, reported: str, model: Path, cuda: NativeModule
) -> None:
    cuda.inject_fault(call, 0, error, True)
    with pytest.raises(RuntimeError, match=reported):
        TokenEngine(model, device="cuda")


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_gpus_that_nccl_does_not_connect_are_refused_with_its_version(
    device: str, model: Path, cuda: NativeModule
) -> None:
    cuda.inject_fault("ncclCommInitAll", 0, LOST, False)
    with pytest.raises(RuntimeError, match=r"connecting 2 GPUs: NCCL 2\.32\.3: unhandled cuda error; NCCL_DEBUG=WARN"):
        TokenEngine(model, device=device, tp=2)


def test_with_a_driver_too_old_the_cpu_computes_and_stderr_says_why(
    model: Path, cuda: NativeModule, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda.inject_fault("cudaGetDeviceCount", 0, OLD_DRIVER, True)
    with TokenEngine(model, device="auto") as engine:
        assert len(wait(submit(engine, PROMPT, 2))[-1].token_ids) > 0
    assert (
        "turbomind: GPUs are not used: CUDA driver version is insufficient for CUDA runtime version (the driver is for "
        "CUDA 12.4, this build for CUDA 13.0); install a newer NVIDIA driver" in capfd.readouterr().err
    )
