"""Checkpoints of well-known shapes with random weights, to measure speed where no real one is at hand.

``python -m tools.bench.random_model llama-3.1-8b DIRECTORY`` writes one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tools.bench import arguments as flags

# Models whose layers matter, and nothing else.
_TINY_HEADS: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
# Shape -> architecture of `transformers`, fields of its config.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3.1-8b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 16384,
            "tie_word_embeddings": False,
        },
    ),
    "llama-3.2-1b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-0.5b": (
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16384,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral-like": (
        "MixtralForCausalLM",
        {
            "vocab_size": 32000,
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 16384,
            "sliding_window": None,
        },
    ),
    # With a smaller vocabulary than the real one's 248,320 tokens.
    "qwen3.5-0.8b": (
        "Qwen3_5ForCausalLM",
        {
            "vocab_size": 32000,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-3-270m-layers": (
        "Gemma3ForCausalLM",
        _TINY_HEADS
        | {
            "num_hidden_layers": 18,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        },
    ),
    "gpt-oss-20b-layers": (
        "Gemma3ForCausalLM",
        _TINY_HEADS
        | {
            "num_hidden_layers": 24,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
        },
    ),
    "tiny": (
        "LlamaForCausalLM",
        {
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16384,
            "tie_word_embeddings": False,
        },
    ),
}
_SPREAD = 0.02  # of the random weights
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write(shape: str, directory: Path, device: str = "cpu") -> Path:
    """Write a bfloat16 checkpoint, a file a layer, and a tokenizer whose tokens are bytes, with a chat template.

    Parameters
    ----------
    shape
        One of ``SHAPES``.
    directory
        Made if missing.
    device
        Where torch draws the numbers; ``cuda`` is much faster.

    Returns
    -------
    Path
        ``directory``.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    architecture, sizes = SHAPES[shape]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**sizes, bos_token_id=256, eos_token_id=257, dtype="bfloat16")
    config.architectures = [architecture]
    with torch.device("meta"):
        empty = model_class(config).state_dict()
    if config.tie_word_embeddings:
        empty.pop("lm_head.weight", None)
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    transformers.GenerationConfig.from_model_config(config).save_pretrained(directory)
    write_tokenizer(directory)

    files: dict[str, dict[str, Any]] = {}
    for name, tensor in empty.items():
        layer = name.partition("layers.")[2].partition(".")[0]
        files.setdefault(f"model-{layer or 'rest'}.safetensors", {})[name] = tensor.shape
    index = {name: file for file, tensors in files.items() for name in tensors}
    generator = torch.Generator(device).manual_seed(0)
    for file, shapes in files.items():
        tensors = {
            name: (1.0 if len(size) == 1 and "norm" in name else 0.0)
            + torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16) * _SPREAD
            for name, size in shapes.items()
        }
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, directory / file, {"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return directory


def write_tokenizer(directory: Path, words: int = 0) -> None:
    """Write a tokenizer of 258 tokens, bytes and a begin and end, and a chat template.

    With ``words`` more tokens, which no text is read as, whatever a model of random weights says is text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"Ġw{number}" for number in range(words))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=_CHAT_TEMPLATE
    ).save_pretrained(directory)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write a checkpoint with random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device", default="cpu", help="where the numbers are drawn: cpu or cuda (default: cpu)")
    arguments = parser.parse_args()
    print(write(arguments.shape, arguments.directory, arguments.device))


if __name__ == "__main__":
    flags.run(main)
