"""Adapters for tasks that a checkpoint has (Jina embeddings v3 and v5), against the authors' formula and PEFT."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.errors import CheckpointError
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.tiny_encoders import (
    SIZES,
    VOCAB,
    hidden_states,
    make_encoder,
    make_tokenizer,
    texts_of,
    write_modules,
)

TASKS = ["retrieval.query", "text-matching", "separation"]
PROMPTS = {"retrieval.query": "w1 w2 ", "text-matching": "", "separation": ""}
RANK, ALPHA = 4, 3.0
V5_TASKS = ["retrieval", "clustering"]
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


def publish_v5(directory: Path, family: str) -> Any:
    """Write a checkpoint as Jina publishes v5, with random adapters; return the base with all of them."""
    if family == "EuroBert":
        base = make_encoder(directory, family)
    else:
        make_tokenizer(directory)
        fields = SIZES | {"vocab_size": VOCAB, "head_dim": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
        base = transformers.Qwen3Model(transformers.Qwen3Config(**fields)).eval()
        for parameter in base.parameters():
            parameter.data = torch.randn_like(parameter) * 0.4
        base.save_pretrained(directory)
    layers = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    model: Any = None
    for task in V5_TASKS:
        lora = LoraConfig(r=RANK, lora_alpha=8, target_modules=layers, task_type="FEATURE_EXTRACTION")
        model = get_peft_model(base, lora, task) if model is None else model
        if task not in model.peft_config:
            model.add_adapter(task, lora)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter) * 0.3
    model.save_pretrained(directory / "adapters")  # a folder each
    config = json.loads((directory / "config.json").read_text()) | {
        "architectures": ["JinaEmbeddingsV5Model"],
        "model_type": "jina_embeddings_v5",
        "auto_map": {"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
        "task_names": V5_TASKS,
    }
    (directory / "config.json").write_text(json.dumps(config))
    steps = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    (directory / "modules.json").write_text(json.dumps(steps))
    prompts = {"prompts": {"query": "w1 w2 ", "document": "w3 "}, "default_prompt_name": "document"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return model


@pytest.mark.parametrize("family", ["EuroBert", "Qwen3"])
def test_tasks_in_folders_have_the_last_token_s_vectors(family: str, tmp_path: Path) -> None:
    model = publish_v5(tmp_path, family)
    with pipeline(str(tmp_path), backend_config=TurbomindEngineConfig(dtype="float32")) as pipe:
        frame = pipe.tokenizer.frame()

        def correct(task: str, prompt: str) -> np.ndarray[Any, Any]:
            model.set_adapter(task)
            ids = pipe.tokenizer.encode_bare([prompt + text for text in TEXTS])
            last = np.stack([hidden_states(model, frame.single(one))[-1] for one in ids])
            return last / np.linalg.norm(last, axis=1, keepdims=True)

        for task in V5_TASKS:
            found = pipe.embed(TEXTS, task=task)
            assert np.abs(found - correct(task, "w3 ")).max() < 1e-4
            assert all(
                pipe.embed(text, task=task).tobytes() == one.tobytes() for text, one in zip(TEXTS, found, strict=True)
            )
        assert (
            np.abs(pipe.embed(TEXTS, task=V5_TASKS[1], prompt_name="query") - correct(V5_TASKS[1], "w1 w2 ")).max()
            < 1e-4
        )
        assert (pipe.embed(TEXTS) == pipe.embed(TEXTS, task=V5_TASKS[0])).all()
    shutil.rmtree(tmp_path / "adapters" / V5_TASKS[1])
    (tmp_path / "config.json").touch()
    with pytest.raises(CheckpointError, match=r"adapters/clustering/adapter_config.json of task_names is missing"):
        pipeline(str(tmp_path))
