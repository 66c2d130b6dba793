"""A tiny Llama whose weights recite one text after any prompt, however long."""

from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_models import make_tiny_llama


def make_reciting(directory: Path, text: str, **overrides: Any) -> Path:
    """Make a checkpoint that responds with ``text``, whose tokens must differ, and ends.

    Attention and MLP run, but add nothing to the residual stream: the next token follows from the last one alone.
    Prompts of the default model's chat template end with a newline, which begins the text.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    make_tiny_llama(directory, tie_word_embeddings=False, **overrides)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    chain = [newline, *tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    assert len(set(chain)) == len(chain), chain
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    rows = weights["model.embed_tokens.weight"][torch.tensor(chain[:-1])]
    states = rows * rows.pow(2).mean(-1, keepdim=True).rsqrt() * weights["model.norm.weight"]
    head = weights["lm_head.weight"].zero_()
    head[torch.tensor(chain[1:])] = 8 * states  # logits of some hundreds against those near zero
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory
