"""A model whose weights fit into no processor's cache, for every engine: ``python -m tools.bench.peers.large_model``.

SmolLM2's 135 million 4-bit weights stay in large caches from token to token, which flatters everybody's bandwidth. This
writes Llama 3.2 1B's shape with random weights and the default model's tokenizer into ``peers/models``, as a Hugging
Face directory for this engine and as GGUF files for the others; ``python -m tools.bench.compare DIRECTORY`` measures
it. What it says means nothing.
"""

import json
import shutil
import subprocess
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file

from lmdeploy.paths import default_model_dir
from tools.bench.peers.install import say
from tools.bench.peers.places import GGUF_TYPES, llama_tool, root
from tools.bench.peers.places import gguf as gguf_file

NAME = "llama-3.2-1b-random"
_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
_SPREAD = 0.02  # of the random weights
_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the checkpoint's tensors; the output layer is the embedding."""
    hidden, inner = _SIZES["hidden_size"], _SIZES["intermediate_size"]
    keys = _SIZES["num_key_value_heads"] * _SIZES["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab_size, hidden)}
    for index in range(_SIZES["num_hidden_layers"]):
        found |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return found | {"model.norm.weight": (hidden,)}


def gguf_name(name: str) -> str:
    """Return GGUF's name of a tensor."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{_GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def write_directory(directory: Path) -> dict[str, torch.Tensor]:
    """Write the Hugging Face directory and return its tensors, bfloat16."""
    source = default_model_dir()
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"), dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8")) | _SIZES
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else torch.randn(shape, generator=generator, dtype=torch.bfloat16) * _SPREAD
        for name, shape in shapes(config["vocab_size"]).items()
    }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return tensors


def write_gguf(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Write the tensors as a GGUF file of 16 bits, with the tokenizer of the default model's."""
    known = gguf.GGUFReader(gguf_file(default_model_dir(), 16))
    writer = gguf.GGUFWriter(file, "llama")
    for name, field in known.fields.items():
        if not name.startswith("tokenizer."):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_name(NAME)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(len(tensors["model.embed_tokens.weight"]))
    writer.add_context_length(_SIZES["max_position_embeddings"])
    writer.add_embedding_length(_SIZES["hidden_size"])
    writer.add_feed_forward_length(_SIZES["intermediate_size"])
    writer.add_block_count(_SIZES["num_hidden_layers"])
    writer.add_head_count(_SIZES["num_attention_heads"])
    writer.add_head_count_kv(_SIZES["num_key_value_heads"])
    writer.add_rope_dimension_count(_SIZES["head_dim"])
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, tensor in tensors.items():
        writer.add_tensor(gguf_name(name), tensor.to(torch.float32 if tensor.ndim == 1 else torch.float16).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write what is not there yet."""
    directory = root() / "models" / NAME
    files = {bits: gguf_file(directory, bits) for bits in GGUF_TYPES}
    if not all(file.exists() for file in files.values()):
        say(f"writing {NAME}: 2 GB of random weights, and twice that as GGUF files (a minute)")
        tensors = write_directory(directory)
        write_gguf(tensors, files[16])
        for bits in (8, 4):
            quantize = [llama_tool("llama-quantize"), files[16], files[bits], GGUF_TYPES[bits]]
            subprocess.run([*map(str, quantize)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(directory)


if __name__ == "__main__":
    main()
