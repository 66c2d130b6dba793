"""Tiny checkpoints stored output by output, packed and unpacked by the package ``compressed-tensors``.

It writes what llm-compressor writes. ModelOpt's and Quark's layouts differ from its own in names alone: ``weight`` for
``weight_packed``, and a number that scales are multiplied with (``weight_scale_2``) for one that they are divided by.
Its releases before 0.15 had ``weight_g_idx``, each input's group, which is written here by the same rule.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

Tensors = dict[str, torch.Tensor]
_PACKERS: dict[str, Any] = {
    "pack-quantized": PackedQuantizationCompressor,
    "int-quantized": IntQuantizationCompressor,
    "mxfp4-pack-quantized": MXFP4PackedCompressor,
    "nvfp4-pack-quantized": NVFP4PackedCompressor,
}
_INT8_INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@dataclass(frozen=True)
class RowForm:
    """How layers are stored; ``group`` -1 is a whole row, ``unquantized`` names layers (endings) that stay numbers."""

    stored: str = "pack-quantized"
    bits: int = 4
    group: int = 32
    is_symmetric: bool = True
    is_ordered: bool = False
    has_int8_inputs: bool = False
    tool: str = "compressed-tensors"
    unquantized: tuple[str, ...] = ("lm_head",)
    others: "dict[str, RowForm]" = field(default_factory=dict)  # of layers whose name ends so

    def encode(self, weight: torch.Tensor, layer: str = "") -> tuple[Tensors, torch.Tensor]:
        """Return a checkpoint's tensors of a layer ``X``, by ``X.<name>``, and the values that they stand for."""
        return _encode(weight, next((other for end, other in self.others.items() if layer.endswith(end)), self))

    @property
    def is_float4(self) -> bool:
        """Whether codes are 4-bit floats."""
        return "fp4" in self.stored

    def weights(self) -> dict[str, Any]:
        """Return config.json's description of the weights."""
        strategy = "channel" if self.group == -1 else "tensor_group" if "nvfp4" in self.stored else "group"
        return {
            "num_bits": self.bits, "type": "float" if self.is_float4 else "int", "symmetric": self.is_symmetric,
            "strategy": strategy, "group_size": None if self.group == -1 else self.group, "dynamic": False,
        }  # fmt: skip

    def config(self) -> dict[str, Any]:
        """Return ``quantization_config`` as the tool writes it."""
        if self.tool == "modelopt":
            return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
        if self.tool == "quark":
            weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
            return {
                "quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"],
                "layer_quant_config": {}, "export": {"pack_method": "reorder"},
            }  # fmt: skip
        forms = [self, *self.others.values()]
        groups = {
            f"group_{i}": {
                "targets": ["Linear"], "weights": form.weights() | ({"actorder": "group"} if form.is_ordered else {}),
                "input_activations": _INT8_INPUTS if form.has_int8_inputs else None, "output_activations": None,
                "format": form.stored,
            }
            for i, form in enumerate(forms)
        }  # fmt: skip
        return {
            "quant_method": "compressed-tensors", "format": "mixed-precision" if self.others else self.stored,
            "config_groups": groups, "ignore": ["lm_head"], "quantization_status": "compressed",
        }  # fmt: skip


def _encode(weight: torch.Tensor, form: RowForm) -> tuple[Tensors, torch.Tensor]:
    order = torch.arange(weight.shape[1])
    if form.is_ordered:
        order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(weight.shape[1]))
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**form.weights()))
    packer = _PACKERS[form.stored]
    given = {
        "weight": weight.float()[:, order],
        **(_float4_scales if form.is_float4 else _scales)(weight[:, order], form),
    }
    stored = packer.compress(given, scheme)
    if form.is_float4:
        values = _float4_values(stored)
    else:
        values = packer.decompress(stored | {"weight_scale": given["weight_scale"].float()}, scheme)["weight"]
    if form.is_ordered:
        back = order.argsort()
        groups = (torch.arange(weight.shape[1]) // form.group)[back].int()
        scheme.weights.strategy = "channel"  # codes in the order of the inputs, whatever their groups
        quantized = _unpacked(stored["weight_packed"], form.bits)[:, back]
        stored |= {"weight_packed": _packed(quantized, form.bits), "weight_g_idx": groups}
        values = values[:, back]
    return _renamed(stored, form), values.contiguous()


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    shifts = torch.arange(0, 32, bits)
    return ((words.long()[..., None] >> shifts) & (2**bits - 1)).flatten(1)


def _packed(quantized: torch.Tensor, bits: int) -> torch.Tensor:
    words = (quantized.view(len(quantized), -1, 32 // bits) << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _scales(weight: torch.Tensor, form: RowForm) -> Tensors:
    """Return scales and zero points of groups, ``[out, groups]``, as the package expects them."""
    size = weight.shape[1] if form.group == -1 else form.group
    groups = weight.float().view(len(weight), -1, size)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    top = 2**form.bits - 1
    if form.is_symmetric:
        scale = (torch.maximum(high, -low) / (top / 2)).clamp(min=1e-6).bfloat16()
        return {"weight_scale": scale}
    scale = ((high - low) / top).clamp(min=1e-6).bfloat16()
    zero = (-(2 ** (form.bits - 1)) - low / scale.float()).round().clamp(-(2 ** (form.bits - 1)), top // 2)
    return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


def _float4_scales(weight: torch.Tensor, form: RowForm) -> Tensors:
    largest = weight.float().view(len(weight), -1, form.group).abs().amax(-1)
    if "mxfp4" in form.stored:
        return {"weight_scale": 2.0 ** (largest / 6).log2().ceil()}
    whole = 448 * 6 / largest.max()
    scale = (largest / 6 * whole).to(torch.float8_e4m3fn).float()
    return {"weight_scale": scale, "weight_global_scale": whole.reshape(1)}


def _float4_values(stored: Tensors) -> torch.Tensor:
    packed, scale = stored["weight_packed"], stored["weight_scale"]
    steps = unpack_fp4_from_uint8(packed, len(packed), 2 * packed.shape[1], torch.float64)
    factors = 2.0 ** (scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()
    if "weight_global_scale" in stored:
        factors = factors / stored["weight_global_scale"].double()
    return (steps.view(*scale.shape, -1) * factors[..., None]).flatten(1).float()


def _renamed(stored: Tensors, form: RowForm) -> Tensors:
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    if form.tool != "compressed-tensors":
        stored["weight"] = stored.pop("weight_packed")
    if form.tool == "modelopt":
        stored["weight_scale_2"] = (1 / stored.pop("weight_global_scale")).reshape(())
        stored["input_scale"] = torch.tensor(0.02)
    return stored
