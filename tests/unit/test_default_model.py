"""The default model's directory is an ordinary, whole checkpoint that stops and chats."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open

from tools import default_model


def test_its_end_of_turn_ends_the_response(default_model_dir: Path) -> None:
    generation = json.loads((default_model_dir / "generation_config.json").read_text())
    config = json.loads((default_model_dir / "config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == 2
    assert json.loads((default_model_dir / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


def test_it_recommends_its_authors_settings(default_model_dir: Path) -> None:
    # The model card's example: model.generate(..., temperature=0.2, top_p=0.9, do_sample=True)
    authors = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.15}  # ours: the last one
    generation = json.loads((default_model_dir / "generation_config.json").read_text())
    assert generation.items() >= authors.items()


def test_weights_are_the_packages_dequantized(default_model_dir: Path, tmp_path: Path) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(default_model.find_gguf(tmp_path)).tensors}
    with safe_open(str(default_model_dir / "model.safetensors"), "pt") as checkpoint:
        assert len(list(checkpoint.keys())) == len(tensors) == 272
        for gguf_name, name in {
            "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
            "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
            "output_norm.weight": "model.norm.weight",
        }.items():
            values = dequantize(tensors[gguf_name].data, tensors[gguf_name].tensor_type)
            assert torch.equal(checkpoint.get_tensor(name), torch.tensor(values, dtype=torch.bfloat16))


def test_rotary_rows_are_put_back_into_halves() -> None:
    heads, half = 2, 3
    # Row r of a head holds the number of its rotary pair; GGUF keeps pairs together.
    interleaved = np.repeat(np.arange(half), 2).reshape(1, -1).repeat(heads, 0).reshape(-1, 1).astype(np.float32)
    halves = default_model.split_rotary_halves(interleaved, heads)
    assert halves.ravel().tolist() == [0, 1, 2, 0, 1, 2] * heads


def test_a_whole_directory_is_left_alone(default_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (default_model_dir / "model.safetensors").stat().st_mtime_ns
    default_model.make(default_model_dir)
    assert (default_model_dir / "model.safetensors").stat().st_mtime_ns == before
    assert capsys.readouterr().out == f"default model: {default_model_dir} is there\n"


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(gguf: Path, model_dir: Path) -> None:
        model_dir.mkdir()
        (model_dir / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(default_model, "write_model", fail)
    monkeypatch.setattr("sys.argv", ["default_model.py", "--dst", str(tmp_path / "model")])
    assert default_model.main() == 1
    assert list(tmp_path.iterdir()) == []


def test_a_half_made_directory_is_made_again(
    default_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(gguf: Path, model_dir: Path) -> None:
        model_dir.mkdir()
        for file in default_model_dir.iterdir():
            (model_dir / file.name).symlink_to(file)

    monkeypatch.setattr(default_model, "write_model", link)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    default_model.make(tmp_path / "model")
    assert default_model.is_complete(tmp_path / "model")
