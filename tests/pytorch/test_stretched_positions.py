"""Positions beyond the trained length: each sequence's rotation goes by its own prompt, and stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.pytorch.description import describe_for_worker
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make, off, reference, tokens_of
from tests.support.worker_steps import Part, StepDriver

LONG, SHORT = tokens_of(40), tokens_of(12)
DYNAMIC = {
    "max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
}  # fmt: skip
LONGROPE = {
    "max_position_embeddings": 64, "original_max_position_embeddings": 16, "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16,
        "short_factor": [1.0 + 0.05 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)],
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "dynamic": ("LlamaForCausalLM", DYNAMIC, True),
    "dynamic, our class": ("LlamaForCausalLM", DYNAMIC, False),
    "longrope": ("Phi3ForCausalLM", LONGROPE, True),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_sequence_is_rotated_by_its_own_prompt_whole_in_chunks_and_alongside_others(
    tmp_path: Path, kind: str
) -> None:
    name, more, by_transformers = MODELS[kind]
    model = make(tmp_path, name, **more)
    long, short = reference(model, LONG), reference(model, SHORT)
    assert off(long[: len(SHORT)], short) > 1e-3  # the rotation is another one
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=by_transformers)
    [whole] = driver.step(Part(0, 0, LONG))
    assert off(whole, long) < 1e-4
    first, other = driver.step(Part(1, 0, LONG[:15], prompt=len(LONG)), Part(2, 0, SHORT))
    [second] = driver.step(Part(1, 15, LONG[15:], prompt=len(LONG)))
    assert off(first, long[:15]) < 1e-4
    assert off(second, long[15:]) < 1e-4
    assert off(other, short) < 1e-4


@pytest.mark.parametrize("kind", MODELS)
def test_a_response_keeps_the_rotation_of_its_prompt(tmp_path: Path, kind: str) -> None:
    name, more, by_transformers = MODELS[kind]
    make(tmp_path, name, **more)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=by_transformers)
    [prompt] = driver.step(Part(0, 0, SHORT))
    grown = [driver.step(Part(0, 12 + i, [7], prompt=12))[0] for i in range(8)]
    [at_once] = driver.step(Part(1, 0, [*SHORT, *[7] * 8], prompt=12))
    assert off(at_once[:12], prompt) < 1e-5
    assert max(off(one[0], at_once[12 + i]) for i, one in enumerate(grown)) < 1e-5


def test_longrope_may_be_called_su(tmp_path: Path) -> None:
    """As Phi-3's first releases of 128k call it."""
    expected = reference(make(tmp_path, "Phi3ForCausalLM", **LONGROPE), LONG)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters")
    factors = {name: rope[name] for name in ("short_factor", "long_factor")}
    config |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "su"} | factors}
    file.write_text(json.dumps(config), encoding="utf-8")
    assert describe_for_worker(tmp_path, "phi").max_position_embeddings == 64
    [whole] = StepDriver(tmp_path, VOCAB, HIDDEN, by_transformers=True).step(Part(0, 0, LONG))
    assert off(whole, expected) < 1e-4
