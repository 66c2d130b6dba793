"""Outputs reach their callers, whatever the others are sent."""

import threading
from pathlib import Path

from lmdeploy import GenerationConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tests.support.tiny_models import make_tiny_llama

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
        half_a_character = "\ud800"
        rejected = last_output(engine, GenerationConfig(response_format={"type": half_a_character}))
        assert rejected.finish_reason == "error"
        assert rejected.is_bad_request
        assert "half a surrogate pair" in rejected.error
        answered = last_output(engine, GenerationConfig(max_new_tokens=3, ignore_eos=True))
        assert answered.finish_reason == "length"
    finally:
        engine.close()
