"""Rows of images take other weights than those of text, whatever a step, a rank or a format of weights holds.

What is computed is held against float64 in `test_vision_models`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, pipeline
from tests.support.adapters import make_adapter
from tests.support.both_engines import config_for
from tests.support.cogvlm_reference import make_tiny_cogvlm
from tests.support.images import make_image
from tests.support.mono_internvl_reference import make_tiny_mono_internvl
from tests.support.token_engine import relative_error
from tests.support.xcomposer_reference import make_tiny_xcomposer

MAKERS: dict[str, Callable[[Path], Path]] = {
    "CogVLM2": make_tiny_cogvlm,
    "Mono-InternVL": make_tiny_mono_internvl,
    "XComposer2": make_tiny_xcomposer,
}
SETTINGS = {
    "device": "cpu",
    "session_len": 256,
    "cache_max_entry_count": 64,
    "cache_block_seq_len": 16,
    "max_batch_size": 2,
    "num_tokens_per_iter": 64,
}
PROMPT = ("what is in this image?", [make_image(40, 60, 1), make_image(30, 30, 2)])
ALL = GenerationConfig(max_new_tokens=2, output_logits="all", do_sample=False, ignore_eos=True)


@pytest.fixture(scope="module", params=list(MAKERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("seeing") / "model")


def logits(model: Path, **settings: Any) -> torch.Tensor:
    with pipeline(str(model), config_for("turbomind", **(SETTINGS | settings))) as pipe:
        found: torch.Tensor = pipe(PROMPT, ALL).logits
    return found


def test_steps_of_any_size_give_the_same_bits(model: Path) -> None:
    whole = logits(model)
    for rows in (1, 5, 19):
        assert torch.equal(logits(model, num_tokens_per_iter=rows), whole), rows


def test_ranks_have_them_too(model: Path) -> None:
    assert relative_error(logits(model, tp=2), logits(model)) < 1e-4


def test_rounded_weights_have_them_too(model: Path) -> None:
    error = relative_error(logits(model, weight_bits=8), logits(model))
    assert 0 < error < 0.3  # unrelated ones would be 1.4 apart


def test_adapters_are_refused(tmp_path: Path) -> None:
    model = make_tiny_xcomposer(tmp_path / "model")
    adapter = make_adapter(tmp_path / "adapter", model, targets=["wo"])
    with pytest.raises(ValueError, match="adapters are incompatible with separate weights of image rows"):
        logits(model, adapters={"own": str(adapter)})
