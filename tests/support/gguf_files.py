"""GGUF files of checkpoints that ``transformers`` made, written with the ``gguf`` package as llama.cpp converts them.

Names come from the package's own tables; what is done to tensors follows ``convert_hf_to_gguf.py``.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Type = gguf.GGMLQuantizationType
Tensors = dict[str, torch.Tensor]
TypeOf = Callable[[str, tuple[int, ...]], Type]
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
TURNED = ("llama", "internlm2")


def in_float32(name: str, shape: tuple[int, ...]) -> Type:
    """Keep every number."""
    return Type.F32


def matrices_in(kind: Type) -> TypeOf:
    """Return a choice that stores matrices in one type and the rest in float32."""
    return lambda name, shape: kind if len(shape) > 1 else Type.F32


def write_gguf(
    directory: Path,
    path: Path,
    architecture: str,
    type_of: TypeOf = in_float32,
    *,
    tokenizer: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    listed: Mapping[str, Any] | None = None,
    parts: int = 0,
) -> Tensors:
    """Write a checkpoint as a GGUF file.

    ``directory``: the checkpoint. ``path``: the file; with ``parts``, the parts are alongside it,
    ``NAME-00001-of-...``. ``architecture``: GGUF's name. ``type_of``: from GGUF's name and the shape of a tensor to its
    type. ``tokenizer``: metadata of the tokenizer; None: the checkpoint's, which is byte-level. ``extra``: more
    metadata, keys without the architecture's name. ``listed``: metadata of a published file, in the same form: these
    keys alone are written, with the checkpoint's sizes. ``parts``: number of files; 0: one. Returns by the checkpoint's
    names what the file's numbers stand for, in float32.
    """
    config = AutoConfig.from_pretrained(directory)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=0)
    tensors = _stacked({name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()})
    tensors = _divided(tensors, config)
    if parts:
        writer = gguf.GGUFWriter(path, architecture, split_max_tensors=-(-len(tensors) // parts))
    sizes = _sizes(config) | dict(extra or {})
    keys = sizes if listed is None else _as_listed(listed, sizes)
    _add(writer, {f"{writer.arch}.{key}": value for key, value in keys.items()})
    _add(writer, tokenizer if tokenizer is not None else byte_level_metadata(directory))
    stored = {}
    for name, tensor in tensors.items():
        gguf_name, values, back = _as_converted(name, tensor, architecture, config)
        kind = type_of(gguf_name, tuple(values.shape))
        data = quantize(values.numpy(), kind)
        writer.add_tensor(gguf_name, data, raw_dtype=kind)
        stored[name] = back(torch.from_numpy(dequantize(data, kind).reshape(values.shape).copy()))
    stored = _unstacked(stored)
    for name, factors in _factors(config).items():
        writer.add_tensor(name, np.asarray(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def byte_level_metadata(directory: Path, pre: str = "gpt-2") -> dict[str, Any]:
    """Return the metadata of a checkpoint's byte-level tokenizer."""
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    texts = {token: text for text, token in (vocabulary | special).items()}
    boundary = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    template = directory / "chat_template.jinja"
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [texts[token] for token in range(len(texts))],
        "tokenizer.ggml.token_type": [3 if texts[token] in special else 1 for token in range(len(texts))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": boundary["bos_token_id"],
        "tokenizer.ggml.eos_token_id": boundary["eos_token_id"],
        **({"tokenizer.chat_template": template.read_text(encoding="utf-8")} if template.is_file() else {}),
    }


def write_metadata(path: Path, architecture: str, metadata: Mapping[str, Any]) -> Path:
    """Write a file of metadata with a tensor that is no model's."""
    writer = gguf.GGUFWriter(path, architecture)
    _add(writer, metadata)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def _sizes(config: Any) -> dict[str, Any]:
    """Return the metadata of a checkpoint, keys without the architecture's name."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    found = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "ffn_hidden_size", None) or config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": _kv_heads(config),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if head_dim != config.hidden_size // heads:
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if rope["rope_type"] in {"linear", "yarn"}:
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if "original_max_position_embeddings" in rope:
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if hasattr(config, "rms_norm_eps"):
        found["attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    else:
        names = ("norm_epsilon", "layer_norm_epsilon", "layer_norm_eps")
        eps = next(getattr(config, name) for name in names if hasattr(config, name))
        found["attention.layer_norm_epsilon"] = float(eps)
    if getattr(config, "sliding_window", None):
        found["attention.sliding_window"] = config.sliding_window
    if getattr(config, "attn_logit_softcapping", None):
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        found |= {name: float(getattr(config, name)) for name in caps}
    return found


def _as_listed(listed: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return listed metadata with a checkpoint's sizes: numbers of other kinds, texts and switches are as listed."""
    return {
        key: sizes.get(key, value) if type(value) is int or isinstance(value, list) else value
        for key, value in listed.items()
    }


def _kv_heads(config: Any) -> int:
    if config.model_type != "falcon":
        return int(config.num_key_value_heads)
    return int(config.num_kv_heads) if config.new_decoder_architecture else 1


