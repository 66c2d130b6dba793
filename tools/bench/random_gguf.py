"""GGUF files of models that people run, with random weights.

A file has the shape of its model and the tokenizer of the default one, filled up to the model's vocabulary; what it
says means nothing. Weights are drawn as they are in the file, so that no larger one has to be written first.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.paths import default_model_dir
from tools.bench.peers.install import say
from tools.bench.peers.paths import gguf as gguf_file
from tools.bench.peers.paths import root
from tools.bench.report import progress_bar
from tools.bench.roofline import ModelCost
from tools.bench.shapes import SHAPES, Shape

NAMES = ("llama-3.2-1b", "qwen3-4b", "qwen3-30b-a3b")
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_SPREAD = 0.02  # of the random weights
_WEIGHTS = {16: Type.F16, 8: Type.Q8_0, 4: Type.Q4_0}
# The spread of codes drawn uniformly, in steps of their scale.
_CODES = {Type.Q8_0: math.sqrt((256**2 - 1) / 12), Type.Q4_0: math.sqrt((16**2 - 1) / 12)}


def _matrices(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a layer's rounded tensors, the longest stride first."""
    hidden, inner = shape.config["hidden_size"], shape.expert_size
    queries, keys = (shape.config[f"num_{name}_heads"] * shape.head_dim for name in ("attention", "key_value"))
    found: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
    }
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    if shape.experts:
        return found | {f"ffn_{name}_exps": (shape.experts, *size) for name, size in mlp.items()}
    return found | {f"ffn_{name}": size for name, size in mlp.items()}


def _float_tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a layer's float32 tensors."""
    hidden, experts = shape.config["hidden_size"], shape.experts
    found: dict[str, tuple[int, ...]] = {"attn_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if shape.has_head_norms:
        found |= {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}
    if experts:
        found["ffn_gate_inp.weight"] = (experts, hidden)
    return found


def tensors(shape: Shape, bits: int) -> dict[str, tuple[tuple[int, ...], Type]]:
    """Return the names, shapes and types of a file whose layers have this many bits.

    Embedding and output layer have at least 8, as in published files.
    """
    c = shape.config
    ends = ((c["vocab_size"], c["hidden_size"]), Type.F16 if bits == 16 else Type.Q8_0)
    found: dict[str, tuple[tuple[int, ...], Type]] = {"token_embd.weight": ends}
    if not c.get("tie_word_embeddings"):
        found["output.weight"] = ends
    found["output_norm.weight"] = ((c["hidden_size"],), Type.F32)
    for layer in range(c["num_hidden_layers"]):
        found |= {f"blk.{layer}.{name}.weight": (size, _WEIGHTS[bits]) for name, size in _matrices(shape).items()}
        found |= {f"blk.{layer}.{name}": (size, Type.F32) for name, size in _float_tensors(shape).items()}
    return found


def file_bytes(shape: Shape, bits: int) -> int:
    """Return the bytes of a file's tensors."""
    return sum(_bytes(size, kind) for size, kind in tensors(shape, bits).values())


def file_cost(shape: Shape, bits: int) -> ModelCost:
    """Return the cost of steps with a file's weights, of whose embedding nothing is read."""
    dense = expert = output = 0
    last = "token_embd.weight" if shape.config.get("tie_word_embeddings") else "output.weight"
    for name, (size, kind) in tensors(shape, bits).items():
        if name == last:
            output = _bytes(size, kind)
        elif "_exps" in name:
            expert += _bytes(size, kind)
        elif name != "token_embd.weight":
            dense += _bytes(size, kind)
    return ModelCost(Sizes.of_config(shape.config), dense, output, expert)


def _bytes(size: tuple[int, ...], kind: Type) -> int:
    elements, block = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(size) // elements * block


def path_of(name: str, bits: int) -> Path:
    """Return where the file of a shape is, or would be written."""
    return gguf_file(Path(f"{name}-random"), bits)


def write(shape: Shape, bits: int, file: Path, tokenizer: Path | None = None) -> None:
    """Write a file of random weights.

    ``bits``: of the layers' weights: 4, 8 or 16. ``file``: its folder must be there. ``tokenizer``: a GGUF file with
    the tokenizer; None: the default model's.
    """
    partial = file.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, _ARCHITECTURES[shape.architecture])
    _add_tokenizer(writer, gguf.GGUFReader(tokenizer or gguf_file(default_model_dir(), 16)), shape.config["vocab_size"])
    _add_sizes(writer, shape, bits)
    stored = tensors(shape, bits)
    for name, (size, kind) in stored.items():
        writer.add_tensor_info(name, size, np.dtype(np.float32), _bytes(size, kind), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(0)
    with progress_bar(len(stored), "tensor") as advance:
        for name, (size, kind) in stored.items():
            writer.write_tensor_data(_drawn(name, size, kind, generator))
            advance()
    writer.close()
    partial.rename(file)


def _drawn(name: str, size: tuple[int, ...], kind: Type, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return random weights in the bytes of their type; norms are ones."""
    if kind in (Type.F32, Type.F16):
        if "norm" in name:
            return np.ones(size, np.float32)
        drawn = generator.standard_normal(size, dtype=np.float32) * np.float32(_SPREAD)
        return drawn if kind == Type.F32 else drawn.astype(np.float16)
    elements, block = gguf.GGML_QUANT_SIZES[kind]
    count = math.prod(size) // elements
    blocks = np.frombuffer(generator.bytes(count * block), np.uint8).reshape(count, block).copy()
    blocks[:, :2] = np.frombuffer(np.float16(_SPREAD / _CODES[kind]).tobytes(), np.uint8)
    return blocks


def _add_tokenizer(writer: gguf.GGUFWriter, known: gguf.GGUFReader, vocab: int) -> None:
    """Copy a tokenizer, with unused tokens up to the vocabulary's size."""
    for name, field in known.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if name == "tokenizer.ggml.tokens":
            value = [*value, *(f"<unused {number}>" for number in range(len(value), vocab))]
        elif name == "tokenizer.ggml.token_type":
            value = [*value, *[int(gguf.TokenType.UNUSED)] * (vocab - len(value))]
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape, bits: int) -> None:
    c = shape.config
    kinds = {16: gguf.LlamaFileType.MOSTLY_F16, 8: gguf.LlamaFileType.MOSTLY_Q8_0, 4: gguf.LlamaFileType.MOSTLY_Q4_0}
    writer.add_name(f"{shape.architecture}, random")
    writer.add_file_type(kinds[bits])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(shape.expert_size)
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(shape.expert_size)


@contextmanager
def random_file(name: str, bits: int) -> Iterator[Path]:
    """Have the file of a shape for as long as the block lasts; raise `RuntimeError` if the disk has no room for it."""
    file = path_of(name, bits)
    file.parent.mkdir(parents=True, exist_ok=True)
    needed, free = file_bytes(SHAPES[name], bits), shutil.disk_usage(file.parent).free
    if needed > free:
        raise RuntimeError(f"{file.name} takes {needed / 1e9:.1f} GB, and {root()} has {free / 1e9:.1f} GB left")
    say(f"writing {file.name} ({needed / 1e9:.1f} GB of random weights)")
    try:
        write(SHAPES[name], bits, file)
        yield file
    finally:
        file.with_suffix(".part").unlink(missing_ok=True)
        file.unlink(missing_ok=True)
