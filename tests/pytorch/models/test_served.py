"""Models of users and of ours behind the engine: in worker processes, as a user starts them."""

from pathlib import Path
from typing import Any

import pytest

from lmdeploy import PytorchEngineConfig, pipeline
from lmdeploy.messages import GenerationConfig
from lmdeploy.turbomind.engine import Engine
from tests.support import published
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine

CUSTOM_MODEL = Path(__file__).parents[2] / "data/own_llama"
PROMPT = [(37 * i * i + 11 * i) % 1900 + 100 for i in range(45)]
SMALL = {"dtype": "float32", "session_len": 256, "num_gpu_blocks": 32, "block_size": 16, "threads": 2}
# Greedy, to the same length on both engines.
CONFIG = GenerationConfig(max_new_tokens=12, ignore_eos=True)
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}


def native_tokens(directory: Path) -> list[int]:
    """Return the tokens of the TurboMind engine."""
    with TokenEngine(directory) as native:
        tokens: list[int] = native.generate(PROMPT, CONFIG.max_new_tokens)[0]
        return tokens


def tokens_of(directory: Path, **settings: Any) -> list[int]:
    """Return the tokens of the PyTorch engine."""
    with TokenEngine(directory, config=PytorchEngineConfig(**SMALL | settings)) as engine:
        [tokens] = engine.respond([PROMPT], tokens=CONFIG.max_new_tokens)
        return tokens


def test_the_manuals_llama_serves_from_a_file_of_the_users(tmp_path: Path) -> None:
    model = make_tiny(tmp_path / "model", "LlamaForCausalLM", tie_word_embeddings=False)
    marker = tmp_path / "it ran"
    module_map = tmp_path / "module_map.py"
    module_map.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.append({str(CUSTOM_MODEL)!r})\n"
        "import own_llama\n"
        "class Marked(own_llama.LlamaForCausalLM):\n"
        "    def load_weights(self, weights):\n"
        f"        Path({str(marker)!r}).touch()\n"
        "        super().load_weights(weights)\n"
        "MODULE_MAP = {'LlamaForCausalLM': Marked}\n"
    )
    config = PytorchEngineConfig(custom_module_map=str(module_map), **SMALL)
    with pipeline(str(model), backend_config=config) as pipe:
        assert marker.exists()
        assert pipe.backend == "pytorch"
        responses = pipe(["What is a llama?", "And an alpaca?"], gen_config=CONFIG, do_preprocess=False)
    with pipeline(str(model)) as pipe:
        expected = pipe(["What is a llama?", "And an alpaca?"], gen_config=CONFIG, do_preprocess=False)
    assert [response.token_ids for response in responses] == [response.token_ids for response in expected]


def test_turbomind_takes_the_settings_with_a_model_that_transformers_lacks(tmp_path: Path) -> None:
    make_tiny(tmp_path, "LlamaForCausalLM", tie_word_embeddings=False)
    published.internlm2(tmp_path)
    expected = native_tokens(tmp_path)
    settings = SMALL | {"device_type": "cpu", "eager_mode": True, "worker_step_seconds": 60.0, "tp": 2}
    with pipeline(str(tmp_path), backend_config=PytorchEngineConfig(**settings)) as pipe:
        assert pipe.backend == "turbomind"
        assert pipe.session_len == SMALL["session_len"]
    assert tokens_of(tmp_path, **settings) == expected


def test_two_ranks_of_experts_answer_as_one(tmp_path: Path) -> None:
    make_tiny(tmp_path, "Qwen3MoeForCausalLM", **EXPERTS)
    assert tokens_of(tmp_path, tp=2) == native_tokens(tmp_path)


def test_a_module_map_that_cannot_be_read_is_refused_before_a_process_is_started(tmp_path: Path) -> None:
    model = make_tiny(tmp_path / "model", "LlamaForCausalLM")
    module_map = tmp_path / "module_map.py"
    module_map.write_text("MODULE_MAP = {'LlamaForCausalLM': \n")
    with pytest.raises(ValueError, match=r"module_map\.py, line 1"):
        Engine(str(model), PytorchEngineConfig(custom_module_map=str(module_map), **SMALL))
