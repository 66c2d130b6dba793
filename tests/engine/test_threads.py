"""The engine uses the processors it is given, and outputs reach their callers whatever others are sent."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tests.support.tiny_models import make_small, make_tiny_llama
from tests.support.token_engine import TokenEngine

_COUNT_THREADS = """
import os, sys, time
def threads(samples):  # the least, once so many have found none less: those of an engine that starts end some time
    least, left = 1 << 30, samples
    while left:
        found = len(os.listdir("/proc/self/task"))
        least, left = (found, samples) if found < least else (least, left - 1)
        time.sleep(0.01)
    return least
if sys.argv[2]:
    os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[2].split(",")})
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine
before = threads(20)
engine = Engine(sys.argv[1], TurbomindEngineConfig(cache_max_entry_count=16))
print(threads(300) - before)
engine.close()
"""

_SPEND_NOTHING = """
import json, sys, threading, time
from pathlib import Path
from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine
engine = Engine(sys.argv[1], TurbomindEngineConfig(cache_max_entry_count=16))
done = threading.Event()
engine.submit([1, 2, 3], GenerationConfig(max_new_tokens=4), lambda output: done.set() if output.is_final else None)
done.wait()
time.sleep(0.5)  # workers spin for less than a millisecond before they sleep
def spent():
    statuses = [task.joinpath("status").read_text() for task in Path("/proc/self/task").iterdir()]
    return time.process_time(), sum(int(text.split("\\nvoluntary_ctxt_switches:")[1].split()[0]) for text in statuses)
seconds, sleeps = spent()
time.sleep(2)
print(json.dumps([after - before for before, after in zip((seconds, sleeps), spent())]))
engine.close()
"""


def run_python(code: str, *arguments: str, **environment: str) -> Any:
    """Run a script in a new interpreter and return what it prints, read as JSON."""
    known = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=known | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def added_threads(model: Path, cpus: str = "", **environment: str) -> int:
    """Return how many threads an engine starts in a process that may use these processors."""
    return int(run_python(_COUNT_THREADS, str(model), cpus, **environment))


def test_each_processor_gets_one_worker(default_model_dir: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this machine has one processor: there is nothing to restrict")
    alone = added_threads(default_model_dir, str(allowed[0]))
    both = added_threads(default_model_dir, f"{allowed[0]},{allowed[1]}")
    assert both == alone + 1
    assert added_threads(default_model_dir, f"{allowed[0]},{allowed[1]}", OMP_NUM_THREADS="1") == alone


def test_an_idle_engine_sleeps(default_model_dir: Path) -> None:
    seconds, sleeps = run_python(_SPEND_NOTHING, str(default_model_dir))
    assert seconds < 1  # of processor time in two seconds; a thread that spins takes two
    assert sleeps < 100  # one that looks every millisecond goes to sleep two thousand times


@pytest.mark.parametrize("settings", [{"weight_bits": 8}, {"weight_bits": 4}, {"dtype": "bfloat16"}], ids=str)
def test_more_threads_than_tokens_compute_the_same_bits(settings: dict[str, Any], tmp_path: Path) -> None:
    directory = make_small(tmp_path / "model", "LlamaForCausalLM", hidden_size=64, num_attention_heads=2, head_dim=32)
    prompts = [list(range(1, length)) for length in (6, 18, 25, 33, 41, 66)]

    def logits(threads: int) -> list[torch.Tensor]:
        more = {"device": "cpu", "threads": threads, "num_tokens_per_iter": 64, "enable_prefix_caching": False}
        with TokenEngine(directory, **more | settings) as engine:
            return [engine.generate(prompt, 1)[1] for prompt in prompts]

    for one, many in zip(logits(1), logits(40), strict=True):
        assert torch.equal(one, many)


TIMEOUT = 180.0


def last_output(engine: Engine, config: GenerationConfig) -> EngineOutput:
    done = threading.Event()
    outputs: list[EngineOutput] = []

    def receive(output: EngineOutput) -> None:
        outputs.append(output)
        if output.is_final:
            done.set()

    engine.submit([1, 2, 3], config, receive)
    assert done.wait(TIMEOUT), "no output"
    return outputs[-1]


def test_a_text_with_half_a_character_is_refused_and_costs_nobody_else_a_response(tmp_path: Path) -> None:
    engine = Engine(str(make_tiny_llama(tmp_path / "model")), TurbomindEngineConfig(cache_max_entry_count=16))
    try:
        half = "half a surrogate pair"
        for response_format, reason in (
            ({"type": "\ud800"}, half),
            ({"type": "regex_schema", "regex_schema": "a\ud800"}, half),
            ({"type": "json_schema", "json_schema": {"const": float("nan")}}, "NaN is no number"),
        ):
            rejected = last_output(engine, GenerationConfig(response_format=response_format))
            assert rejected.finish_reason == "error"
            assert rejected.is_bad_request
            assert reason in rejected.error
        answered = last_output(engine, GenerationConfig(max_new_tokens=3, ignore_eos=True))
        assert answered.finish_reason == "length"
    finally:
        engine.close()
