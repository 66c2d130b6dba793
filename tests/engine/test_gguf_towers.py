"""Vision-language models, from GGUF files: a model's file and the tower's, which llama.cpp's own converter writes.

Compared with the same checkpoint as safetensors, which other tests compare with `transformers`.
"""

import functools
import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.errors import UnsupportedModelError
from lmdeploy.paths import locate_model
from lmdeploy.vl.families import vision_families
from lmdeploy.vl.tower import family_in, seeing_part
from tests.engine.test_gguf_architectures import TOLERANCE as IN_FLOAT32
from tests.engine.test_gguf_architectures import WITH_GELU, converted
from tests.support import tiny_vision_models as tiny
from tests.support.images import make_image
from tests.support.llama_cpp import convert, logits_of_llama_cpp, require_llama_cpp
from tests.support.token_engine import TokenEngine, relative_error

TOLERANCE = 1e-4
SETTINGS = TurbomindEngineConfig(
    device="cpu", dtype="float32", session_len=512, cache_max_entry_count=128, cache_block_seq_len=16, max_batch_size=4
)
ALL = GenerationConfig(max_new_tokens=4, output_logits="all", do_sample=False, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    """How a checkpoint is made, and what is changed in it before it is converted.

    ``published`` renames tensors, ``narrow`` are those that the converter keeps in 16 bits, ``settings`` are its image
    processor's, and ``changes`` are fields of parts of its config.
    """

    make: Callable[[Path], Path]
    published: tuple[str, str] = ("^$", "")
    narrow: str = "^$"
    settings: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)


QWEN_SIZES = {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}}  # as published
CASES = {
    "idefics3": Case(tiny.make_tiny_idefics3, changes={"text_config": {"architectures": ["LlamaForCausalLM"]}}),
    "gemma3": Case(
        functools.partial(tiny.make_tiny_gemma3, layers=6),
        ("^vision_tower[.](?!vision_model)", "vision_tower.vision_model."),
        "mm_input_projection_weight",
        {"image_seq_length": tiny.GEMMA3_ROWS},
    ),
    "internvl": Case(
        functools.partial(tiny.make_tiny_internvl, depth=4),
        ("^(?=vision_tower|multi_modal_projector)", "model."),
        settings={"max_patches": 12},
        changes={
            "vision_config": {"architectures": ["InternVisionModel"]},
            "text_config": {"architectures": ["Qwen2ForCausalLM"]},
        },
    ),
    "pixtral": Case(functools.partial(tiny.make_tiny_mistral3, depth=3)),
    # The converter finds the last matrix of a projector in towers of more than two layers.
    "qwen2vl_merger": Case(functools.partial(tiny.make_tiny_qwen_vl, depth=4), settings=QWEN_SIZES),
    "qwen2.5vl_merger": Case(
        functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen2_5_VL", window=112, depth=4), settings=QWEN_SIZES
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Return a factory of checkpoints, each with the folder of its two GGUF files, by the kind of projector."""
    require_llama_cpp()
    return functools.cache(lambda kind: make(CASES[kind], tmp_path_factory.mktemp("towers")))


def make(case: Case, folder: Path) -> tuple[Path, Path]:
    source, files = case.make(folder / "source"), folder / "files"
    weights = load_file(source / "model.safetensors")
    for name, tensor in list(weights.items()):
        if re.search(case.narrow, name):
            weights[name] = tensor.half().float()
        weights[re.sub(*case.published, name)] = weights.pop(name)
    save_file(weights, source / "model.safetensors")
    settings = source / "preprocessor_config.json"
    settings_read = json.loads(settings.read_text(encoding="utf-8")) | case.settings
    settings.write_text(json.dumps(settings_read), encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    for part, fields in case.changes.items():
        config[part] |= fields
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    add_tokens(source, tiny.TEXT["vocab_size"])
    files.mkdir()
    convert(source, files / "mmproj-model.gguf", "f32", "--mmproj")
    converted(source, files / "model.gguf")
    return source, files


def add_tokens(source: Path, rows: int) -> None:
    """Let a tokenizer have a token for each row of the embedding: of Gemma's, the converter leaves out the others."""
    file = source / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    added = tokenizer["added_tokens"]
    added += [added[-1] | {"id": row, "content": f"<row {row}>"} for row in range(added[-1]["id"] + 1, rows)]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def test_every_kind_of_projector_is_compared() -> None:
    from lmdeploy.turbomind.gguf.towers import TOWERS

    assert set(CASES) == set(TOWERS)
    assert {tower.architecture for tower in TOWERS.values()} <= {name for name, _ in vision_families()}


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("kind", list(CASES))
def test_images_are_seen_as_by_the_same_checkpoint(kind: str, made: Callable[[str], tuple[Path, Path]]) -> None:
    image = make_image(40, 60)
    rows, logits = [], []
    for folder in made(kind):
        directory = locate_model(str(folder))
        part, found = seeing_part(directory), family_in(directory)
        assert found is not None
        with torch.inference_mode():
            rows.append(found[1].features(part, image, {}))
        with pipeline(str(folder), SETTINGS) as pipe:
            logits.append(pipe(("what is in this image, and where?", image), ALL).logits)
    assert relative_error(rows[1], rows[0]) < TOLERANCE
    assert relative_error(logits[1], logits[0]) < TOLERANCE


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("kind", list(CASES))
def test_texts_are_read_as_llama_cpp_reads_them(
    kind: str, made: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    prompt = [(37 * i * i + 11 * i) % 250 + 2 for i in range(40)]
    file = made(kind)[1] / "model.gguf"
    with TokenEngine(file) as engine:
        _, native = engine.generate(prompt, 1, "all")
    reference = logits_of_llama_cpp(file, tmp_path / "logits.npy", prompt)
    assert relative_error(native, reference) < (WITH_GELU if kind == "gemma3" else IN_FLOAT32)


def test_a_tower_alone_is_refused_and_one_that_is_not_read_is_named(
    made: Callable[[str], tuple[Path, Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(made("idefics3")[1], tmp_path / "files")
    tower = folder / "mmproj-model.gguf"
    with pytest.raises(UnsupportedModelError, match="is a vision tower: name the model's own file"):
        locate_model(str(tower))
    known, token = tower.read_bytes(), b"projector.scale_factor"
    for content, reason in (
        (known.replace(b"idefics3", b"idefics9"), "has a projector of the kind 'idefics9'"),
        (known.replace(token, b"x" * len(token)), "asks for 'clip.vision.projector.scale_factor', which is not there"),
    ):
        tower.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert family_in(locate_model(str(folder))) is None  # it reads text
        assert reason in caplog.text
