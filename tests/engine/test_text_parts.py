"""Of models that see in ways the engine does not, the text part alone is served, as `transformers` computes it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lmdeploy import TurbomindEngineConfig, pipeline
from tests.support.pictures import picture
from tests.support.tiny_vision_models import make_tiny_reader
from tests.support.token_engine import TokenEngine, relative_error

TOLERANCE = 1e-4
PROMPT = [(37 * i * i + 11 * i) % 250 for i in range(45)]
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
CASES: dict[str, dict[str, Any]] = {
    "Gemma3ForConditionalGeneration": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Qwen2VLForConditionalGeneration": MROPE,
    "Qwen2_5_VLForConditionalGeneration": MROPE,
}


@pytest.mark.parametrize("architecture", CASES)
def test_texts_are_computed_as_by_transformers_and_pictures_refused(architecture: str, tmp_path: Path) -> None:
    directory = make_tiny_reader(tmp_path / "model", architecture, **CASES[architecture])
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    with TokenEngine(directory, device="cpu") as engine:
        tokens, ours = engine.answer(PROMPT, 6)
        with torch.inference_mode():
            expected = theirs(input_ids=torch.tensor([PROMPT + tokens])).logits[0]
        assert relative_error(ours[: len(PROMPT)], expected[: len(PROMPT)]) < TOLERANCE
    with (
        pipeline(str(directory), TurbomindEngineConfig(device="cpu", session_len=256)) as pipe,
        pytest.raises(ValueError, match="reads text only"),
    ):
        pipe(("what?", picture(9, 9)))
