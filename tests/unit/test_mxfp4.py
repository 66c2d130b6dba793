"""MXFP4 codes stand for what the OCP Microscaling specification says, rounded to bfloat16 beyond its range."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.manifest import Load, Manifest, Mxfp4
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from tests.kernels import device
from tests.support import published
from tests.support.expert_models import GPT_OSS
from tests.support.tiny_models import make_tiny

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def write_manifest(directory: Path, codes: torch.Tensor, scales: torch.Tensor) -> None:
    save_file({"codes": codes, "scales": scales}, directory / "model.safetensors")
    load = Mxfp4((Load("codes", tuple(codes.shape), ("U8",)), Load("scales", tuple(scales.shape), ("U8",))))
    manifest = Manifest.build({"x": load}, read_checkpoint(directory))
    (directory / "manifest.json").write_text(manifest.to_json())


def test_every_code_with_every_scale(tmp_path: Path) -> None:
    quantized = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(256, 16, 16).contiguous()
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()
    write_manifest(tmp_path, quantized, scales)
    found = device.read_tensor(tmp_path, "x", [256, 512])
    lut = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)], dtype=torch.float64)
    values = torch.stack([lut[quantized.long() & 15], lut[quantized.long() >> 4]], -1).view(256, 512)
    exact = values * 2.0 ** (torch.arange(256, dtype=torch.float64)[:, None] - 127)
    assert torch.equal(found[:255], exact[:255].to(torch.bfloat16).float())
    assert found[255].isnan().all()


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, torch.zeros(2, 3, 16, dtype=torch.uint8), torch.zeros(3, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="mxfp4 needs U8 codes"):
        device.read_tensor(tmp_path, "x", [3, 64])


def test_missing_scales_are_named(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GptOssForCausalLM", **GPT_OSS)
    published.mxfp4(directory)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.experts\.down_proj_scales is missing"):
        resolve(directory)


def test_another_method_is_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GptOssForCausalLM", **GPT_OSS)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ValueError, match=r"method 'hqq' are not supported; supported: .*mxfp4"):
        resolve(directory, backend="turbomind")
