"""Models whose layers differ in sizes and share keys answer bitwise the same whatever else happens in the engine.

Their logits alongside those of `transformers`: tests/engine/test_model_families.py.
"""

from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.layered_models import MODELS
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny

SAMPLED = GenerationConfig(
    max_new_tokens=64, do_sample=True, temperature=0.9, top_k=50, random_seed=5, logprobs=3, ignore_eos=True
)


def traces(directory: Path, *, one_by_one: bool = False, **settings: Any) -> list[Any]:
    """Return tokens and log probabilities of the answers to all conversations, and how often one was preempted."""
    config = TurbomindEngineConfig(
        **WITHOUT_REUSE
        | {"dtype": "float32", "cache_block_seq_len": 16, "session_len": 512, "cache_max_entry_count": 800}
        | settings
    )
    with pipeline(str(directory), backend_config=config) as model:
        batches = [[conversation] for conversation in CONVERSATIONS] if one_by_one else [CONVERSATIONS]
        answers = [answer for some in batches for answer in model(some, SAMPLED)]
        preempted = model.engine.metrics()["preemptions_total"]
    return [[(answer.token_ids, answer.logprobs) for answer in answers], preempted]


@pytest.mark.parametrize("name", ["Gemma 3n", "Gemma 4 E2B"])
def test_answers_are_the_same_alone_in_a_batch_and_preempted(name: str, tmp_path: Path) -> None:
    architecture, overrides = MODELS[name]
    directory = make_tiny(tmp_path / "model", architecture, **overrides)
    alone, _ = traces(directory, one_by_one=True)
    assert traces(directory, enable_prefix_caching=True)[0] == alone
    crowded, preempted = traces(directory, cache_max_entry_count=40, enable_prefix_caching=True)
    assert crowded == alone
    assert preempted > 0
