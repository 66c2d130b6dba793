"""Tiny checkpoints with random weights, made by ``transformers``."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

from lmdeploy.paths import default_model_dir

WHOLE_VOCABULARY = 49152  # of the default model
_VOCABULARY = 2048
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_tiny_llama(
    directory: Path, *, seed: int = 0, dtype: str = "float32", shard: str = "5GB", **overrides: Any
) -> Path:
    """Make a Hugging Face directory with a tiny random Llama and the first tokens of the default model's tokenizer.

    ``directory``: made if missing. ``seed``: of the random weights. ``dtype``: type the weights are saved in.
    ``shard``: largest size of one safetensors file, e.g. ``"1MB"`` for several shards. ``overrides``: fields of
    ``LlamaConfig``; ``vocab_size`` shortens the tokenizer too. Returns ``directory``.
    """
    return make_tiny(directory, "LlamaForCausalLM", seed=seed, dtype=dtype, shard=shard, **overrides)


def make_tiny(
    directory: Path, architecture: str, *, seed: int = 0, dtype: str = "float32", shard: str = "5GB", **overrides: Any
) -> Path:
    """Make a Hugging Face directory with a tiny random model of an ``architecture`` of ``transformers``."""
    import torch
    import transformers

    source = default_model_dir()
    boundary = json.loads((source / "generation_config.json").read_text())
    sizes = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": boundary["bos_token_id"],
        "eos_token_id": boundary["eos_token_id"],
        "tie_word_embeddings": True,
    }
    model_class = getattr(transformers, architecture)
    # Random weights of the usual size give logits so flat that rounding decides between tokens.
    fields = {"initializer_range": 0.3} | sizes | overrides
    if fields.get("hidden_size_per_layer_input"):
        fields.setdefault("vocab_size_per_layer_input", fields["vocab_size"])
    config = model_class.config_class(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(getattr(torch, dtype))
        fill_token_experts(model)
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            # transformers starts these at values where they cannot be seen.
            if not parameter.is_floating_point() or "inv_freq" in name:
                continue
            if parameter.dim() == 1 or not parameter.any():
                is_factor = "norm" in name or "scal" in name
                torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()) if is_factor else 0.0, std=0.3)
    if model.can_generate():
        model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(directory, max_shard_size=shard)
    for name in TOKENIZER_FILES:
        shutil.copyfile(source / name, directory / name)
    if fields["vocab_size"] < WHOLE_VOCABULARY:
        (directory / "tokenizer.json").write_text(_first_tokens(fields["vocab_size"]), encoding="utf-8")
    return directory


@functools.cache
def _first_tokens(count: int) -> str:
    """Return the default model's ``tokenizer.json`` with its first tokens only: each later one is a merge more."""
    content = json.loads((default_model_dir() / "tokenizer.json").read_text(encoding="utf-8"))
    model = content["model"]
    merges = model["merges"]
    del merges[max(0, len(merges) - WHOLE_VOCABULARY + count) :]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < count}
    return json.dumps(content, ensure_ascii=False)


def fill_token_experts(model: Any) -> None:
    """Give each token of DeepSeek-V4's tables experts of its own, of which ``transformers`` makes zeros."""
    import torch

    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):
            table.copy_(torch.rand(len(table), model.config.n_routed_experts).argsort()[:, : table.shape[1]])


def make_small(directory: Path, architecture: str, **overrides: Any) -> Path:
    """Make a tiny model of 1,024 tokens, of which the tokenizer has 258: for the emulation of CUDA, which is slow."""
    from tools.bench.random_model import write_tokenizer

    make_tiny(directory, architecture, **overrides | {"vocab_size": 1024, "bos_token_id": 256, "eos_token_id": 257})
    write_tokenizer(directory)
    return directory
