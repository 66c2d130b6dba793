"""A model spread over two processes responses as one in a single process."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lmdeploy import PytorchEngineConfig
from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.ranks import Ranks, join
from lmdeploy.pytorch.transformers_model import TransformersModel
from tests.support.adapters import make_adapter
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.token_engine import TokenEngine, relative_error

PROMPT = list(range(100, 150))


def responses(directory: Path, adapter: Path, tp: int) -> list[tuple[list[int], torch.Tensor]]:
    """Return the greedy response and the logits of prompt and response, with the adapter and without."""
    config = PytorchEngineConfig(
        dtype="float32", tp=tp, session_len=256, num_gpu_blocks=32, block_size=16, adapters={"own": str(adapter)}
    )
    with TokenEngine(directory, config=config) as engine:
        return [engine.generate(PROMPT, 12, adapter=name) for name in ("own", None)]


def test_two_ranks_answer_as_one(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=2, hidden_size=64)
    adapter = make_adapter(tmp_path / "adapter", directory)
    whole, divided = (responses(directory, adapter, tp) for tp in (1, 2))
    assert whole[0][0] != whole[1][0]
    for (tokens, logits), (divided_tokens, divided_logits) in zip(whole, divided, strict=True):
        assert divided_tokens == tokens
        assert relative_error(divided_logits, logits) < 1e-4


class Unmet(Ranks):
    """A rank that keeps its part to itself."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("has_kernels", [True, False], ids=["the engine's kernels", "plain PyTorch, as on GPUs"])
def test_the_parts_of_the_ranks_add_up_to_the_whole(has_kernels: bool, tmp_path: Path) -> None:
    directory = make_tiny(tmp_path, "Qwen2ForCausalLM", vocab_size=1000)
    used = kernels(1) if has_kernels else None
    x = torch.linspace(-1, 1, 3 * 32).reshape(1, 3, 32)

    def mlp(ranks: Ranks) -> torch.Tensor:
        model: Any = TransformersModel(directory, "float32", used, ranks)._model
        with torch.inference_mode():
            output: torch.Tensor = model.model.layers[0].mlp(x)
            return output

    whole, parts = mlp(Ranks()), [mlp(Unmet(rank, 2)) for rank in range(2)]
    assert (parts[0] - whole).abs().max() > 1e-3
    assert (sum(parts) - whole).abs().max() < 1e-5


def test_ranks_meet_over_nccl_on_gpus_and_over_gloo_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[str, int]] = []
    chosen: list[torch.device] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, *, rank, **_: met.append((backend, rank)))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for device in (torch.device("cuda", 1), torch.device("cpu")):
        assert join(1, 2, "/nowhere", device) == Ranks(1, 2)
    assert met == [("nccl", 1), ("gloo", 1)]
    assert chosen == [torch.device("cuda", 1)]


def test_a_model_without_a_plan_is_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4)
    with pytest.raises(UnsupportedModelError, match="no plan for more than one device"):
        TransformersModel(directory, "auto", kernels(2), Ranks(0, 2))


def test_heads_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", num_attention_heads=4, num_key_value_heads=1)
    with pytest.raises(ValueError, match="tp=2 does not divide the number of key and value heads, 1"):
        TransformersModel(directory, "auto", kernels(2), Ranks(0, 2))
