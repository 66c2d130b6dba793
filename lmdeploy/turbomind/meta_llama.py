"""Llama checkpoints as Meta publishes them: ``consolidated.*.pth``, ``params.json`` and ``tokenizer.model``.

Each file holds a share of every matrix, for a model parallel group of its own. The matrices of query and key turn
neighbouring numbers of a head; in the Hugging Face layout a number turns with the one half a head away.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.errors import CheckpointError
from lmdeploy.tokenizer_readers.llama import LLAMA3_ENDS, is_ranks, write_llama2, write_llama3
from lmdeploy.turbomind.pickled_weights import read_tensors, write_index, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

_PATTERN = "consolidated.*.pth"
_REQUIRED = ("dim", "n_layers", "n_heads", "norm_eps")
# Meta's name, the Hugging Face name, and the dimension that is shared out; None: each file has all of it.
_OUTER = (
    ("tok_embeddings", "model.embed_tokens", 1),  # 0 from Llama 3 on
    ("norm", "model.norm", None),
    ("output", "lm_head", 0),
)
_INNER = (
    ("attention.wq", "self_attn.q_proj", 0),
    ("attention.wk", "self_attn.k_proj", 0),
    ("attention.wv", "self_attn.v_proj", 0),
    ("attention.wo", "self_attn.o_proj", 1),
    ("feed_forward.w1", "mlp.gate_proj", 0),
    ("feed_forward.w3", "mlp.up_proj", 0),
    ("feed_forward.w2", "mlp.down_proj", 1),
    ("attention_norm", "input_layernorm", None),
    ("ffn_norm", "post_attention_layernorm", None),
)


def is_meta_llama(model_dir: Path) -> bool:
    """Return whether a directory holds such a checkpoint."""
    return (model_dir / "params.json").is_file() and any(model_dir.glob(_PATTERN))


def rewrite(model_dir: Path, target: Path) -> None:
    """Write the same model in the Hugging Face layout.

    Raises `CheckpointError` if files are missing, broken, or do not fit each other.
    """
    params = _params(model_dir)
    shards = _shards(model_dir)
    layers = params["n_layers"]
    head_dim = params["dim"] // params["n_heads"]
    outer = {name: _joined(model_dir, shards, source, dimension, params["dim"]) for source, name, dimension in _OUTER}
    weights = {name: tensor for name, tensor in outer.items() if tensor is not None}
    files = _write(weights, target, 0, layers)
    for layer in range(layers):
        print(
            f"{model_dir.name}: rewriting layer {layer + 1} of {layers} as safetensors, once",
            file=sys.stderr,
            flush=True,
        )
        weights = {}
        for source, name, dimension in _INNER:
            tensor = _joined(model_dir, shards, f"layers.{layer}.{source}", dimension, params["dim"])
            assert tensor is not None
            is_turned = name.endswith(("q_proj", "k_proj"))
            weights[f"model.layers.{layer}.{name}"] = _in_halves(tensor, head_dim) if is_turned else tensor
        files |= _write(weights, target, layer + 1, layers)
    write_index(files, target)
    inner = len(weights[f"model.layers.{layers - 1}.mlp.up_proj"])
    config = _config(model_dir, params, outer, inner)
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (write_llama3 if is_ranks(model_dir / "tokenizer.model") else write_llama2)(model_dir, target)


def _write(weights: "Mapping[str, Tensor]", target: Path, number: int, last: int) -> dict[str, str]:
    """Write one of the files; return which file each of its tensors is in."""
    file = f"model-{number + 1:05}-of-{last + 1:05}.safetensors"
    named = {f"{name}.weight": tensor for name, tensor in weights.items()}
    write_tensors(named, target / file)
    return dict.fromkeys(named, file)


def _params(model_dir: Path) -> dict[str, Any]:
    try:
        params = json.loads((model_dir / "params.json").read_text(encoding="utf-8"))
        missing = [name for name in _REQUIRED if not isinstance(params.get(name), int | float) or params[name] <= 0]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(model_dir, [f"params.json cannot be read ({error})"]) from error
    problems = [f"params.json: {name} must be a number above 0, got {params.get(name)!r}" for name in missing]
    if not problems and params["dim"] % params["n_heads"]:
        problems = [f"params.json: dim must be a multiple of n_heads {params['n_heads']}, got {params['dim']}"]
    if params.get("moe_args") or params.get("vision_chunk_size"):
        problems.append("params.json: only Llama models of text, without experts, are read in this layout")
    if not (model_dir / "tokenizer.model").is_file():
        problems.append("tokenizer.model is missing (in Meta's downloads it may be one folder above)")
    if problems:
        raise CheckpointError(model_dir, problems)
    return dict(params)


def _shards(model_dir: Path) -> "list[dict[str, Tensor]]":
    found = {path.name for path in model_dir.glob(_PATTERN)}
    expected = [f"consolidated.{number:02}.pth" for number in range(len(found))]
    last = max(found)
    missing = [name for name in (*expected, last) if name not in found]
    if missing:
        raise CheckpointError(model_dir, [f"{name} is missing, but there is {last}" for name in missing])
    return [read_tensors(model_dir / name) for name in expected]


def _joined(
    model_dir: Path, shards: "Sequence[dict[str, Tensor]]", name: str, dimension: int | None, width: int
) -> "Tensor | None":
    """Return a whole matrix; None for the output's where the embedding's is used twice."""
    import torch

    name = f"{name}.weight"
    parts = [shard[name] for shard in shards if name in shard]
    if not parts and name == "output.weight":
        return None
    if len(parts) < len(shards):
        lacking = [f"consolidated.{i:02}.pth" for i, shard in enumerate(shards) if name not in shard]
        raise CheckpointError(model_dir, [f"{file} lacks tensor {name}" for file in lacking])
    if dimension is None or len(parts) == 1:
        return parts[0]
    if name == "tok_embeddings.weight" and parts[0].shape[1] == width:
        dimension = 0
    try:
        return torch.cat(parts, dimension)
    except RuntimeError as error:
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise CheckpointError(model_dir, [f"the shares of {name} do not fit each other: {shapes}"]) from error


def _in_halves(weight: "Tensor", head_dim: int) -> "Tensor":
    """Return a matrix whose outputs are reordered: of each head first the even numbers, then the odd ones."""
    rows, width = weight.shape
    return weight.view(rows // head_dim, head_dim // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _config(
    model_dir: Path, params: dict[str, Any], outer: "Mapping[str, Tensor | None]", inner: int
) -> dict[str, Any]:
    is_llama3 = is_ranks(model_dir / "tokenizer.model")
    embedding = outer["model.embed_tokens"]
    assert embedding is not None
    vocab = len(embedding)
    scaled = bool(params.get("use_scaled_rope"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "model_format": "meta_llama",
        "hidden_act": "silu",
        "hidden_size": params["dim"],
        "intermediate_size": inner,
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads") or params["n_heads"],
        "rms_norm_eps": params["norm_eps"],
        "vocab_size": vocab,
        "max_position_embeddings": _trained_length(params, is_llama3),
        "rope_theta": float(params.get("rope_theta") or 10000.0),
        "tie_word_embeddings": outer["lm_head"] is None,
    }
    if is_llama3:
        first = vocab - 256  # its special tokens are the last ones
        config |= {"bos_token_id": first, "eos_token_id": [first + offset for offset in LLAMA3_ENDS]}
    else:
        config |= {"bos_token_id": 1, "eos_token_id": 2}
    if scaled:
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": float(params.get("rope_scale_factor") or 8.0),
            "low_freq_factor": 1.0,
            "high_freq_factor": float(params.get("rope_high_freq_factor") or 4.0),
            "original_max_position_embeddings": 8192,
        }
    return config


def _trained_length(params: dict[str, Any], is_llama3: bool) -> int:
    """Return the context length, which ``params.json`` lacks, by what distinguishes the generations."""
    if params.get("use_scaled_rope"):
        return 131072
    if is_llama3:
        return 8192
    if float(params.get("rope_theta") or 0) >= 1e6:  # Code Llama
        return 16384
    return 2048 if params["norm_eps"] < 5e-6 else 4096  # the first Llama has 1e-6
