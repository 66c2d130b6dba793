"""Tiny checkpoints of 8-bit weights with scales, in each published form, written by code that shares nothing with ours.

Names, shapes and types as in the sources that ``lmdeploy/turbomind/scaled.py`` lists; rounding to nearest by torch.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Form:
    """How a checkpoint's layers are stored.

    ``strategy`` is ``tensor``, ``channel``, ``block`` or, of MXFP8, ``group``; ``unquantized`` names layers (by ending)
    that stay numbers.
    """

    method: str
    dtype: torch.dtype
    strategy: str
    scale_name: str = "weight_scale"
    scale_shape: str = "column"  # of channels: column [out, 1] or flat [out]; of a tensor: one [1] or scalar []
    scales: torch.dtype = torch.float32
    static_activations: bool = False
    block: tuple[int, int] = (128, 128)
    unquantized: tuple[str, ...] = ("lm_head",)

    def config(self) -> dict[str, Any]:
        """Return ``quantization_config`` as the tools of that method write it."""
        if self.method == "smooth_quant":
            return {"quant_method": "smooth_quant", "quant_dtype": str(self.dtype).removeprefix("torch.")}
        scheme = "static" if self.static_activations else "dynamic"
        if self.method == "fp8":
            block = list(self.block) if self.strategy == "block" else None
            return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": scheme, "weight_block_size": block}
        if self.method == "modelopt":
            return {"quant_method": "modelopt", "quantization": {"quant_algo": "MXFP8", "group_size": 32}}
        if self.method == "fbgemm_fp8":
            return {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
        kind = "float" if self.dtype == FLOAT8 else "int"
        common = {"num_bits": 8, "type": kind, "symmetric": True, "group_size": None, "actorder": None}
        weights = common | {"strategy": self.strategy, "dynamic": False, "block_structure": None}
        if self.strategy == "block":
            weights["block_structure"] = list(self.block)
        if self.strategy == "group":
            weights |= {"group_size": 32, "scale_dtype": "torch.uint8"}
        stored = "mxfp8" if self.strategy == "group" else kind
        inputs = common | {
            "strategy": "tensor" if self.static_activations else "token",
            "dynamic": not self.static_activations,
        }
        group = {
            "targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
        }  # fmt: skip
        return {
            "quant_method": "compressed-tensors", "format": f"{stored}-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
        }  # fmt: skip

    def encode(self, weight: torch.Tensor, layer: str = "") -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return a checkpoint's tensors of a layer ``X``, by ``X.<name>``, and the values that they stand for."""
        quantized, scales, values = quantize(weight, self)
        stored = {"weight": quantized, self.scale_name: stored_scales(scales, self)}
        return stored | ({"input_scale": torch.tensor([0.02])} if self.static_activations else {}), values

    def sizes(self, weight: torch.Tensor) -> tuple[int, int]:
        """Return how many outputs and inputs of a weight share a scale."""
        out_features, in_features = weight.shape
        if self.strategy in ("block", "group"):
            return (1, 32) if self.strategy == "group" else self.block
        return (1 if self.strategy == "channel" else out_features), in_features


def quantize(weight: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes ``[out, in]``, scales ``[blocks of outputs, blocks of inputs]`` and what both stand for, float32."""
    rows, columns = form.sizes(weight)
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    largest = 448.0 if form.dtype == FLOAT8 else 127.0
    scales = (blocks.abs().amax((1, 3)) / largest).clamp(min=1e-12).to(form.scales)
    if form.scales == torch.uint8:  # the smallest powers of two with which codes do not overflow
        scales = (blocks.abs().amax((1, 3)) / largest).clamp(min=2.0**-120).log2().ceil().add(127).to(torch.uint8)
    factors = (scales.float() - 127).exp2() if form.scales == torch.uint8 else scales.float()
    factors = factors[:, None, :, None]
    steps = blocks / factors
    quantized = (
        steps.clamp(-448, 448).to(FLOAT8) if form.dtype == FLOAT8 else steps.round().clamp(-128, 127).to(torch.int8)
    )
    values = (quantized.float() * factors).reshape(padded.shape)[: weight.shape[0], : weight.shape[1]]
    flat = quantized.view(torch.uint8).reshape(padded.shape)[: weight.shape[0], : weight.shape[1]].contiguous()
    return flat.view(form.dtype), scales, values.contiguous()


def quantize_stacks(directory: Path, form: Form, scales: str = "block") -> dict[str, torch.Tensor]:
    """Quantize the stacks of experts ``[experts, rows, columns]`` of a checkpoint in place, as that of Qwen3-VL in fp8.

    ``scales``: ``block``: for blocks of rows and columns; ``expert``: one for each expert. Returns the values that the
    codes stand for.
    """
    tensors, values = load_file(directory / "model.safetensors"), {}
    if scales == "expert":
        form = dataclasses.replace(form, strategy="tensor")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        made = [quantize(matrix, form) for matrix in tensors[name]]
        tensors[name], tensors[f"{name}_scale_inv"], values[name] = map(torch.stack, zip(*made, strict=True))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return values


def stored_scales(scales: torch.Tensor, form: Form) -> torch.Tensor:
    """Return scales in the shape in which the form stores them."""
    if form.strategy in ("block", "group") or (form.strategy == "channel" and form.scale_shape == "column"):
        return scales
    return scales[0, 0].clone() if form.scale_shape == "scalar" else scales.flatten()
