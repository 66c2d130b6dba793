"""Tiny heads with random weights, in the layouts that are published, and what they compute in torch.

A reference runs all rows of a head at once: ``tokens`` that follow, and alongside each what the model made of the token
before, from ``first_draft`` on what the head itself did.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.expert_models import MODELS
from tests.support.hybrid_models import MODELS as HYBRID_MODELS
from tests.support.tiny_models import make_tiny

Reference = Callable[[Tensor, Sequence[Tensor], int], tuple[Tensor, Tensor]]
SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


def weights_of(directory: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint."""
    from safetensors.torch import load_file

    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def write_head(directory: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """Write a head's folder."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(SIZES | config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def random_layer(
    prefix: str, hidden: int, *, is_first_of_eagle: bool = False, doubles_inputs: bool = False
) -> dict[str, Tensor]:
    """Return the tensors of a Llama layer with ``SIZES``."""
    inputs, head_dim = hidden * (2 if doubles_inputs else 1), hidden // 4
    shapes = {
        "self_attn.q_proj": (4 * head_dim, inputs),
        "self_attn.k_proj": (2 * head_dim, inputs),
        "self_attn.v_proj": (2 * head_dim, inputs),
        "self_attn.o_proj": (hidden, 4 * head_dim),
        "mlp.gate_proj": (64, hidden),
        "mlp.up_proj": (64, hidden),
        "mlp.down_proj": (hidden, 64),
    }
    tensors = {f"{prefix}{name}.weight": 0.15 * torch.randn(shape) for name, shape in shapes.items()}
    norms = ["post_attention_layernorm"] + ([] if is_first_of_eagle else ["input_layernorm"])
    return tensors | {f"{prefix}{name}.weight": 1 + 0.3 * torch.randn(hidden) for name in norms}


def eagle_tensors(hidden: int, *, layers: int = 1, bias: bool = False) -> dict[str, Tensor]:
    """Return a random EAGLE head without embeddings of its own."""
    tensors = {"fc.weight": 0.1 * torch.randn(hidden, 2 * hidden)}
    if bias:
        tensors["fc.bias"] = 0.1 * torch.randn(hidden)
    for layer in range(layers):
        tensors |= random_layer(f"layers.{layer}.", hidden, is_first_of_eagle=layer == 0)
    return tensors


def eagle3_tensors(hidden: int, vocab: int, draft_vocab: int) -> dict[str, Tensor]:
    """Return a random EAGLE-3 head that drafts among some tokens."""
    tokens = torch.randperm(vocab)[:draft_vocab].sort().values
    is_drafted = torch.zeros(vocab, dtype=torch.bool)
    is_drafted[tokens] = True
    return {
        "fc.weight": 0.3 * torch.randn(hidden, 3 * hidden),
        "midlayer.hidden_norm.weight": 1 + 0.3 * torch.randn(hidden),
        "norm.weight": 1 + 0.3 * torch.randn(hidden),
        "lm_head.weight": 0.3 * torch.randn(draft_vocab, hidden),
        "d2t": tokens - torch.arange(draft_vocab),
        "t2d": is_drafted,
    } | random_layer("midlayer.", hidden, doubles_inputs=True)


def _norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def _attention(x: Tensor, w: Mapping[str, Tensor], prefix: str) -> Tensor:
    """Return causal attention with rotary positions, with ``SIZES``; x [rows, inputs]."""

    def heads(name: str) -> Tensor:
        rows = x @ w[f"{prefix}self_attn.{name}_proj.weight"].T
        return rows.view(len(x), {"q": 4}.get(name, 2), -1).transpose(0, 1)

    q, k, v = heads("q"), heads("k"), heads("v")
    size = q.shape[-1]
    angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    cos, sin = angles.cos(), angles.sin()

    def turned(y: Tensor) -> Tensor:
        a, b = y.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    scores = turned(q) @ turned(k).repeat_interleave(2, 0).transpose(1, 2) / size**0.5
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    attention = scores.masked_fill(later, float("-inf")).softmax(-1) @ v.repeat_interleave(2, 0)
    return attention.transpose(0, 1).reshape(len(x), -1) @ w[f"{prefix}self_attn.o_proj.weight"].T


def _mlp(x: Tensor, w: Mapping[str, Tensor], prefix: str) -> Tensor:
    gate, up = (x @ w[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return (torch.nn.functional.silu(gate) * up) @ w[f"{prefix}mlp.down_proj.weight"].T


def eagle_reference(w: Mapping[str, Tensor], embedding: Tensor, lm_head: Tensor) -> Reference:
    """Return an EAGLE head's computation with its model's embedding and output layer."""

    def run(tokens: Tensor, alongside: Sequence[Tensor], first_draft: int) -> tuple[Tensor, Tensor]:
        x = torch.cat([embedding[tokens], torch.stack(list(alongside))], -1) @ w["fc.weight"].T + w.get("fc.bias", 0)
        for layer in range(8):
            prefix = f"layers.{layer}."
            if f"{prefix}mlp.up_proj.weight" not in w:
                break
            norm = w.get(f"{prefix}input_layernorm.weight")
            x = x + _attention(x if norm is None else _norm(x, norm), w, prefix)
            x = x + _mlp(_norm(x, w[f"{prefix}post_attention_layernorm.weight"]), w, prefix)
        return x @ lm_head.T, x

    return run


def eagle3_reference(w: Mapping[str, Tensor], embedding: Tensor) -> Reference:
    """Return an EAGLE-3 head's computation with its model's embedding."""

    def run(tokens: Tensor, alongside: Sequence[Tensor], first_draft: int) -> tuple[Tensor, Tensor]:
        x = torch.stack([row if i >= first_draft else row @ w["fc.weight"].T for i, row in enumerate(alongside)])
        both = [
            _norm(embedding[tokens], w["midlayer.input_layernorm.weight"]),
            _norm(x, w["midlayer.hidden_norm.weight"]),
        ]
        x = x + _attention(torch.cat(both, -1), w, "midlayer.")
        x = x + _mlp(_norm(x, w["midlayer.post_attention_layernorm.weight"]), w, "midlayer.")
        return _norm(x, w["norm.weight"]) @ w["lm_head.weight"].T, x

    return run


def make_tiny_deepseek_mtp(directory: Path, *, layers: int = 2, **overrides: Any) -> Path:
    """Make a tiny DeepSeek-V3 whose checkpoint has the layer that predicts one more token.

    It is a model with a layer more whose config.json leaves that out.
    """
    from safetensors.torch import save_file

    architecture, sizes = MODELS["DeepSeek-V3"]
    make_tiny(directory, architecture, **(sizes | overrides | {"num_hidden_layers": layers + 1}))
    file = directory / "config.json"
    config = json.loads(file.read_text()) | {"num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    for per_layer in ("layer_types", "mlp_layer_types"):
        if per_layer in config:
            config[per_layer] = config[per_layer][:layers]
    file.write_text(json.dumps(config))
    tensors = weights_of(directory)
    prefix, hidden = f"model.layers.{layers}.", config["hidden_size"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{prefix}{name}.weight"] = 1 + 0.3 * torch.randn(hidden)
        tensors[f"{prefix}eh_proj.weight"] = 0.3 * torch.randn(hidden, 2 * hidden)
        tensors[f"{prefix}shared_head.head.weight"] = 0.3 * torch.randn(config["vocab_size"], hidden)
    tensors[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    for stored in directory.glob("*.safetensors"):
        stored.unlink()
    save_file(tensors, directory / "model.safetensors")
    return directory


def mtp_reference(directory: Path, scratch: Path) -> Reference:
    """Return the further layer's computation of such a checkpoint, with the layer of ``transformers``."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(directory, scratch)
    file = scratch / "config.json"
    config = json.loads(file.read_text())
    number = config["num_hidden_layers"]
    for per_layer in ("layer_types", "mlp_layer_types"):
        if per_layer in config:
            config[per_layer].append(config[per_layer][-1])
    file.write_text(json.dumps(config | {"num_hidden_layers": number + 1}))
    model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager").model
    w = {name.removeprefix(f"model.layers.{number}."): tensor for name, tensor in weights_of(directory).items()}

    def run(tokens: Tensor, alongside: Sequence[Tensor], first_draft: int) -> tuple[Tensor, Tensor]:
        embedded = _norm(w["embed_tokens.weight"][tokens], w["enorm.weight"])
        hidden = _norm(torch.stack(list(alongside)), w["hnorm.weight"])
        x = (torch.cat([embedded, hidden], -1) @ w["eh_proj.weight"].T)[None]
        positions = torch.arange(len(tokens))[None]
        later = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            x = model.layers[number](
                x, attention_mask=later, position_ids=positions, position_embeddings=model.rotary_emb(x, positions)
            )[0]
        x = _norm(x, w["shared_head.norm.weight"])
        return x @ w["shared_head.head.weight"].T, x

    return run


def make_tiny_qwen_mtp(directory: Path, name: str, **overrides: Any) -> Path:
    """Make a tiny Qwen3.5 or Qwen3-Next, by its name in ``hybrid_models``, with the layer that predicts one more token.

    It has the weights of a layer of the model, and of other norms.
    """
    architecture, sizes = HYBRID_MODELS[name]
    make_tiny(directory, architecture, **(sizes | overrides))
    hidden = json.loads((directory / "config.json").read_text())["hidden_size"]

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = {
            f"mtp.layers.0.{key.partition('layers.1.')[2]}": tensor for key, tensor in tensors.items() if ".1." in key
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            norms = {
                f"mtp.{key}.weight": 0.3 * torch.randn(hidden)
                for key in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
            }
            join = 0.3 * torch.randn(hidden, 2 * hidden)
        return tensors | layer | norms | {"mtp.fc.weight": join}

    rewrite_weights(directory, change)
    return directory


def qwen_mtp_reference(directory: Path) -> Reference:
    """Return that layer's computation, with the layer of ``transformers``, whose weights are those of its second."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    w = {key.removeprefix("mtp."): tensor for key, tensor in weights_of(directory).items() if key.startswith("mtp.")}

    def run(tokens: Tensor, alongside: Sequence[Tensor], first_draft: int) -> tuple[Tensor, Tensor]:
        embedded = _norm(model.get_input_embeddings().weight[tokens], 1 + w["pre_fc_norm_embedding.weight"])
        hidden = _norm(torch.stack(list(alongside)), 1 + w["pre_fc_norm_hidden.weight"])
        x = (torch.cat([embedded, hidden], -1) @ w["fc.weight"].T)[None]
        positions = torch.arange(len(tokens))[None]
        later = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            rotation = model.model.rotary_emb(x, positions)
            x = model.model.layers[1](x, attention_mask=later, position_ids=positions, position_embeddings=rotation)
        x = _norm((x[0] if isinstance(x, tuple) else x)[0], 1 + w["norm.weight"])
        return x @ model.get_output_embeddings().weight.T, x

    return run


def rewrite_weights(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Replace a checkpoint's tensors by what ``change`` makes of them, and return these."""
    from safetensors.torch import save_file

    tensors = {name: tensor.clone() for name, tensor in change(weights_of(directory)).items()}
    for stored in directory.glob("*.safetensors*"):
        stored.unlink()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return tensors


def without_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model whose next token depends on the last one alone: no attention, no weights of norms."""

    def changed(name: str, tensor: Tensor) -> Tensor:
        if name.endswith("o_proj.weight"):
            return torch.zeros_like(tensor)
        return torch.ones_like(tensor) if "norm" in name and name.endswith("weight") else tensor

    return {name: changed(name, tensor) for name, tensor in tensors.items()}
