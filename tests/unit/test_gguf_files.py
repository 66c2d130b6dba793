"""GGUF files as checkpoints: their headers, what is wrong with them in words, and the default model's own."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from safetensors import safe_open

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite.source_model import SourceModel
from lmdeploy.paths import locate_model, workspace_engine_dir
from lmdeploy.turbomind.convert import convert
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.gguf.header import read_header
from tests.kernels import device
from tests.support.gguf_files import Type, matrices_in, write_gguf, write_metadata
from tests.support.tiny_models import make_small
from tools import default_model

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}
SIZES = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("tiny") / "model", "LlamaForCausalLM", **SIZES)


@pytest.fixture
def file(source: Path, tmp_path: Path) -> Path:
    write_gguf(source, tmp_path / "tiny.gguf", "llama", matrices_in(Type.Q4_0))
    return tmp_path / "tiny.gguf"


def test_the_default_models_own_file_holds_the_numbers_of_its_converted_form(
    default_model_dir: Path, tmp_path: Path
) -> None:
    engine = resolve(default_model.find_gguf(tmp_path))
    assert engine.spec.model_name == "SmolLM2-135M-Instruct.Q4_1"
    assert engine.spec.max_position_embeddings == 8192
    assert engine.spec.eos_token_ids == (2, 0)  # <|im_end|>, <|endoftext|>
    with safe_open(str(default_model_dir / "model.safetensors"), "pt") as converted:
        for stored, reference in {
            "token_embedding": ["model.embed_tokens"],
            "layers.7.attention.qkv.weight": [f"model.layers.7.self_attn.{part}_proj" for part in "qkv"],
            "layers.29.mlp.gate_up.weight": [f"model.layers.29.mlp.{part}_proj" for part in ("gate", "up")],
        }.items():
            expected = torch.cat([converted.get_tensor(f"{name}.weight") for name in reference])
            found = device.read_tensor(engine.path, stored, list(expected.shape))
            assert torch.equal(found.to(torch.bfloat16), expected)


def test_the_header_is_what_the_package_reads(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "a.bool": True, "a.int": 7, "a.float": 0.5, "a.text": "naïve 日本", "a.texts": ["x", "", "ÿ"],
        "a.list": [1, 2, 3],
    }  # fmt: skip
    path = write_metadata(tmp_path / "m.gguf", "test", values)
    header, reader = read_header(path), GGUFReader(path)
    kept = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == kept
    assert values.items() <= header.metadata.items()
    (reference,) = reader.tensors
    stored = header.tensors[reference.name]
    assert (stored.dtype, stored.offset) == (reference.tensor_type.name, reference.data_offset)
    assert list(stored.shape) == list(reversed(reference.shape.tolist()))


def test_a_folder_with_one_file_is_that_file(file: Path) -> None:
    assert locate_model(str(file.parent)) == locate_model(str(file))
    (file.parent / "other.gguf").symlink_to(file)
    with pytest.raises(CheckpointError, match=r"holds several GGUF models; name the file: other\.gguf, tiny\.gguf"):
        locate_model(str(file.parent))


@pytest.mark.parametrize("name", ["tiny.GGUF", f"sha256-{'0f' * 32}", "tiny-v1.5"])
def test_a_file_is_known_by_its_first_bytes_whatever_it_is_called(name: str, file: Path) -> None:
    other = file.rename(file.with_name(name))
    engine = resolve(other)
    assert engine.spec.model_name == name.removesuffix(".GGUF")
    assert locate_model(str(file.parent)) == locate_model(str(other))
    device.read_tensor(engine.path, "layers.0.attention.o.weight", [64, 64])


def test_a_file_that_is_no_gguf_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"not a GGUF file")
    with pytest.raises(CheckpointError, match="is a file; a model is a directory or a GGUF file"):
        locate_model(str(tmp_path / "model.bin"))


def test_a_changed_file_is_read_again(file: Path) -> None:
    before = locate_model(str(file))
    os.utime(file, (1, 1))
    assert locate_model(str(file)) != before


def test_a_converted_repository_names_the_file(file: Path, tmp_path: Path) -> None:
    workspace = convert(str(file), tmp_path / "workspace", model_format="gguf")
    manifest = json.loads((workspace_engine_dir(workspace) / "manifest.json").read_text())
    assert manifest["files"] == [str(file)]
    assert manifest["weight_format"] == "gguf"
    # Another model under the same name is not read with the places of this one's tensors.
    other = make_small(tmp_path / "other", "LlamaForCausalLM", **SIZES | {"intermediate_size": 192})
    write_gguf(other, file, "llama", matrices_in(Type.Q8_0))
    with pytest.raises(CheckpointError, match=r"tensor blk\.0\.attn_k\.weight is elsewhere now: convert the model"):
        resolve(workspace)


def test_half_a_file_is_named(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1000])
    with pytest.raises(CheckpointError, match=rf"tiny.gguf is truncated: expected {len(content)} bytes, got"):
        resolve(file)
    file.write_bytes(content[:300])
    with pytest.raises(CheckpointError, match="is truncated: it ends within its header; download it again"):
        resolve(file)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is truncated: it has no header"):
        resolve(file)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="is a Git LFS pointer"):
        resolve(file)


def test_a_missing_part_is_named(source: Path, tmp_path: Path) -> None:
    write_gguf(source, tmp_path / "tiny.gguf", "llama", parts=3)
    first = tmp_path / "tiny-00001-of-00003.gguf"
    second = tmp_path / "tiny-00002-of-00003.gguf"
    second.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match=r"tiny-00002-of-00003\.gguf is missing: all 3 parts must be in one"):
        resolve(first)
    with pytest.raises(CheckpointError, match="is one of 3 parts"):
        resolve(first.rename(tmp_path / "alone.gguf"))


READABLE = {"llama.block_count": 2} | TOKENIZER
NORMS = {"llama.context_length": 8, "llama.attention.layer_norm_rms_epsilon": 1e-5}


@pytest.mark.parametrize(
    ("architecture", "metadata", "reason"),
    [
        ("rwkv7", {}, "GGUF files of architecture rwkv7 are not read; those read are llama"),
        ("gemma", {"gemma.expert_count": 8}, "mixtures of experts of architecture gemma are not read: take the model"),
        ("llama", READABLE, r"its metadata lack llama\.context_length"),
        ("llama", READABLE | NORMS, "hidden_size must be a whole number >= 1, got None.*num_attention_heads"),
    ],
    ids=["architecture", "experts", "lengths", "sizes"],
)
def test_what_metadata_lack_or_name_and_is_not_read_is_named(
    architecture: str, metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=reason):
        resolve(write_metadata(tmp_path / "m.gguf", architecture, metadata))


def test_a_missing_tensor_is_named_as_the_file_has_it(source: Path, tmp_path: Path) -> None:
    write_gguf(source, tmp_path / "tiny.gguf", "llama")
    content = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_no.weight"))
    with pytest.raises(CheckpointError, match=r"tensor blk\.1\.ffn_up\.weight is missing"):
        resolve(tmp_path / "tiny.gguf")


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (problem,) = read_header(tmp_path / "m.gguf").problems
    assert problem.startswith(
        "has tensor token_embd.weight of type F64, which is not read; those read are F32, F16, Q4_0"
    )


@pytest.mark.parametrize("version", [1, 3 << 24])
def test_other_versions_and_byte_orders_are_named(version: int, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4:8] = struct.pack("<I", version)
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"has GGUF version {version}; those read are 2, 3 .little-endian."):
        resolve(file)


def test_what_has_no_use_for_a_file_says_so(file: Path) -> None:
    assert resolve(file, backend="pytorch").backend == "turbomind"
    with pytest.raises(UnsupportedModelError, match="GGUF files cannot be quantized: take the model as safetensors"):
        SourceModel(locate_model(str(file)), torch.device("cpu"))


def test_a_file_is_described_without_transformers_and_torch(file: Path) -> None:
    program = (
        "import sys\nfrom lmdeploy.turbomind.engine_dir import resolve\nresolve(sys.argv[1])\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
