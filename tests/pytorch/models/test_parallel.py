"""A model spread over ranks gives the logits of one process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from lmdeploy.pytorch.models.patched_model import PatchedModel
from lmdeploy.pytorch.ranks import Ranks
from tests.pytorch.models.stepping import run_chunks
from tests.support.tiny_models import make_tiny

PROMPT = [(37 * i * i + 11 * i) % 900 + 50 for i in range(20)]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@dataclass
class Rendezvous:
    """Where ranks in threads sum."""

    count: int
    parts: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=180)


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """A rank in a thread."""

    rendezvous: Rendezvous | None = None

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        assert self.rendezvous is not None
        self.rendezvous.parts[self.rank] = x
        self.rendezvous.barrier.wait()
        total = torch.stack([self.rendezvous.parts[rank] for rank in range(self.count)]).sum(0)
        self.rendezvous.barrier.wait()
        return x.copy_(total)


@pytest.mark.parametrize(
    ("architecture", "overrides", "count"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, 2),
        ("Qwen2ForCausalLM", {}, 4),  # each key head on two ranks
        ("Qwen3MoeForCausalLM", EXPERTS | {"head_dim": 8}, 2),
    ],
    ids=["Llama with biases", "fewer key heads than ranks", "experts"],
)
def test_ranks_together_give_the_logits_of_one(
    architecture: str, overrides: dict[str, object], count: int, tmp_path: Path
) -> None:
    make_tiny(tmp_path, architecture, vocab_size=1000, **overrides)
    alone = run_chunks(PatchedModel(tmp_path), [PROMPT], [[12], [8]])[0]
    rendezvous = Rendezvous(count)

    def run(rank: int) -> torch.Tensor:
        model = PatchedModel(tmp_path, ranks=ThreadRanks(rank, count, rendezvous))
        return run_chunks(model, [PROMPT], [[12], [8]])[0]

    with ThreadPoolExecutor(count) as threads:
        together = list(threads.map(run, range(count)))
    for logits in together:
        assert (logits - alone).abs().max() < 1e-5 * alone.abs().max()


def test_heads_that_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    make_tiny(tmp_path, "LlamaForCausalLM", vocab_size=1000)
    with pytest.raises(ValueError, match="tp=3 does not divide the query heads"):
        PatchedModel(tmp_path, ranks=Ranks(0, 3))
