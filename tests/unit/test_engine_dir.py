"""An engine directory is whole or absent, belongs to one state of a checkpoint, and holds what the contract says."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy import _turbomind
from lmdeploy.paths import cache_root, model_name_of
from lmdeploy.token_bytes import TokenBytes
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind import engine_dir
from lmdeploy.turbomind.engine_dir import CheckpointError, UnsupportedModelError, resolve
from lmdeploy.turbomind.spec import ModelSpec
from tests.support.manifest_weights import load_weights
from tests.support.tiny_models import make_tiny, make_tiny_llama

CopyOf = Callable[[Path], Path]


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmdeploy.turbomind.engine_dir", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_default_model_is_described_as_documented(default_model_dir: Path) -> None:
    engine = resolve("")
    spec = engine.spec
    assert engine.path.parent == cache_root() / "engines"
    assert (spec.architecture, spec.model_name, spec.dtype) == ("LlamaForCausalLM", "SmolLM2-135M-Instruct", "bfloat16")
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers, spec.intermediate_size) == (49152, 576, 30, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.attention.scale) == (9, 3, 64, 0.125)
    assert (spec.tied_embeddings, spec.bos_token_id, spec.eos_token_ids) == (True, 1, (2,))
    table = TokenBytes.read(engine.path / "token_bytes.bin")
    assert table == Tokenizer(str(default_model_dir)).token_bytes(49152)


def test_no_weights_are_copied(tiny_llama: Path) -> None:
    engine = resolve(tiny_llama)
    assert list(engine.path.rglob("*.safetensors")) == []
    manifest = json.loads((engine.path / "manifest.json").read_text())
    assert manifest["files"] == [str(tiny_llama / "model.safetensors")]
    assert manifest["tensors"]["layers.1.mlp.gate_up.weight"] == {
        "op": "concat",
        "args": [
            {"op": "load", "file": 0, "name": "model.layers.1.mlp.gate_proj.weight"},
            {"op": "load", "file": 0, "name": "model.layers.1.mlp.up_proj.weight"},
        ],
    }


def test_a_sharded_checkpoint_gives_the_same_weights(tiny_llama: Path, sharded_llama: Path) -> None:
    assert len(list(sharded_llama.glob("*.safetensors"))) > 2
    whole, sharded = load_weights(resolve(tiny_llama)), load_weights(resolve(sharded_llama))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_shards_without_an_index_are_found(sharded_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(sharded_llama)
    (checkpoint / "model.safetensors.index.json").unlink()
    assert load_weights(resolve(checkpoint)).keys() == load_weights(resolve(sharded_llama)).keys()


def test_a_second_call_reuses_the_directory_and_a_changed_checkpoint_gets_a_new_one(
    tiny_llama: Path, copy_of: CopyOf
) -> None:
    checkpoint = copy_of(tiny_llama)
    first = resolve(checkpoint).path
    inode = (first / "spec.json").stat().st_ino
    assert resolve(checkpoint).path == first
    assert (first / "spec.json").stat().st_ino == inode
    generation = json.loads((checkpoint / "generation_config.json").read_text())
    (checkpoint / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [2, 0]}))
    assert resolve(checkpoint).path != first
    assert resolve(checkpoint).spec.eos_token_ids == (2, 0)


def test_a_touched_weight_file_gets_a_new_directory(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    first = resolve(checkpoint).path
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    assert resolve(checkpoint).path != first


def test_two_at_once_agree_and_leave_nothing_behind(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_command(str(checkpoint)), range(2)))
    assert [process.returncode for process in done] == [0, 0], done
    assert {process.stdout.strip() for process in done} == {str(resolve(checkpoint).path)}
    assert list((cache_root() / "engines").glob(".writing-*")) == []


def test_a_failed_conversion_leaves_nothing_behind(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    (checkpoint / "tokenizer.json").write_text("{")
    before = sorted((cache_root() / "engines").iterdir()) if (cache_root() / "engines").exists() else []
    with pytest.raises(CheckpointError, match="tokenizer cannot be loaded"):
        resolve(checkpoint)
    assert sorted((cache_root() / "engines").iterdir()) == before


def test_the_command_prints_one_line_on_failure(tmp_path: Path) -> None:
    done = run_command(str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path}/nothing: no such directory\n"


def test_an_engine_directory_names_itself_and_is_checked(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    engine = resolve(checkpoint)
    assert resolve(engine.path) == engine
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"model.safetensors is truncated"):
        resolve(engine.path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is missing"):
        resolve(engine.path)


@pytest.mark.parametrize("name", ["manifest.json", "token_bytes.bin"])
def test_an_incomplete_engine_directory_is_refused(tiny_llama: Path, copy_of: CopyOf, name: str) -> None:
    engine = resolve(copy_of(tiny_llama))
    (engine.path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        resolve(engine.path)


@pytest.mark.parametrize("rows", [49160, 49000])
def test_a_tokenizer_may_be_smaller_or_larger_than_the_embedding(
    rows: int, default_model_dir: Path, tmp_path: Path
) -> None:
    model = make_tiny_llama(tmp_path / "model", vocab_size=rows)
    shutil.copyfile(default_model_dir / "tokenizer.json", model / "tokenizer.json")
    engine = resolve(model)
    assert engine.spec.vocab_size == rows
    assert len(TokenBytes.read(engine.path / "token_bytes.bin").tokens) == max(rows, 49152)


def test_a_spec_survives_json() -> None:
    spec = resolve("").spec
    assert ModelSpec.from_json(spec.to_json()) == spec


STATES = {"layer_mixers": ["recurrence"] * 30}
RECURRENCE = {"kind": "mamba2", "num_heads": 4, "num_key_heads": 1, "key_dim": 16, "value_dim": 8, "conv_kernel": 4}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 1}, "not a spec.json of format 2"),
        ({"num_heads": 0}, "num_heads must be a whole number >= 1, got 0"),
        ({"num_kv_heads": 2}, "num_heads must be a multiple of num_kv_heads 2, got 9"),
        ({"head_dim": 63}, "head_dim must be even"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"eos_token_ids": [49152]}, r"eos_token_ids must be in \[0, 49152\), got 49152"),
        ({"surprise": 1}, "surprise"),
        ({"norm": {"eps": 1e-5, "kind": "batch"}}, "norm.kind must be one of rms, layer, got 'batch'"),
        ({"norm": {}}, "missing 1 required positional argument: 'eps'"),
        ({"norm": 3}, "NormSpec must be an object, got 3"),
        (
            STATES | {"recurrence": RECURRENCE | {"num_key_heads": 3}},
            "num_heads must be a multiple of recurrence.num_key",
        ),
        (STATES | {"recurrence": RECURRENCE | {"norm_groups": 3}}, "must be a multiple of recurrence.norm_groups 3"),
        (
            {"attention": {"scale": 1.0, "windows": [0, 8, -1] + [8] * 27}},
            r"attention.windows\[2\] must be a whole number >= 0, got -1",
        ),
        ({"attention": {"scale": 1.0, "windows": [8] * 29}}, "a value for each of 30 layers, got 29"),
        ({"embedding_scale": 0}, "embedding_scale must be a finite number > 0"),
    ],
)
def test_an_impossible_spec_is_refused(change: dict[str, object], reason: str) -> None:
    fields = json.loads(resolve("").spec.to_json())
    with pytest.raises(ValueError, match=reason):
        ModelSpec.from_json(json.dumps(fields | change))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block": {"norms_stream": True, "is_parallel": True}}, "a block with norms_stream needs has_input_norms"),
        (STATES, "recurrence must be there where layer_mixers has it"),
        ({"layer_mlps": [False] * 30, "block": {"is_parallel": True}}, "a mixer or an MLP are incompatible with"),
        ({"recurrence_block": {}}, "recurrence_block needs a recurrence"),
        (STATES | {"recurrence": RECURRENCE | {"slopes": [0.5]}}, "recurrence.slopes must have a number for each head"),
        ({"layer_ropes": [0, 1]}, "layer_ropes must have a value for each layer"),
        ({"attention": {"scale": 1.0, "alibi_slopes": [0.5]}}, "attention.alibi_slopes must have num_heads values"),
        ({"images": {"cross_layers": [7, 3]}}, "images.cross_layers must be layers, ascending"),
        ({"images": {"cross_layers": [3], "whole_rows": 4}}, "images.cross_layers is incompatible with attention.mla"),
        ({"images": {"own_mlp": True, "low_rank": 8}}, "images.low_rank is incompatible with images.own_attention or"),
        ({"images": {"own_mlp": True, "cross_layers": [3]}}, "images' own weights exclude moe"),
    ],
)
def test_features_that_do_not_go_together_are_refused_by_the_engine(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    fields = json.loads(resolve("").spec.to_json())
    (tmp_path / "spec.json").write_text(json.dumps(fields | change), encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        _turbomind.model_program(str(tmp_path / "spec.json"))


def test_a_hub_snapshot_is_named_after_its_repository() -> None:
    assert model_name_of(Path("/cache/models--owner--Model-7B/snapshots/0123abc")) == "Model-7B"


def test_what_is_cached_depends_on_all_code_that_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    content = Path.read_bytes

    def recorded(path: Path) -> bytes:
        read.append(path.name)
        return content(path)

    monkeypatch.setattr(Path, "read_bytes", recorded)
    engine_dir.writer_hash.__wrapped__()
    assert {"manifest.py", "llama.py", "token_bytes.py", "tokenizer.py", "qwen.py", "ranks.py"} <= set(read)


def test_a_model_that_turbomind_does_not_know_is_the_pytorch_engines_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = make_tiny(tmp_path / "model", "PersimmonForCausalLM")
    engine = resolve(directory)
    assert engine.backend == "pytorch"
    assert "PersimmonForCausalLM is not supported" in caplog.text
    assert resolve(engine.path).path == engine.path
    with pytest.raises(UnsupportedModelError, match="PersimmonForCausalLM is not supported"):
        resolve(directory, backend="turbomind")
    with pytest.raises(CheckpointError, match="it was made for the engine pytorch, not for turbomind"):
        resolve(engine.path, backend="turbomind")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "aqlm"}}, "weights of method 'aqlm'"),
        ({"architectures": ["RwkvForCausalLM"]}, "RwkvForCausalLM is not supported"),
        ({"architectures": ["XGLMForCausalLM"]}, "XGLMForCausalLM is not supported"),  # its model_type is Llama's
    ],
)
def test_what_neither_engine_runs_is_refused_in_turbominds_words(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(directory)


@pytest.mark.parametrize(
    ("prefix", "architecture"), [("", "LlamaForCausalLM"), ("model.", "LlamaModel"), ("", "LlamaModel")]
)
def test_a_body_without_an_output_layer_is_read_as_the_whole_model(
    tmp_path: Path, prefix: str, architecture: str
) -> None:
    directory = make_tiny_llama(tmp_path, tie_word_embeddings=False)
    whole = resolve(directory)
    assert not whole.spec.tied_embeddings
    tensors = load_file(directory / "model.safetensors")
    kept = {prefix + name.removeprefix("model."): data for name, data in tensors.items() if name != "lm_head.weight"}
    save_file(kept, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    body = resolve(directory)
    assert body.spec == dataclasses.replace(whole.spec, tied_embeddings=True)
