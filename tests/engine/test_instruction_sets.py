"""With each kernel table of this processor, a response is bitwise the same alone, in a batch and in chunks."""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import make_tiny_llama

_ANSWER = """
import json, sys
from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
directory, settings = sys.argv[1], json.loads(sys.argv[2])
prompts = [[{"role": "user", "content": "word " * count + "and?"}] for count in (3, 60, 120)]
plan = GenerationConfig(max_new_tokens=12, do_sample=True, random_seed=3, top_k=20, logprobs=2, ignore_eos=True)
responses = {}
for name, own in {"together": {}, "chunks": {"max_prefill_token_num": 24}}.items():
    own = {"cache_max_entry_count": 600, "cache_block_seq_len": 16, "session_len": 512} | settings | own
    config = TurbomindEngineConfig(**own)
    with pipeline(directory, backend_config=config) as model:
        responses[name] = model(prompts, plan)
        if name == "together":
            responses["alone"] = [model(prompt, plan) for prompt in prompts]
print(json.dumps({
    name: [(answer.token_ids, [list(entry.items()) for entry in answer.logprobs]) for answer in given]
    for name, given in responses.items()
}))
"""

SETTINGS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "4-bit weights, 8-bit cache": {"dtype": "bfloat16", "weight_bits": 4, "quant_policy": 8},
    "8-bit weights, 4-bit cache": {"dtype": "bfloat16", "weight_bits": 8, "quant_policy": 4},
}


@cache
def isas() -> list[str]:
    """Return the tables that this processor has; none where the engine is not built."""
    if find_spec("lmdeploy._turbomind") is None:
        return []
    from lmdeploy import _turbomind

    return _turbomind.cpu_isas()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(
        tmp_path_factory.mktemp("tiny") / "model", hidden_size=128, intermediate_size=192, dtype="bfloat16"
    )


@pytest.mark.alike
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("isa", isas() or ["none"])
def test_responses_are_bitwise_the_same_in_any_company(isa: str, settings: str, directory: Path) -> None:
    environment = os.environ | ({} if isa == "none" else {"LMDEPLOY_CPU_ISA": isa})
    command = [sys.executable, "-c", _ANSWER, str(directory), json.dumps(SETTINGS[settings])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    responses = json.loads(done.stdout.splitlines()[-1])
    assert responses["together"] == responses["alone"] == responses["chunks"]


def test_an_instruction_set_that_is_not_here_is_refused_by_name(directory: Path) -> None:
    command = [sys.executable, "-c", _ANSWER, str(directory), "{}"]
    done = subprocess.run(
        command, env=os.environ | {"LMDEPLOY_CPU_ISA": "sse9"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "CPU instruction set must be one of" in done.stderr
    assert "sse9" in done.stderr
