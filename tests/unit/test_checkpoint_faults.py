"""A damaged checkpoint is refused with everything that is wrong with it, before anything is loaded."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from lmdeploy.turbomind.engine_dir import CheckpointError, resolve

CopyOf = Callable[[Path], Path]
Damage = Callable[[Path], object]
WEIGHTS = "model.safetensors"


def cut(name: str, keep: int) -> Damage:
    def damage(checkpoint: Path) -> None:
        path = checkpoint / name
        path.write_bytes(path.read_bytes()[:keep])

    return damage


def write(name: str, content: bytes) -> Damage:
    return lambda checkpoint: _write(checkpoint / name, content)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(name: str) -> Damage:
    return lambda checkpoint: (checkpoint / name).unlink()


def configure(**changes: Any) -> Damage:
    def damage(checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_text()) | changes
        (checkpoint / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))

    return damage


def retensor(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(checkpoint: Path) -> None:
        tensors = load_file(checkpoint / WEIGHTS)
        change(tensors)
        save_file(tensors, checkpoint / WEIGHTS)

    return damage


def header(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


FAULTS: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "config.json is missing"),
    "half a config": (cut("config.json", 50), "config.json cannot be read"),
    "config is a list": (write("config.json", b"[]"), "config.json must hold a JSON object, got list"),
    "no weights": (remove(WEIGHTS), r"has no \*.safetensors file"),
    "other weights": (
        lambda checkpoint: (checkpoint / WEIGHTS).rename(checkpoint / "pytorch_model.bin"),
        "pytorch_model.bin: holds more than tensors, or is broken; nothing of it was executed",
    ),
    "empty file": (cut(WEIGHTS, 0), "model.safetensors is truncated: 0 bytes"),
    "half a header": (cut(WEIGHTS, 100), "model.safetensors is truncated: its header has"),
    "half the weights": (cut(WEIGHTS, 100_000), "model.safetensors is truncated: expected [0-9]+ bytes, got 100000"),
    "one byte short": (cut(WEIGHTS, -1), "model.safetensors is truncated"),
    "no safetensors": (write(WEIGHTS, b"PK\x03\x04" + bytes(100)), "is no safetensors file|is truncated"),
    "random bytes": (write(WEIGHTS, b"\xff" * 100), "is no safetensors file"),
    "git lfs pointer": (write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"), "run `git lfs pull`"),
    "header no json": (write(WEIGHTS, header(b"{not json")), "its header is no JSON"),
    "header no object": (write(WEIGHTS, header(b"[1]")), "its header is no JSON object"),
    "unknown type": (
        write(WEIGHTS, header(b'{"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}')),
        "has tensor a of unknown type X9; known: F64, ",
    ),
    "type of codes": (
        lambda checkpoint: _write(
            checkpoint / WEIGHTS,
            (checkpoint / WEIGHTS).read_bytes().replace(b'"F32","shape":[32]', b'"F4","shape":[256]'),
        ),
        r"tensor model\.\S+norm\.weight has shape \[256\], expected \[32\]",
    ),
    "names of another model": (
        retensor(lambda tensors: [tensors.update({f"gpt.{name}": tensors.pop(name)}) for name in list(tensors)]),
        "of the 20 tensors of this architecture are missing, such as model.embed_tokens.weight; the files hold others",
    ),
    "an adapter alone": (
        lambda checkpoint: (checkpoint / WEIGHTS).rename(checkpoint / "adapter_model.safetensors"),
        "has no model.safetensors and no shards, only adapter_model.safetensors, which is no model",
    ),
    "two sets of unknown names": (
        lambda checkpoint: (
            [(checkpoint / f"{name}.safetensors").write_bytes((checkpoint / WEIGHTS).read_bytes()) for name in "ab"]
            and (checkpoint / WEIGHTS).unlink()
        ),
        "b.safetensors and a.safetensors both hold tensor",
    ),
    "wrong offsets": (
        write(WEIGHTS, header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}') + bytes(8)),
        r"has tensor a F32\[2\] at bytes 0..4, expected 8 bytes",
    ),
    "missing tensor": (
        retensor(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "tensor model.layers.1.mlp.up_proj.weight is missing",
    ),
    "wrong shape": (
        retensor(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"][:-1].clone()})),
        r"tensor model.norm.weight has shape \[31\], expected \[32\]",
    ),
    "wrong type": (
        retensor(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].int()})),
        "tensor model.norm.weight has type I32, expected one of F32, F16, BF16",
    ),
    "unread bias": (
        retensor(
            lambda tensors: tensors.update(
                {"model.layers.0.self_attn.q_proj.bias": tensors["model.norm.weight"].clone()}
            )
        ),
        "tensor model.layers.0.self_attn.q_proj.bias is unknown to this architecture",
    ),
    "more layers": (configure(num_hidden_layers=3), "tensor model.layers.2.input_layernorm.weight is missing"),
    "zero heads": (configure(num_attention_heads=0), "num_attention_heads must be a whole number >= 1, got 0"),
    "a vocabulary beyond belief": (configure(vocab_size=10**9), "vocab_size must be at most"),
    "theta not a number": (
        configure(rope_parameters={"rope_type": "default", "rope_theta": float("nan")}),
        "rope_theta",
    ),
    "no feature of its size": (
        configure(intermediate_size=-1),
        "intermediate_size must be a whole number >= 1, got -1",
    ),
    "text for a size": (configure(hidden_size="big"), "hidden_size must be a whole number >= 1, got 'big'"),
    "size left out": (configure(vocab_size="absent"), "vocab_size must be a whole number >= 1, got None"),
    "heads do not divide": (configure(num_key_value_heads=3), "num_heads must be a multiple of num_kv_heads 3, got 4"),
    "hidden does not divide": (
        configure(num_attention_heads=5, head_dim=None),
        "hidden_size must be a multiple of num_attention_heads 5, got 32",
    ),
    "head_dim contradicts the weights": (
        configure(head_dim=10),
        r"q_proj.weight has shape \[32, 32\], expected \[40, 32\]",
    ),
    "odd head_dim": (configure(head_dim=7), "config.json is invalid: .*even"),
    "rope without factor": (configure(rope_parameters={"rope_type": "linear"}), "config.json is invalid: .*factor"),
    "rope theta zero": (
        configure(rope_parameters={"rope_type": "default", "rope_theta": 0}),
        "config.json is invalid",
    ),
    "eps zero": (configure(rms_norm_eps=0.0), "norm.eps must be a finite number > 0"),
    "model_type unknown": (configure(model_type="absent"), "config.json is invalid"),
    "eos no id": (
        write("generation_config.json", b'{"eos_token_id": "</s>"}'),
        "generation_config.json: eos_token_id must be a token id or a list of them, got '</s>'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_is_refused_by_reason(fault: str, tiny_llama: Path, copy_of: CopyOf) -> None:
    damage, reason = FAULTS[fault]
    checkpoint = copy_of(tiny_llama)
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=reason) as raised:
        resolve(checkpoint)
    assert "\n" not in str(raised.value)


SHARD_FAULTS: dict[str, tuple[Damage, str]] = {
    "shard missing": (remove("model-00002-of-00006.safetensors"), "model-00002-of-00006.safetensors is missing"),
    "shard truncated": (cut("model-00003-of-00006.safetensors", -8), "model-00003-of-00006.safetensors is truncated"),
    "index broken": (write("model.safetensors.index.json", b"{"), "model.safetensors.index.json is broken"),
    "index empty": (write("model.safetensors.index.json", b"{}"), "model.safetensors.index.json is broken"),
}


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_a_damaged_sharded_checkpoint_is_refused_by_reason(fault: str, sharded_llama: Path, copy_of: CopyOf) -> None:
    damage, reason = SHARD_FAULTS[fault]
    checkpoint = copy_of(sharded_llama)
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=reason):
        resolve(checkpoint)


def test_a_missing_shard_is_named_even_without_an_index(sharded_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(sharded_llama)
    remove("model.safetensors.index.json")(checkpoint)
    remove("model-00002-of-00006.safetensors")(checkpoint)
    with pytest.raises(CheckpointError, match=r"model-00002-of-00006\.safetensors is missing"):
        resolve(checkpoint)


def test_all_problems_are_reported_at_once(sharded_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(sharded_llama)
    remove("model-00001-of-00006.safetensors")(checkpoint)
    cut("model-00003-of-00006.safetensors", -8)(checkpoint)
    cut("model-00004-of-00006.safetensors", 5)(checkpoint)
    with pytest.raises(CheckpointError) as raised:
        resolve(checkpoint)
    assert [problem.split()[0][6:11] for problem in raised.value.problems] == ["00001", "00003", "00004"]


def test_a_long_list_of_problems_is_shortened(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    retensor(lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers" in name])(checkpoint)
    with pytest.raises(CheckpointError, match=r"; and 6 more problems$") as raised:
        resolve(checkpoint)
    assert len(raised.value.problems) == 18