def _factors(config: Any) -> dict[str, Sequence[float]]:
    """Return the tensors of rotary factors: Llama 3.1's, by which frequencies are divided, and longrope's."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        unscaled = rope["rope_theta"] ** -(torch.arange(0, 2 * len(slowed), 2).double() / (2 * len(slowed)))
        return {"rope_freqs.weight": (unscaled / slowed.double()).tolist()}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{kind}.weight": rope[f"{kind}_factor"] for kind in ("long", "short")}
    return {}


def _as_converted(
    name: str, tensor: torch.Tensor, architecture: str, config: Any
) -> tuple[str, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Return GGUF's name, what the converter makes of a tensor, and what undoes that."""
    arch = next(arch for arch, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    if "linear_attn." in name:
        return _gated_delta(name, tensor, architecture, config, names)
    renamed = re.sub(r"^model\.(layers\.\d+)\.block_sparse_moe\.experts\.", r"\1.feed_forward.experts.", name)
    renamed = renamed.replace("e_score_correction_bias", "e_score_correction.bias")
    gguf_name = names.get_name(renamed, try_suffixes=(".weight", ".bias"))
    assert gguf_name is not None, name
    if architecture in TURNED and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        return gguf_name, _swapped(tensor, heads, 2), lambda stored: _swapped(stored, heads, -1)
    if name.endswith("shared_expert_gate.weight"):
        return gguf_name, tensor.squeeze(), lambda stored: stored[None]
    if architecture.startswith(("gemma", "qwen35", "qwen3next")) and name.endswith("norm.weight"):
        return gguf_name, tensor + 1, lambda stored: stored - 1
    if architecture == "falcon" and "query_key_value" in name:
        group = config.num_attention_heads // _kv_heads(config)
        heads = tensor.view(_kv_heads(config), group + 2, -1, *tensor.shape[1:])
        parts = torch.cat([heads[:, :-2].flatten(0, 2), heads[:, -2].flatten(0, 1), heads[:, -1].flatten(0, 1)])
        return gguf_name, parts, lambda stored: tensor
    return gguf_name, tensor, lambda stored: stored


def _gated_delta(
    name: str, tensor: torch.Tensor, architecture: str, config: Any, names: gguf.TensorNameMap
) -> tuple[str, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """The same of a tensor of a gated delta network; joined matrices of Qwen3-Next are in `_divided`."""
    key_heads, heads, size = (
        getattr(config, f"linear_{what}") for what in ("num_key_heads", "num_value_heads", "value_head_dim")
    )
    keys = 2 * key_heads * config.linear_key_head_dim
    kind = name.rpartition("linear_attn.")[2]
    found = names.get_name(name.replace(".dt_bias", ".dt_proj.bias"), try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    values = tensor.squeeze(1) if kind == "conv1d.weight" else tensor
    shape = tensor.shape
    if kind == "A_log":
        values = -values.exp()
    if architecture == "qwen3next" or kind == "norm.weight" or heads == key_heads:
        return found, values, lambda stored: (-stored).log() if kind == "A_log" else stored.reshape(shape)

    def moved(whole: torch.Tensor, first: int, second: int) -> torch.Tensor:
        if kind == "out_proj.weight":
            return whole.unflatten(1, (first, second, size)).transpose(1, 2).flatten(1).contiguous()
        begin = keys if kind in ("in_proj_qkv.weight", "conv1d.weight") else 0
        head_size = size if begin or kind == "in_proj_z.weight" else 1
        rows = whole[begin:].unflatten(0, (first, second, head_size)).transpose(0, 1).flatten(0, 2)
        return torch.cat([whole[:begin], rows])

    def back(stored: torch.Tensor) -> torch.Tensor:
        whole = moved(stored, heads // key_heads, key_heads)
        return (-whole).log() if kind == "A_log" else whole.reshape(shape)

    return found, moved(values, key_heads, heads // key_heads), back


def _divided(tensors: Tensors, config: Any) -> Tensors:
    """Return tensors with Qwen3-Next's joined matrix as all queries, keys, values, and all gates."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if not name.endswith("in_proj_qkvz.weight"):
            found[name] = tensor
            continue
        group = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
        sizes = [config.linear_key_head_dim] * 2 + [group] * 2
        parts = [part.flatten(0, 1) for part in tensor.unflatten(0, (config.linear_num_key_heads, -1)).split(sizes, 1)]
        found[name.replace("qkvz", "qkv")] = torch.cat(parts[:3])
        found[name.replace("qkvz", "z")] = parts[3]
    return found


def _stacked(tensors: Tensors) -> Tensors:
    """Return tensors with all experts of a layer in one, ``...experts.gate_proj.weight [experts, out, in]``."""
    found: Tensors = {}
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors, key=_by_number):
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            found[name] = tensors[name]
        else:
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", []).append(tensors[name])
    return found | {name: torch.stack(parts) for name, parts in stacks.items()}


def _unstacked(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for name, tensor in tensors.items():
        stack = re.fullmatch(r"(.*\.experts)\.(\w+)\.weight", name)
        if stack is None:
            found[name] = tensor
        else:
            found |= {f"{stack[1]}.{e}.{stack[2]}.weight": part.clone() for e, part in enumerate(tensor)}
    return found


def _by_number(name: str) -> list[object]:
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in name.split(".")]


def _swapped(tensor: torch.Tensor, heads: int, halves: int) -> torch.Tensor:
    """Return rows ``[heads, 2, n]`` as ``[heads, n, 2]`` (``halves`` 2), or back (-1)."""
    middle = (2, -1) if halves == 2 else (-1, 2)
    return tensor.reshape(heads, *middle, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape).contiguous()
