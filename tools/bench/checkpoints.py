"""Writes checkpoints of random weights in a second each, however large the model.

Numbers are drawn once for each type, a block that is repeated, and the tensors of the file overlap in it:
the format's header names where each begins. Readers that want tensors apart (the library ``safetensors``) refuse such a
file; the engine reads it, and on the device every tensor has memory of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from tools.bench.random_model import write_tokenizer
from tools.bench.shapes import Shape

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4}
_BLOCK = 1 << 24  # elements drawn
_SPREAD = 0.02
_ALIGNMENT = 4096
_AWQ_GROUP = 128
_COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
_TYPES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"  # as in safetensors' headers
    # ``matrix`` and ``expert``: multiplied with rows; ``embedding``, ``norm``, ``scale``, ``zeros``: not
    role: str = "matrix"


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Yield every tensor of the checkpoint."""
    c = shape.config
    yield Tensor("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), role="embedding")
    yield Tensor("model.norm.weight", (c["hidden_size"],), role="norm")
    yield Tensor("lm_head.weight", (c["vocab_size"], c["hidden_size"]))
    for layer in range(c["num_hidden_layers"]):
        for tensor in _layer(shape, layer):
            yield from _stored(shape, replace(tensor, name=f"model.layers.{layer}.{tensor.name}"))


def _layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    hidden = shape.config["hidden_size"]
    yield Tensor("input_layernorm.weight", (hidden,), role="norm")
    yield Tensor("post_attention_layernorm.weight", (hidden,), role="norm")
    yield from _latent_attention(shape) if "kv_lora_rank" in shape.config else _attention(shape)
    if shape.experts and layer >= shape.config.get("first_k_dense_replace", 0):
        yield from _experts(shape)
    else:
        yield from _mlp("mlp", hidden, shape.config["intermediate_size"])


def _attention(shape: Shape) -> Iterator[Tensor]:
    c, dim = shape.config, shape.head_dim
    hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield Tensor("self_attn.q_proj.weight", (heads, hidden))
    yield Tensor("self_attn.k_proj.weight", (kv_heads, hidden))
    yield Tensor("self_attn.v_proj.weight", (kv_heads, hidden))
    yield Tensor("self_attn.o_proj.weight", (hidden, heads))
    if shape.has_head_norms:
        yield Tensor("self_attn.q_norm.weight", (dim,), role="norm")
        yield Tensor("self_attn.k_norm.weight", (dim,), role="norm")


def _latent_attention(shape: Shape) -> Iterator[Tensor]:
    c = shape.config
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    unrotated, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield Tensor("self_attn.q_proj.weight", (heads * (unrotated + turned), hidden))
    yield Tensor("self_attn.kv_a_proj_with_mqa.weight", (rank + turned, hidden))
    yield Tensor("self_attn.kv_a_layernorm.weight", (rank,), role="norm")
    yield Tensor("self_attn.kv_b_proj.weight", (heads * (unrotated + value), rank))
    yield Tensor("self_attn.o_proj.weight", (hidden, heads * value))


def _experts(shape: Shape) -> Iterator[Tensor]:
    c = shape.config
    hidden = c["hidden_size"]
    if shape.architecture == "MixtralForCausalLM":
        size = shape.expert_size
        yield Tensor("block_sparse_moe.gate.weight", (shape.experts, hidden))
        for expert in range(shape.experts):
            prefix = f"block_sparse_moe.experts.{expert}"
            for name, outer in (("w1", (size, hidden)), ("w3", (size, hidden)), ("w2", (hidden, size))):
                yield Tensor(f"{prefix}.{name}.weight", outer, role="expert")
        return
    yield Tensor("mlp.gate.weight", (shape.experts, hidden))
    for expert in range(shape.experts):
        for tensor in _mlp(f"mlp.experts.{expert}", hidden, shape.expert_size):
            yield replace(tensor, role="expert")
    if shared := c.get("n_shared_experts", 0):
        yield from _mlp("mlp.shared_experts", hidden, shared * shape.expert_size)


def _stored(shape: Shape, tensor: Tensor) -> Iterator[Tensor]:
    """Yield what a tensor of a layer is stored as."""
    if tensor.role not in ("matrix", "expert") or shape.weights == "bfloat16":
        yield tensor
        return
    outputs, inputs = tensor.shape
    if shape.weights == "fp8":
        yield replace(tensor, dtype="F8_E4M3")
        yield Tensor(f"{tensor.name}_scale", (outputs, 1), "F32", "scale")
        return
    layer = tensor.name.removesuffix(".weight")
    yield Tensor(f"{layer}.qweight", (inputs, outputs // 8), "I32", tensor.role)
    yield Tensor(f"{layer}.qzeros", (inputs // _AWQ_GROUP, outputs // 8), "I32", "zeros")
    yield Tensor(f"{layer}.scales", (inputs // _AWQ_GROUP, outputs), "F16", "scale")


def quantization(shape: Shape) -> dict[str, Any] | None:
    """Return ``quantization_config``, as AutoAWQ and llm-compressor write it."""
    if shape.weights == "awq":
        return {
            "quant_method": "awq", "bits": 4, "group_size": _AWQ_GROUP, "version": "gemm", "zero_point": True,
            "modules_to_not_convert": None,
        }  # fmt: skip
    if shape.weights == "fp8":
        numbers = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None}
        weights = numbers | {"strategy": "channel", "dynamic": False}
        inputs = numbers | {"strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
        return {
            "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
        }  # fmt: skip
    return None


def _mlp(prefix: str, hidden: int, size: int) -> Iterator[Tensor]:
    yield Tensor(f"{prefix}.gate_proj.weight", (size, hidden))
    yield Tensor(f"{prefix}.up_proj.weight", (size, hidden))
    yield Tensor(f"{prefix}.down_proj.weight", (hidden, size))


def write(shape: Shape, directory: Path) -> None:
    """Write a checkpoint into a directory, which is made; ``config.json`` comes last."""
    directory.mkdir(parents=True, exist_ok=True)
    stored = list(tensors(shape))
    # Tensors whose elements are drawn alike overlap, the largest says how long the area is.
    sizes: dict[tuple[str, str], int] = {}
    for tensor in stored:
        kind = _kind(tensor)
        sizes[kind] = max(sizes.get(kind, 0), math.prod(tensor.shape) * _BYTES[tensor.dtype])
    begins, end = {}, 0
    for kind, size in sizes.items():
        begins[kind] = end
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    header = {}
    for tensor in stored:
        begin = begins[_kind(tensor)]
        size = math.prod(tensor.shape) * _BYTES[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, begin + size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for kind, size in sizes.items():
            _fill(file, _drawn(*kind), -(-size // _ALIGNMENT) * _ALIGNMENT)
    write_tokenizer(directory)
    fields = {"model_type": _TYPES[shape.architecture], "architectures": [shape.architecture]}
    fields |= {"torch_dtype": "float16" if shape.weights == "awq" else "bfloat16"}
    config = _COMMON | shape.config | fields | {"bos_token_id": 256, "eos_token_id": 257}
    if stored_as := quantization(shape):
        config["quantization_config"] = stored_as
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def _kind(tensor: Tensor) -> tuple[str, str]:
    return tensor.dtype, tensor.role if tensor.role in ("norm", "scale") else ""


def _drawn(dtype: str, role: str) -> bytes:
    """Return elements: normal numbers, norms about 1, codes of any value, and scales that make them such numbers."""
    generator = np.random.default_rng(0)
    if dtype == "I32":
        return generator.bytes(4 * _BLOCK)
    if dtype == "F8_E4M3":  # all codes but the two that are no number
        quantized = generator.integers(0, 127, _BLOCK, np.uint8) | generator.integers(0, 2, _BLOCK, np.uint8) << 7
        return quantized.tobytes()
    count = _BLOCK if not role else 1 << 16
    values = generator.standard_normal(count, np.float32) * np.float32(_SPREAD)
    if role == "norm":
        values += 1
    elif role == "scale":  # of codes of 4 bits, and of 8, whose size is about 4 and 100
        values = np.abs(values) * 0.05 + (_SPREAD / 4 if dtype == "F16" else _SPREAD / 100)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()


def _fill(file: IO[bytes], block: bytes, size: int) -> None:
    while size > 0:
        size -= file.write(block[:size])
