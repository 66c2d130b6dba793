"""References of each architecture's tests, out of their own tables: `lmdeploy list` shows them."""

import json
import tempfile
from pathlib import Path

from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.families.encoders import names_of
from lmdeploy.turbomind.gguf.architectures import (
    CLASSIFIER,
    DEEPSEEK_V2,
    FALCON_MAMBA,
    OLMO3,
    architecture_of,
    published_architectures,
)
from lmdeploy.turbomind.text_part import ARCHITECTURES as SEEING
from tests.engine import test_gguf_architectures as gguf
from tests.engine.test_lite_families import REJECTED, SHOWN
from tests.engine.test_model_families import CASES, reference_forward
from tests.engine.test_vision_models import CASES as VISION_CASES
from tests.support.tiny_encoders import ENCODERS

TRANSFORMERS, FORMULAS = "transformers", "the published formulas"


def tested_lines() -> dict[str, str]:
    """Return the references of each architecture: of its text, its images, its GGUF files."""
    texts, images, files = _texts(), _images(), _files()
    lines = {}
    for name in sorted({*families(), *SEEING}):
        parts = [texts[name]] if name in texts else []
        parts += [f"images: {images[name]}"] if name in images else []
        parts += [f"GGUF: {files[name]}"] if name in files else []
        lines[name] = "; ".join(parts)
    return lines


def _texts() -> dict[str, str]:
    shown = SHOWN | {architecture: name for architecture, (name, _) in REJECTED.items()}
    found = {
        architecture: TRANSFORMERS if CASES[name].forward is reference_forward else FORMULAS
        for architecture, name in shown.items()
    }
    found |= {
        name: TRANSFORMERS
        for family in (*ENCODERS, "JinaEmbeddingsV5", "New")
        for name in names_of(family)
        if name in families()
    }
    found["Qwen3VLMoeTextModel"] = TRANSFORMERS  # by the whole model, which has images
    for family in families().values():  # other names of the same
        known = next((found[name] for name in family.architectures if name in found), None)
        found |= {} if known is None else {name: found.get(name, known) for name in family.architectures}
    return found


def _images() -> dict[str, str]:
    """Return the references of images; some models `transformers` does not have."""
    found = dict.fromkeys(SEEING, TRANSFORMERS)
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(VISION_CASES.values()):
            if case.reference is not None:
                directory = case.make(Path(folder) / str(number) / "model")
                config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
                found |= dict.fromkeys(config["architectures"], FORMULAS)
    return found


def _files() -> dict[str, str]:
    """Return the references of GGUF files' logits, or vectors."""
    named = (*gguf.CASES, *gguf.ENCODERS, *gguf.WITH_TOWERS, OLMO3, DEEPSEEK_V2, FALCON_MAMBA, CLASSIFIER)
    compared = {architecture_of(name).published for name in named if name not in gguf.BY_TRANSFORMERS}
    return {name: "llama.cpp" if name in compared else TRANSFORMERS for name in published_architectures()}
