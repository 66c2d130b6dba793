"""Tiny checkpoints as bitsandbytes and MLX quantize them, by encoders that share nothing with the engine.

Facts, by source:

* NF4: QLoRA (Dettmers et al., 2023, arXiv 2305.14314), appendix E; the largest magnitude of 64 numbers is their scale,
  rows run on. Two codes a byte, the first in the high half. FP4: sign, then 0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4.
* Scales quantized once more: less their mean, in blocks of 256, as entries of a table.
* 8 bits: LLM.int8() (Dettmers et al., 2022, arXiv 2208.07339), one scale a row, 127 for the largest magnitude.
* MLX: ``mlx.core.quantize``: ``scale code + bias`` in groups of a row; codes follow one another bit by bit in words.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.support.quantized_checkpoints import pack

Tensors = dict[str, torch.Tensor]
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4_HALF = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_FP4 = (*_FP4_HALF, *(-entry for entry in _FP4_HALF))
Encoder = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]


def four_bits(kind: str, *, is_nested: bool = False) -> Encoder:
    """Return the encoder of NF4 or FP4: from a weight to tensors ``X.<name>`` and the numbers they stand for."""
    table = torch.tensor(_NF4 if kind == "nf4" else _FP4)

    def encode(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        blocks = weight.float().reshape(-1, 64)
        absmax = blocks.abs().amax(1)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
        tensors = {"weight.quant_map": table}
        if is_nested:
            entries = torch.linspace(-1, 1, 256)
            offset = float(absmax.mean())
            parts = (absmax - offset).split(256)
            largest = torch.stack([part.abs().amax() for part in parts])
            quantized = torch.cat(
                [(part[:, None] / top - entries).abs().argmin(1) for part, top in zip(parts, largest, strict=True)]
            )
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            tensors |= {
                "weight.absmax": quantized.to(torch.uint8),
                "weight.nested_absmax": largest,
                "weight.nested_quant_map": entries,
            }
            absmax = entries[quantized] * largest.repeat_interleave(256)[: len(quantized)] + offset
        else:
            tensors["weight.absmax"] = absmax
        nearest = (blocks[..., None] / absmax[:, None, None] - table).abs().argmin(-1)
        pairs = nearest.reshape(-1, 2)
        text = json.dumps(state).encode()
        tensors["weight"] = (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return tensors, (table[nearest] * absmax[:, None]).reshape(weight.shape)

    return encode


def int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Encode in 8 bits, as :func:`four_bits`."""
    largest = weight.float().abs().amax(1)
    q = (weight.float() / largest[:, None] * 127).round()
    tensors = {"weight": q.to(torch.int8), "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, q * (largest[:, None] / 127)


def affine(bits: int, group: int = 64) -> Encoder:
    """Return the encoder of MLX, as :func:`four_bits`."""

    def encode(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.float().reshape(len(weight), -1, group)
        low, high = groups.amin(-1), groups.amax(-1)
        scale, bias = ((high - low) / (2**bits - 1)).clamp(min=1e-4).bfloat16(), low.bfloat16()
        quantized = ((groups - bias.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 2**bits - 1)
        words = pack(quantized.reshape(weight.shape).numpy().astype(np.int64), bits, 1)
        tensors = {"weight": torch.from_numpy(words), "scales": scale, "biases": bias}
        return tensors, (quantized * scale.float()[..., None] + bias.float()[..., None]).reshape(weight.shape)

    return encode


@dataclass(frozen=True)
class Blocks:
    """Layers whose names end so are encoded; ``quantization`` is what config.json says of them."""

    encoders: dict[str, Encoder]
    quantization: dict[str, Any]
    unquantized: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        return self.quantization

    def takes(self, name: str) -> bool:
        """Return whether a tensor is the weight of a layer that is encoded."""
        return name.endswith(tuple(f"{end}.weight" for end in self.encoders))

    def encode(self, weight: torch.Tensor, layer: str) -> tuple[Tensors, torch.Tensor]:
        stored, values = next(encode for end, encode in self.encoders.items() if layer.endswith(end))(weight)
        return {name: tensor.clone() for name, tensor in stored.items()}, values
