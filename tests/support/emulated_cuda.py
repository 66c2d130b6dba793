"""Engines on the emulation of CUDA, and requests that are waited for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import lmdeploy.turbomind.engine as engine_module
from lmdeploy import GenerationConfig
from lmdeploy.turbomind.engine import EngineOutput
from tests.kernels.device import NativeModule, built_modules, load_module
from tests.support.token_engine import TIMEOUT, TokenEngine

# Outputs so far, and whether they are complete.
Outputs = tuple[list[EngineOutput], threading.Event]


@contextmanager
def emulated_cuda() -> Iterator[NativeModule]:
    """Yield the emulation, whose functions make it fail and count its calls; engines that are made meanwhile use it."""
    if "emulated" not in built_modules():
        pytest.skip("CUDA is not emulated in this build: run `make build-tests`")
    module = load_module("emulated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_turbomind", module)
        try:
            yield module
        finally:
            module.clear_faults()


def submit(engine: TokenEngine, ids: list[int], how: int | GenerationConfig) -> Outputs:
    """Ask for a response, the most likely one of this many tokens or as it is said."""
    outputs: list[EngineOutput] = []
    done = threading.Event()

    def receive(output: EngineOutput) -> None:
        outputs.append(output)
        if output.is_final:
            done.set()

    config = how if isinstance(how, GenerationConfig) else GenerationConfig(max_new_tokens=how, ignore_eos=True)
    engine.engine.submit(ids, config, receive, stream=False)
    return outputs, done


def wait(pending: Outputs) -> list[EngineOutput]:
    """Return the outputs."""
    outputs, done = pending
    assert done.wait(TIMEOUT), "no response"
    return outputs
