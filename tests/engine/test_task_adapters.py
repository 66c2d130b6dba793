"""Adapters for tasks that a checkpoint has (Jina embeddings v3), against the authors' formula."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.errors import CheckpointError
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.tiny_encoders import SIZES, hidden_states, make_encoder, texts_of, write_modules

TASKS = ["retrieval.query", "text-matching", "separation"]
PROMPTS = {"retrieval.query": "w1 w2 ", "text-matching": "", "separation": ""}
RANK, ALPHA = 4, 3.0
TEXTS = texts_of([3, 40, 1, 17, 90])


def publish(base: Path, directory: Path, config: Any) -> Path:
    """Write a checkpoint as Jina publishes its own, with random adapters."""
    shutil.copytree(base, directory)
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        layer, _, kind = f"roberta.{name}".rpartition(".")
        if kind != "weight" or tensor.dim() != 2:
            tensors[f"{layer}.{kind}"] = tensor
            continue
        rows, columns = tensor.shape
        is_table = "embeddings." in layer
        shapes = [(rows, RANK), (RANK, columns)] if is_table else [(RANK, columns), (rows, RANK)]
        tensors[f"{layer}.parametrizations.weight.original"] = tensor
        for part, shape in zip("AB", shapes, strict=True):
            made = torch.randn(len(TASKS), *shape, generator=generator) * 0.3
            tensors[f"{layer}.parametrizations.weight.0.lora_{part}"] = made
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    fields = {
        "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "position_embedding_type": "rotary",
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "rotary_emb_base": config.rope_parameters["rope_theta"], "lora_adaptations": TASKS, "lora_rank": RANK,
        "lora_alpha": ALPHA, "lora_dropout_p": 0.0, "task_instructions": PROMPTS, "hidden_act": "gelu",
        "vocab_size": config.vocab_size, "type_vocab_size": 1, "pad_token_id": 1,
        "max_position_embeddings": 512, "layer_norm_eps": config.layer_norm_eps,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(SIZES | fields))
    return directory


def merged(base: Path, published: Path, task: int, directory: Path) -> Any:
    """Return the model, in float64, whose weights have the adapter of a task in them."""
    shutil.copytree(base, directory)
    stored = load_file(published / "model.safetensors")
    weights = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        weight = f"roberta.{name.removesuffix('weight')}parametrizations.weight"
        if f"{weight}.original" not in stored:
            weights[name] = tensor
            continue
        one, other = (stored[f"{weight}.0.lora_{part}"][task].double() for part in "AB")
        product = one @ other if "embeddings." in name else other @ one
        weights[name] = (stored[f"{weight}.original"].double() + product * (ALPHA / RANK)).float()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModel.from_pretrained(directory).eval().double()


def expected(model: Any, pipe: AsyncEngine, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the vectors of texts: means of length 1."""
    frame = pipe.tokenizer.frame()
    means = [hidden_states(model, frame.single(ids)).mean(axis=0) for ids in pipe.tokenizer.encode_bare(list(texts))]
    return np.stack([mean / np.linalg.norm(mean) for mean in means])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("jina")
    model = make_encoder(folder / "base", "JinaEmbeddingsV3", max_position_embeddings=512)
    write_modules(folder / "base", "mean_tokens", "Normalize")
    return folder / "base", publish(folder / "base", folder / "jina-embeddings-v3", model.config)


def test_each_task_has_the_vectors_of_its_merged_model(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    base, published = checkpoints
    with pipeline(str(published), backend_config=TurbomindEngineConfig(dtype="float32")) as pipe:
        base_model = transformers.AutoModel.from_pretrained(base).eval().double()
        assert np.abs(pipe.embed(TEXTS) - expected(base_model, pipe, TEXTS)).max() < 1e-4
        alone = {}
        for number, task in enumerate(TASKS):
            model = merged(base, published, number, tmp_path / task)
            alone[task] = pipe.embed(TEXTS, task=task)
            correct = expected(model, pipe, [PROMPTS[task] + text for text in TEXTS])
            assert np.abs(alone[task] - correct).max() < 1e-4
            assert np.abs(alone[task] - pipe.embed(TEXTS)).max() > 1e-2
            for text, vector in zip(TEXTS, alone[task], strict=True):
                assert pipe.embed(text, task=task).tobytes() == vector.tobytes()
        assert pipe.embed(TEXTS, task=TASKS[1], prompt_name=TASKS[0]).tobytes() != alone[TASKS[1]].tobytes()
        with pytest.raises(ValueError, match=r"task must be one .*\(retrieval.query, text-matching, separation\)"):
            pipe.embed(TEXTS, task="clustering")


def test_ranks_and_rounded_weights_take_them_too(checkpoints: tuple[Path, Path]) -> None:
    vectors = []
    for settings in ({"dtype": "float32"}, {"dtype": "float32", "tp": 2}, {"dtype": "bfloat16"}):
        with pipeline(str(checkpoints[1]), backend_config=TurbomindEngineConfig(**settings)) as pipe:
            vectors.append(pipe.embed(TEXTS, task=TASKS[0]))
    assert vectors[0].shape == (len(TEXTS), 48)
    assert np.abs(vectors[1] - vectors[0]).max() < 1e-5
    assert np.sum(vectors[2] * vectors[0], axis=1).min() > 0.999


def test_tensors_of_another_number_of_tasks_are_refused(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    broken = shutil.copytree(checkpoints[1], tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"lora_adaptations": TASKS[:2]}))
    with pytest.raises(CheckpointError, match="must be of 2 tasks, got the shape"):
        pipeline(str(broken))
