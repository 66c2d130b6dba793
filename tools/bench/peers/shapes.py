"""GGUF files of models that people run, with random weights: ``python -m tools.bench.peers.shapes NAME BITS``.

A file has the shape of its model and the tokenizer of the default one, filled up to the model's vocabulary; what it
says means nothing. Weights are drawn as they are in the file, so that no larger one has to be written first. Mixtures
have their model's layers, but only ``MIXTURE_LAYERS`` of them, for machines with little memory.
"""

import argparse
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from lmdeploy.paths import default_model_dir
from tools.bench.peers.install import say
from tools.bench.peers.places import GGUF_TYPES, root
from tools.bench.peers.places import gguf as gguf_file
from tools.bench.progress import progress_bar

MIXTURE_LAYERS = 8
_SPREAD = 0.02  # of the random weights
_WEIGHTS = {16: Type.F16, 8: Type.Q8_0, 4: Type.Q4_0}
# The spread of codes drawn uniformly, in steps of their scale.
_CODES = {Type.Q8_0: math.sqrt((256**2 - 1) / 12), Type.Q4_0: math.sqrt((16**2 - 1) / 12)}
_MXFP4_EXPONENT = 120  # a scale of 1/128


@dataclass(frozen=True)
class Shape:
    """Sizes of a model.

    Attributes
    ----------
    architecture
        GGUF's name of it.
    vocab, hidden, inner, layers, heads, kv_heads, head_dim
        Tokens, features, features between the MLP's matrices (of an expert, in a mixture), and how many of each.
    context
        Most tokens of a sequence.
    rope_base
        Of the rotation.
    is_tied
        Whether the output layer is the embedding.
    has_head_norms
        Whether queries and keys are normalized, head by head.
    experts, experts_used
        Of a layer, and of a token; 0: one MLP.
    window
        Of every other layer, in tokens; 0: none. With it come biases and sinks, as gpt-oss has them.
    """

    architecture: str
    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rope_base: float
    is_tied: bool = False
    has_head_norms: bool = False
    experts: int = 0
    experts_used: int = 0
    window: int = 0

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of a layer's rounded tensors, the longest stride first."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
        }
        mlp = {"gate": (self.inner, self.hidden), "up": (self.inner, self.hidden), "down": (self.hidden, self.inner)}
        if self.experts:
            return found | {f"ffn_{name}_exps": (self.experts, *size) for name, size in mlp.items()}
        return found | {f"ffn_{name}": size for name, size in mlp.items()}

    def plain(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of a layer's float32 tensors."""
        second = "post_attention_norm" if self.window else "ffn_norm"
        found: dict[str, tuple[int, ...]] = {"attn_norm.weight": (self.hidden,), f"{second}.weight": (self.hidden,)}
        if self.has_head_norms:
            found |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if self.experts:
            found["ffn_gate_inp.weight"] = (self.experts, self.hidden)
        if self.window:
            found["attn_sinks.weight"] = (self.heads,)
            found["ffn_gate_inp.bias"] = (self.experts,)
            found |= {f"{name}.bias": size[:-1] for name, size in self.matrices().items()}
        return found

    def tensors(self, bits: int) -> dict[str, tuple[tuple[int, ...], Type]]:
        """Return the names, shapes and types of a file whose layers have this many bits.

        Embedding and output layer have at least 8, as in published files; gpt-oss's experts of 4 are MXFP4.
        """
        ends = Type.F16 if bits == 16 else Type.Q8_0
        found: dict[str, tuple[tuple[int, ...], Type]] = {"token_embd.weight": ((self.vocab, self.hidden), ends)}
        if not self.is_tied:
            found["output.weight"] = ((self.vocab, self.hidden), ends)
        found["output_norm.weight"] = ((self.hidden,), Type.F32)
        for layer in range(self.layers):
            for name, size in self.matrices().items():
                kind = _WEIGHTS[bits]
                if self.window and bits == 4:
                    kind = Type.MXFP4 if name.endswith("_exps") else Type.Q8_0
                found[f"blk.{layer}.{name}.weight"] = (size, kind)
            found |= {f"blk.{layer}.{name}": (size, Type.F32) for name, size in self.plain().items()}
        return found

    def kind(self, bits: int) -> str:
        """Return GGUF's name for the type of most weights."""
        return Type.MXFP4.name if self.window and bits == 4 else GGUF_TYPES[bits]

    def file_bytes(self, bits: int) -> int:
        """Return the bytes of a file's tensors."""
        return sum(_bytes(size, kind) for size, kind in self.tensors(bits).values())

    def token_bytes(self, bits: int) -> float:
        """Return the bytes of weights that one token reads: of the embedding nothing, of experts those it uses."""
        found = 0.0
        for name, (size, kind) in self.tensors(bits).items():
            if name == "token_embd.weight" and not self.is_tied:
                continue
            used = self.experts_used / self.experts if "_exps" in name else 1.0
            found += used * _bytes(size, kind)
        return found


def _bytes(size: tuple[int, ...], kind: Type) -> int:
    elements, block = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(size) // elements * block


SHAPES = {
    "llama-3.2-1b": Shape("llama", 128256, 2048, 8192, 16, 32, 8, 64, 131072, 500000.0, is_tied=True),
    "qwen3-4b": Shape("qwen3", 151936, 2560, 9728, 36, 32, 8, 128, 40960, 1e6, is_tied=True, has_head_norms=True),
    "qwen3-30b-a3b": Shape(
        *("qwen3moe", 151936, 2048, 768, MIXTURE_LAYERS, 32, 4, 128, 40960, 1e6),
        has_head_norms=True,
        experts=128,
        experts_used=8,
    ),
    "gpt-oss-20b": Shape(
        *("gpt-oss", 201088, 2880, 2880, MIXTURE_LAYERS, 64, 8, 64, 131072, 150000.0),
        experts=32,
        experts_used=4,
        window=128,
    ),
}


def path_of(name: str, bits: int) -> Path:
    """Return where the file of a shape is, or would be written."""
    return gguf_file(Path(f"{name}-random"), bits)


def write(shape: Shape, bits: int, file: Path, tokenizer: Path | None = None) -> None:
    """Write a file of random weights.

    Parameters
    ----------
    shape
        Of the model.
    bits
        Of the layers' weights: 4, 8 or 16.
    file
        Its folder must be there.
    tokenizer
        A GGUF file with the tokenizer; None: the default model's.
    """
    partial = file.with_suffix(".part")
    writer = gguf.GGUFWriter(partial, shape.architecture)
    _add_tokenizer(writer, gguf.GGUFReader(tokenizer or gguf_file(default_model_dir(), 16)), shape.vocab)
    _add_sizes(writer, shape, bits)
    tensors = shape.tensors(bits)
    for name, (size, kind) in tensors.items():
        writer.add_tensor_info(name, size, np.dtype(np.float32), _bytes(size, kind), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(0)
    with progress_bar(len(tensors), "tensor") as advance:
        for name, (size, kind) in tensors.items():
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
    if kind == Type.MXFP4:
        blocks[:, 0] = _MXFP4_EXPONENT
    else:
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
    kinds = {16: gguf.LlamaFileType.MOSTLY_F16, 8: gguf.LlamaFileType.MOSTLY_Q8_0, 4: gguf.LlamaFileType.MOSTLY_Q4_0}
    writer.add_name(f"{shape.architecture}, random")
    writer.add_file_type(kinds[bits])
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.experts_used)
        writer.add_expert_feed_forward_length(shape.inner)
    if shape.window:
        writer.add_sliding_window(shape.window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)


@contextmanager
def random_file(name: str, bits: int) -> Iterator[Path]:
    """Have the file of a shape for as long as the block lasts; one that was there before stays.

    Raises
    ------
    RuntimeError
        The disk has no room for it.
    """
    file = path_of(name, bits)
    if file.exists():
        yield file
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    needed, free = SHAPES[name].file_bytes(bits), shutil.disk_usage(file.parent).free
    if needed > free:
        raise RuntimeError(f"{file.name} takes {needed / 1e9:.1f} GB, and {root()} has {free / 1e9:.1f} GB left")
    say(f"writing {file.name} ({needed / 1e9:.1f} GB of random weights)")
    try:
        write(SHAPES[name], bits, file)
        yield file
    finally:
        file.with_suffix(".part").unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def main() -> None:
    """Write a file that stays, and print its path."""
    parser = argparse.ArgumentParser(description="Write a GGUF file with random weights.")
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("bits", type=int, choices=sorted(_WEIGHTS))
    arguments = parser.parse_args()
    file = path_of(arguments.name, arguments.bits)
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write(SHAPES[arguments.name], arguments.bits, file)
    print(file)


if __name__ == "__main__":
    main()
