"""Models with experts or latent attention, beyond what tests/engine/test_model_families.py says of every family."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.expert_models import MODELS
from tests.support.hybrid_models import PUBLISHERS
from tests.support.published import as_is
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine

TEXT = "Once upon a time, in a land far away, there lived a fox who could count to ten. " * 3
OTHERS = ["def main():", "你好", "The fox counted. " * 9]
IDS = [(37 * i * i + 11 * i) % 900 + 100 for i in range(60)]
CONFIG = GenerationConfig(max_new_tokens=12, ignore_eos=True, output_logits="all")


@dataclass
class Checkpoint:
    directory: Path
    exact: torch.Tensor  # logits of IDS, nothing rounded
    is_sparse: bool  # tokens attend to chosen ones


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    architecture, overrides = MODELS[request.param]
    directory = make_small(tmp_path_factory.mktemp("tiny") / "model", architecture, **overrides)
    PUBLISHERS.get(request.param, as_is)(directory)
    with TokenEngine(directory) as engine:
        yield Checkpoint(directory, engine.generate(IDS, 1)[1], "index_topk" in overrides)


@pytest.mark.alike(max_cases=10)
def test_logits_are_bitwise_the_same_alone_and_among_others(checkpoint: Checkpoint) -> None:
    settings = TurbomindEngineConfig(
        dtype="float32", cache_block_seq_len=16, cache_max_entry_count=384, max_prefill_token_num=24
    )
    with pipeline(str(checkpoint.directory), backend_config=settings) as pipe:
        alone = pipe(TEXT, CONFIG, do_preprocess=False)
        together = pipe([*OTHERS, TEXT, *OTHERS], CONFIG, do_preprocess=False)[len(OTHERS)]
    assert alone.token_ids == together.token_ids
    assert alone.logits is not None
    assert together.logits is not None
    assert torch.equal(alone.logits, together.logits)


# Unrelated logits would be 1.4 apart. Weights this wide are rounded to 4 bits worse than a trained model's.
@pytest.mark.alike
@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"weight_bits": 8, "quant_policy": 8}, 0.15),
        ({"weight_bits": 4}, 0.9),
        ({"quant_policy": 4}, 0.6),
        ({"dtype": "bfloat16"}, 0.05),
    ],
    ids=str,
)
def test_rounding_keeps_the_logits_near(checkpoint: Checkpoint, settings: dict[str, Any], limit: float) -> None:
    with TokenEngine(checkpoint.directory, **settings) as engine:
        _, logits = engine.generate(IDS, 1)
    # The median row: where two experts have nearly the same score, rounding may choose the other one.
    distance = (logits - checkpoint.exact).norm(dim=-1) / checkpoint.exact.norm(dim=-1)
    # In as many rows again where tokens attend to others by their scores.
    assert float(distance.median()) < limit * (2 if checkpoint.is_sparse else 1)
