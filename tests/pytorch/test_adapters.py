"""LoRA adapters of the PyTorch engine: what they compute, side by side, and what is refused."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import PytorchEngineConfig
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, in_chunks, make, off, reference, tokens_of
from tests.pytorch.test_worker import RESTART, Answer, takes_requests, worker
from tests.support.adapters import ATTENTION, MLP, make_adapter, merge
from tests.support.tiny_models import make_tiny_llama
from tests.support.token_engine import TokenEngine
from tests.support.waiting import eventually_sync
from tests.support.worker_steps import Part, StepDriver

TARGETS = {"LlamaForCausalLM": (*ATTENTION, *MLP), "Olmo2ForCausalLM": ATTENTION, "PhiForCausalLM": ("q_proj", "dense")}


@pytest.mark.parametrize("name", TARGETS)
def test_logits_are_those_of_the_merged_model_also_alongside_rows_of_others(tmp_path: Path, name: str) -> None:
    base = make(tmp_path / "model", name)
    one = make_adapter(tmp_path / "one", tmp_path / "model", targets=TARGETS[name])
    other = make_adapter(tmp_path / "other", tmp_path / "model", targets=TARGETS[name][:1], seed=5)
    merged = AutoModelForCausalLM.from_pretrained(
        merge(tmp_path / "model", one, tmp_path / "merged"), dtype=torch.float32, attn_implementation="eager"
    )
    driver = StepDriver(tmp_path / "model", VOCAB, HIDDEN, by_transformers=True)
    driver.runner.set_adapter(1, str(one))
    driver.runner.set_adapter(2, str(other))
    tokens = tokens_of(40)
    with_one, without, with_other = driver.step(Part(0, 0, tokens, 1), Part(1, 0, tokens), Part(2, 0, tokens, 2))
    assert off(with_one, reference(merged, tokens)) < 1e-4
    assert off(without, reference(base, tokens)) < 1e-4
    assert off(with_other, without) > 1e-3
    driver.runner.drop_adapter(1)
    assert off(driver.step(Part(3, 0, tokens, 2))[0], with_other) < 1e-5
    assert np.isfinite(in_chunks(driver, tokens_of(50))).all()


@pytest.mark.usefixtures("installed_workers")
def test_both_engines_answer_the_same_and_a_lost_worker_gets_its_adapters_back(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    adapters = {"own": str(make_adapter(tmp_path / "adapter", directory))}
    prompt = list(range(100, 140))
    with TokenEngine(directory, adapters=adapters) as native:
        expected = [native.generate(prompt, 16, adapter=name)[0] for name in ("own", None)]
    assert expected[0] != expected[1]
    config = PytorchEngineConfig(
        dtype="float32", block_size=16, num_gpu_blocks=64, session_len=256, enable_prefix_caching=True,
        adapters=adapters,
    )  # fmt: skip
    with TokenEngine(directory, config=config) as engine:
        assert [engine.generate(prompt, 16, adapter=name)[0] for name in ("own", None)] == expected
        os.kill(worker(), signal.SIGKILL)
        eventually_sync(lambda: takes_requests(engine.engine), timeout=RESTART)
        assert [engine.generate(prompt, 16, adapter=name)[0] for name in ("own", None)] == expected
        wider = make_tiny_llama(tmp_path / "wider", hidden_size=64)
        with pytest.raises(ValueError, match="it was trained for another base"):
            engine.engine.load_adapter("wide", str(make_adapter(tmp_path / "wide", wider)))
        with pytest.raises(ValueError, match="there is an adapter own already"):
            engine.engine.load_adapter("own", adapters["own"])
        assert not Answer(engine.engine, 3).wait().error
