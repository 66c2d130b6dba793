"""Checkpoints in the layouts of architectures that are published with their own code.

A tiny checkpoint that ``transformers`` made and can run is rewritten in place, names, order of rows and config.json, so
that the reference stays ``transformers``.
"""

import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Publisher = Callable[[Path], None]
_WEIGHTS = "model.safetensors"


def as_is(directory: Path) -> None:
    """Leave the checkpoint as ``transformers`` saved it."""


def rewrite(directory: Path, config: dict[str, Any], change: Callable[[Tensors, dict[str, Any]], Tensors]) -> None:
    """Replace config.json and the tensors; ``change`` gets the tensors and the old config."""
    path = directory / "config.json"
    old = json.loads(path.read_text())
    tensors = change(load_file(directory / _WEIGHTS), old)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / _WEIGHTS)
    kept = {name: old[name] for name in ("bos_token_id", "eos_token_id", "vocab_size", "tie_word_embeddings")}
    path.write_text(json.dumps(kept | config))


def qwen3_vl(directory: Path) -> None:
    """Qwen3-VL, whose text part is a Qwen3 with or without experts, without its tower; experts are [in, out]."""
    stacked_experts(directory)
    text = old_config(directory)
    text["rope_parameters"] |= {"mrope_section": [12, 10, 10], "mrope_interleaved": True}
    kind = "Moe" if "moe" in text["model_type"] else ""
    config = {
        "architectures": [f"Qwen3VL{kind}ForConditionalGeneration"],
        "model_type": f"qwen3_vl{kind and '_moe'}",
        "text_config": {name: value for name, value in text.items() if name != "architectures"},
        "vision_config": {},
    }

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        turned = {name: x.transpose(1, 2) if x.dim() == 3 else x for name, x in tensors.items()}
        return renamed(turned, (r"^model\.", "model.language_model."))

    rewrite(directory, config, change)


def paddleocr_vl(directory: Path) -> None:
    """The text part of PaddleOCR-VL from a Llama."""
    config = old_config(directory) | {"architectures": ["PaddleOCRVLForConditionalGeneration"], "use_bias": False}
    config["rope_parameters"] |= {"mrope_section": [8, 12, 12]}
    rewrite(directory, config, lambda tensors, _: tensors)


def old_config(directory: Path) -> dict[str, Any]:
    """Return the config as ``transformers`` wrote it."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def llama_sizes(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the sizes that most configs have, and ``names``."""
    common = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {name: config[name] for name in (*common, *names)}


def renamed(tensors: Tensors, *patterns: tuple[str, str | Callable[[re.Match[str]], str]]) -> Tensors:
    """Return the tensors under new names, by regular expressions."""
    result = {}
    for name, tensor in tensors.items():
        for pattern, replacement in patterns:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result


def fused(tensors: Tensors, parts: tuple[str, ...], whole: str, join: Callable[..., Tensor]) -> Tensors:
    """Return the tensors with those whose names hold each of ``parts`` joined into one that holds ``whole``."""
    result = dict(tensors)
    for name in tensors:
        if parts[0] in name:
            values = [result.pop(name.replace(parts[0], part)) for part in parts]
            result[name.replace(parts[0], whole)] = join(*values)
    return result


def stacked(*parts: Tensor) -> Tensor:
    """Return the rows of all parts, one after the other."""
    return torch.cat(parts)


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_TO_BLOCKS = (r"^model\.layers\.", "transformer.h.")


def stacked_experts(directory: Path) -> None:
    """Store the experts of each layer as two stacks: gates above ups, and downs."""

    def change(tensors: Tensors, config: dict[str, Any]) -> Tensors:
        count = config.get("num_experts") or config.get("num_local_experts", 0)
        name = re.compile(r"(.+mlp[.]experts)[.]0[.]gate_proj[.]weight")
        for layer in [found[1] for found in map(name.fullmatch, list(tensors)) if found]:
            gates, ups, downs = (
                [tensors.pop(f"{layer}.{expert}.{part}_proj.weight") for expert in range(count)]
                for part in ("gate", "up", "down")
            )
            pairs = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
            tensors |= {f"{layer}.gate_up_proj": torch.stack(pairs), f"{layer}.down_proj": torch.stack(downs)}
        return tensors

    rewrite(directory, old_config(directory), change)


def kimi_linear(directory: Path) -> None:
    """Name the dense MLPs as published: ``transformers`` saves them by the name of experts."""

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return {re.sub(r"block_sparse_moe[.](gate|up|down)_proj", r"mlp.\1_proj", n): t for n, t in tensors.items()}

    rewrite(directory, old_config(directory), change)


def ling3(directory: Path) -> None:
    """Name the output of Kimi delta attention as published: ``transformers`` saves it by latent attention's name."""

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        layers = [name.removesuffix("A_log") for name in tensors if name.endswith("A_log")]
        return renamed(tensors, *((f"^{re.escape(layer)}dense", f"{layer}o_proj") for layer in layers))

    rewrite(directory, old_config(directory), change)


def hy4(directory: Path) -> None:
    """Name HY4's parts and turn pairs of rotation as published: neighbours, of which ``transformers`` has halves."""
    names = (
        (r"hc_pre[.]hc_head[.]", "hc_head."),
        (r"hc_pre[.]hc_(attn|mlp)_layer[.]", r"hc_\1_layer.hc_pre."),
        (r"(mlp|experts)[.]linear_gate", r"\1.gate_proj"),
    )

    def change(tensors: Tensors, config: dict[str, Any]) -> Tensors:
        rotated, index = config["qk_rope_head_dim"], config["index_head_dim"]
        heads = dict.fromkeys(("indexer.wq_b", "indexer.wk", "indexer.k_norm"), index)
        heads |= {
            "q_b_proj": config["qk_nope_head_dim"] + rotated,
            "kv_a_proj_with_mqa": config["kv_lora_rank"] + rotated,
        }
        for name in tensors:
            size = next((size for part, size in heads.items() if f"{part}." in name), 0)
            if size:
                first = size - rotated
                turned = [first + i % 2 * (rotated // 2) + i // 2 for i in range(rotated)]
                rows = tensors[name].unflatten(0, (-1, size))[:, [*range(first), *turned]]
                tensors[name] = rows.flatten(0, 1)
        return renamed(tensors, *names)

    rewrite(directory, old_config(directory), change)


def minimax_m3(directory: Path) -> None:
    """MiniMax-M3 from its text part in ``transformers``, whose experts are stacks and whose gates are joined."""

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        made: Tensors = {}
        for name, tensor in tensors.items():
            if name.endswith("gate_up_proj.weight"):
                gate, up = tensor.chunk(2)
                made |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
            elif ".experts." in name:
                parts = tensor.chunk(2, dim=1) if "gate_up" in name else (tensor,)
                for part, stack in zip(("w1", "w3") if "gate_up" in name else ("w2",), parts, strict=True):
                    prefix = name.rpartition(".")[0]
                    made |= {f"{prefix}.{e}.{part}.weight": matrix for e, matrix in enumerate(stack)}
            else:
                made[name] = tensor
        names = (r"mlp[.]gate[.]e_score", "block_sparse_moe.e_score"), (r"indexer[.]", "index_")
        return renamed(made, *names, (r"mlp[.](gate|experts|shared_experts)[.]", r"block_sparse_moe.\1."))

    config = {"architectures": ["MiniMaxM3ForCausalLM"], "model_type": "minimax_m3"}
    rewrite(directory, old_config(directory) | config, change)


def deepseek_v4(directory: Path) -> None:
    """DeepSeek-V4 with the names of the published files, of which ``transformers`` writes some and reads all."""
    names = ((r"^model[.]|^lm_", ""), (r"embed_tokens", "embed"), (r"hc_head[.]hc_", "hc_head_"))

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return renamed(tensors, *names, (r"attn[.]norm", "attn.kv_norm"))

    rewrite(directory, old_config(directory), change)


def minimax(directory: Path) -> None:
    """Leave out what ``transformers`` computes of MiniMax's slopes and saves alongside the weights."""
    computed = re.compile(r"self_attn[.]([a-z]+_decay|slope_rate)$")

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if not computed.search(name)}

    rewrite(directory, old_config(directory), change)


def olmo_hybrid(directory: Path) -> None:
    """Name norms of attention and cut convolutions as published: ``transformers`` saves neither as it reads them."""

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        for layer in {name.split(".linear_attn.")[0] for name in tensors if ".linear_attn." in name}:
            parts = [f"{layer}.linear_attn.{part}" for part in "qkv"]
            whole = torch.cat([tensors[f"{part}_conv1d.weight"] for part in parts])
            rows = [len(tensors[f"{part}_proj.weight"]) for part in parts]
            for part, part_rows in zip(parts, whole.split(rows), strict=True):
                tensors[f"{part}_conv1d.weight"] = part_rows
        for layer in {name.split(".self_attn.")[0] for name in tensors if ".self_attn." in name}:
            tensors[f"{layer}.post_attention_layernorm.weight"] = tensors.pop(f"{layer}.feedforward_layer_norm.weight")
        return tensors

    rewrite(directory, old_config(directory), change)


def internlm(directory: Path) -> None:
    """InternLM from a Llama with attention biases."""
    old = old_config(directory)
    config = llama_sizes(old, "max_position_embeddings", "rms_norm_eps", "hidden_act")
    config |= {"architectures": ["InternLMForCausalLM"], "model_type": "internlm", "bias": True}
    config |= {"rotary": {"base": 20000, "type": "dynamic"}, "auto_map": {"AutoConfig": "configuration.InternLMConfig"}}
    rewrite(directory, config, lambda tensors, _: tensors)


def internlm3(directory: Path) -> None:
    """InternLM3 from a Llama with biases."""
    old = old_config(directory)
    names = ("max_position_embeddings", "rms_norm_eps", "hidden_act", "num_key_value_heads", "head_dim")
    config = llama_sizes(old, *names) | {"architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3"}
    config |= {"bias": True, "qkv_bias": True, "rope_theta": 50000.0}
    rewrite(directory, config, lambda tensors, _: tensors)


def xverse(directory: Path) -> None:
    """XVERSE from a Llama without grouping."""
    old = old_config(directory)
    config = llama_sizes(old, "max_position_embeddings", "rms_norm_eps", "hidden_act")
    config |= {"architectures": ["XverseForCausalLM"], "model_type": "xverse"}
    rewrite(directory, config, lambda tensors, _: tensors)


def phi4_multimodal(directory: Path) -> None:
    """Phi-4-multimodal from a Phi-3: names that leave room for low-rank matrices."""
    old = old_config(directory)
    layers = (r"(qkv_proj|o_proj|gate_up_proj|down_proj)[.]weight$", r"\1.base_layer.weight")
    config = old | {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    rewrite(directory, config, lambda tensors, _: renamed(tensors, layers))


def minicpm(directory: Path) -> None:
    """MiniCPM from a Granite whose scores are scaled as Llama's."""
    old = old_config(directory)
    config = llama_sizes(old, "max_position_embeddings", "num_key_value_heads", "head_dim", "rms_norm_eps") | {
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "scale_emb": old["embedding_multiplier"],
        "scale_depth": old["residual_multiplier"] * old["num_hidden_layers"] ** 0.5,
        "dim_model_base": old["hidden_size"] / old["logits_scaling"],
    }
    rewrite(directory, config, lambda tensors, _: tensors)


def exaone(directory: Path) -> None:
    """EXAONE 3.5 from a Llama."""
    old = old_config(directory)
    config = llama_sizes(old, "max_position_embeddings", "num_key_value_heads", "head_dim")
    scaling = dict(old["rope_parameters"])
    config |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "rope_theta": scaling.pop("rope_theta")}
    config |= {"num_layers": config.pop("num_hidden_layers"), "layer_norm_epsilon": old["rms_norm_eps"]}
    config |= {"activation_function": "silu", "rope_scaling": scaling}
    names = [
        _TO_BLOCKS,
        (r"^model\.embed_tokens", "transformer.wte"),
        (r"^model\.norm", "transformer.ln_f"),
        (r"self_attn\.o_proj", "attn.attention.out_proj"),
        (r"self_attn\.", "attn.attention."),
        (r"input_layernorm", "ln_1"),
        (r"post_attention_layernorm", "ln_2"),
        (r"mlp\.gate_proj", "mlp.c_fc_0"),
        (r"mlp\.up_proj", "mlp.c_fc_1"),
        (r"mlp\.down_proj", "mlp.c_proj"),
    ]
    rewrite(directory, config, lambda tensors, _: renamed(tensors, *names))


def mixformer(directory: Path) -> None:
    """Phi-2's first release from a Phi."""
    old = old_config(directory)
    heads, hidden, last = old["num_attention_heads"], old["hidden_size"], old["num_hidden_layers"] + 1
    config: dict[str, Any] = {"architectures": ["MixFormerSequentialForCausalLM"]}
    config |= {"model_type": "mixformer-sequential"}
    config |= {"n_embd": hidden, "n_head": heads, "n_head_kv": old["num_key_value_heads"], "n_layer": last - 1}
    config |= {"n_inner": old["intermediate_size"], "n_positions": old["max_position_embeddings"]}
    config |= {"activation_function": old["hidden_act"], "layer_norm_epsilon": old["layer_norm_eps"]}
    config["rotary_dim"] = int(hidden // heads * old["rope_parameters"]["partial_rotary_factor"])
    names: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r"^model\.layers\.(\d+)", lambda found: f"layers.{int(found[1]) + 1}"),
        (r"^model\.embed_tokens", "layers.0.wte"),
        (r"^model\.final_layernorm", f"layers.{last}.ln"),
        (r"^lm_head", f"layers.{last}.linear"),
        ("input_layernorm", "ln"),
        (r"self_attn\.Wqkv", "mixer.Wqkv"),
        (r"self_attn\.dense", "mixer.out_proj"),
    ]
    rewrite(directory, config, lambda tensors, _: renamed(fused(tensors, _QKV, "self_attn.Wqkv", stacked), *names))


def rw(directory: Path) -> None:
    """Falcon's first releases from a Falcon."""
    old = old_config(directory)
    same = ("hidden_size", "alibi", "bias", "parallel_attn", "layer_norm_epsilon")
    config = {name: old[name] for name in same} | {"architectures": ["RWForCausalLM"], "model_type": "RefinedWebModel"}
    config |= {"n_layer": old["num_hidden_layers"], "n_head": old["num_attention_heads"]}
    config |= {"multi_query": old["multi_query"]}
    config |= {"n_head_kv": old["num_kv_heads"]} if old["new_decoder_architecture"] else {}
    rewrite(directory, config, lambda tensors, _: tensors)


_DECI = ((2, 512), (None, 512), (4, 256), (None, None), (2, None))
"""Query heads a key and value head, and the size of the MLP, of each layer; None: it has none."""


def decilm(directory: Path) -> None:
    """Llama-Nemotron from a Llama of 5 layers, without what :func:`decilm_forward` sets to zero."""
    old = old_config(directory)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        kept: Tensors = {}
        for name, tensor in tensors.items():
            found = re.match(r"model\.layers\.(\d+)\.(\w+)", name)
            group, size = _DECI[int(found[1])] if found else (2, 512)
            if "k_proj" in name or "v_proj" in name:
                tensor = tensor[: len(tensor) * 2 // (group or 2)]
            if ".mlp." in name:
                tensor = tensor[:, :size] if "down_proj" in name else tensor[:size]
            lacking = [*(("self_attn", "input_layernorm") if group is None else ())]
            lacking += ("mlp", "post_attention_layernorm") if size is None else ()
            kept |= {} if found and found[2] in lacking else {name: tensor}
        return kept

    # A size is a factor of two thirds of the model's, rounded up to a multiple of 256.
    blocks = [
        {
            "attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
            "ffn": {"ffn_mult": size and 1.45 * size / old["hidden_size"], "no_op": size is None},
        }
        for group, size in _DECI
    ]
    config = {name: value for name, value in old.items() if name not in ("intermediate_size", "num_key_value_heads")}
    config |= {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "block_configs": blocks}
    rewrite(directory, config, change)


def decilm_forward(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a Llama whose layers are as small as those of :func:`decilm`."""
    for layer, (group, size) in zip(model.model.layers, _DECI, strict=True):
        if group is None:
            layer.self_attn.o_proj.weight.zero_()
        if group == 4:
            for part in (layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight):
                part.copy_(part[: len(part) // 2].repeat(2, 1))
        layer.mlp.down_proj.weight[:, size or 0 :] = 0
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def internlm2(directory: Path) -> None:
    """InternLM2 from a Llama: each key/value head's queries, key and value are adjacent."""
    old = old_config(directory)
    kv_heads, head_dim = old["num_key_value_heads"], old["hidden_size"] // old["num_attention_heads"]

    def by_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = [part.view(kv_heads, -1, head_dim, *part.shape[1:]) for part in (q, k, v)]
        return torch.cat(heads, dim=1).flatten(0, 2)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return renamed(
            fused(tensors, _QKV, "attention.wqkv", by_head),
            (r"model\.embed_tokens", "model.tok_embeddings"),
            (r"^lm_head", "output"),
            (r"self_attn\.o_proj", "attention.wo"),
            (r"input_layernorm", "attention_norm"),
            (r"post_attention_layernorm", "ffn_norm"),
            (r"mlp\.gate_proj", "feed_forward.w1"),
            (r"mlp\.up_proj", "feed_forward.w3"),
            (r"mlp\.down_proj", "feed_forward.w2"),
        )

    names = ("max_position_embeddings", "rms_norm_eps", "hidden_act", "num_key_value_heads")
    config = llama_sizes(old, *names) | {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"}
    config |= {"bias": False, "rope_theta": 1000000, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    rewrite(directory, config, change)


def qwen(directory: Path, trained_length: int = 256) -> None:
    """Qwen 1 from a Qwen2 without grouping."""
    old = old_config(directory)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return renamed(
            fused(tensors, _QKV, "attn.c_attn", stacked),
            _TO_BLOCKS,
            (r"model\.embed_tokens", "transformer.wte"),
            (r"model\.norm", "transformer.ln_f"),
            (r"self_attn\.o_proj", "attn.c_proj"),
            (r"input_layernorm", "ln_1"),
            (r"post_attention_layernorm", "ln_2"),
            (r"mlp\.gate_proj", "mlp.w2"),
            (r"mlp\.up_proj", "mlp.w1"),
            (r"mlp\.down_proj", "mlp.c_proj"),
        )

    config = llama_sizes(old, "max_position_embeddings") | {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "intermediate_size": 2 * old["intermediate_size"],
        "kv_channels": old["hidden_size"] // old["num_attention_heads"],
        "layer_norm_epsilon": old["rms_norm_eps"],
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "seq_length": trained_length,
        "no_bias": True,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
    }
    rewrite(directory, config, change)


_OLMO_NAMES = (
    (r"^model\.layers\.", "model.transformer.blocks."),
    (r"^model\.norm", "model.transformer.ln_f"),
    (r"^lm_head", "model.transformer.ff_out"),
    (r"^model\.embed_tokens\.weight", "model.transformer.wte.embedding"),
)


def molmo(directory: Path) -> None:
    """Molmo from a Qwen2; 7B-O from an OLMo 2."""
    old = old_config(directory)
    is_olmo = old["model_type"] == "olmo2"
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    attention_norm, mlp_norm = norms if is_olmo else ("input_layernorm", "post_attention_layernorm")

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        joined = fused(tensors, ("mlp.up_proj", "mlp.gate_proj"), "ff_proj", stacked)
        return renamed(
            fused(joined, _QKV, "att_proj", stacked),
            *_OLMO_NAMES,
            (attention_norm, "attn_norm"),
            (mlp_norm, "ff_norm"),
            (r"self_attn\.o_proj", "attn_out"),
            (r"self_attn\.", ""),
            (r"mlp\.down_proj", "ff_out"),
        )

    config = llama_sizes(old, "max_position_embeddings", "num_key_value_heads") | {
        "architectures": ["MolmoForCausalLM"],
        "model_type": "molmo",
        "attention_layer_norm": is_olmo,
        "embedding_size": old["vocab_size"],
        "intermediate_size": 2 * old["intermediate_size"],
        "layer_norm_eps": old["rms_norm_eps"],
        "layer_norm_type": "rms",
        "norm_after": is_olmo,
        "qkv_bias": not is_olmo,
        "rope_theta": 10000.0,
        "weight_tying": False,
    }
    rewrite(directory, config, change)


def molmoe(directory: Path) -> None:
    """MolmoE from an OLMoE; its config.json has OLMo's names."""
    old = old_config(directory)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return renamed(
            fused(tensors, _QKV, "attn.att_proj", stacked),
            *_OLMO_NAMES,
            (r"input_layernorm", "attn.attn_norm"),
            (r"post_attention_layernorm", "mlp.ff_norm"),
            (r"self_attn\.o_proj", "attn.attn_out"),
            (r"self_attn\.", "attn."),
        )

    config = {
        "architectures": ["OLMoForCausalLM"],
        "model_type": "molmo",
        "attention_layer_norm": True,
        "block_type": "moe",
        "clip_qkv": None,
        "d_model": old["hidden_size"],
        "embedding_size": old["vocab_size"],
        "head_dim": None,
        "include_bias": False,
        "layer_norm_eps": old["rms_norm_eps"],
        "layer_norm_type": "rms",
        "max_position_embeddings": old["max_position_embeddings"],
        "mlp_hidden_size": 2 * old["intermediate_size"],
        "mlp_ratio": 1,
        "moe_num_experts": old["num_experts"],
        "moe_top_k": old["num_experts_per_tok"],
        "n_heads": old["num_attention_heads"],
        "n_kv_heads": old["num_key_value_heads"],
        "n_layers": old["num_hidden_layers"],
        "norm_after": False,
        "qkv_bias": False,
        "rope_theta": 10000.0,
        "weight_tying": False,
    }
    rewrite(directory, config, change)


def cogvlm(directory: Path) -> None:
    """The text part of CogVLM from a Llama, without what it has for images."""

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        return renamed(
            fused(tensors, _QKV, "self_attn.language_expert_query_key_value", stacked),
            (r"self_attn\.o_proj", "self_attn.language_expert_dense"),
            (r"\.mlp\.", ".mlp.language_mlp."),
        )

    config = llama_sizes(old_config(directory), "max_position_embeddings", "rms_norm_eps", "hidden_act")
    rewrite(directory, config | {"architectures": ["CogVLMForCausalLM"], "model_type": "cogvlm"}, change)


def baichuan(directory: Path) -> None:
    """Baichuan 7B from a Llama without grouping."""
    _baichuan(directory, {"max_position_embeddings": old_config(directory)["max_position_embeddings"]})


def baichuan_alibi(directory: Path) -> None:
    """Baichuan 13B from a Llama without grouping, which must be run with :func:`alibi_forward`."""
    _baichuan(directory, {"model_max_length": old_config(directory)["max_position_embeddings"]})


def _baichuan(directory: Path, length: dict[str, int]) -> None:
    config = llama_sizes(old_config(directory), "rms_norm_eps", "hidden_act") | length
    config |= {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan"}
    rewrite(directory, config, lambda tensors, _: fused(tensors, _QKV, "self_attn.W_pack", stacked))


def chatglm(directory: Path) -> None:
    """ChatGLM from a GLM-4 of ``transformers``."""
    old = old_config(directory)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        result = renamed(
            fused(tensors, _QKV, "self_attention.query_key_value", stacked),
            (r"^model\.layers\.", "transformer.encoder.layers."),
            (r"model\.embed_tokens", "transformer.embedding.word_embeddings"),
            (r"model\.norm", "transformer.encoder.final_layernorm"),
            (r"^lm_head", "transformer.output_layer"),
            (r"self_attn\.o_proj", "self_attention.dense"),
            (r"mlp\.gate_up_proj", "mlp.dense_h_to_4h"),
            (r"mlp\.down_proj", "mlp.dense_4h_to_h"),
        )
        return result | {"transformer.rotary_pos_emb.inv_freq": torch.ones(4)}

    config = {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "padded_vocab_size": old["vocab_size"],
        "hidden_size": old["hidden_size"],
        "ffn_hidden_size": old["intermediate_size"],
        "num_layers": old["num_hidden_layers"],
        "num_attention_heads": old["num_attention_heads"],
        "kv_channels": old["head_dim"],
        "multi_query_attention": True,
        "multi_query_group_num": old["num_key_value_heads"],
        "seq_length": old["max_position_embeddings"],
        "layernorm_epsilon": old["rms_norm_eps"],
        "rope_ratio": 50,
        "rmsnorm": True,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
    }
    rewrite(directory, config, change)


def deepseek_moe(directory: Path) -> None:
    """DeepSeek-MoE from a Qwen2-MoE whose shared experts have a gate of one half, see :func:`ungated_forward`."""
    old = old_config(directory)

    def change(tensors: Tensors, _: dict[str, Any]) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if "shared_expert_gate" not in name}
        for name in kept:
            if "shared_expert.down_proj" in name:
                kept[name] = kept[name] / 2
        return renamed(kept, (r"mlp\.shared_expert\.", "mlp.shared_experts."))

    names = ("max_position_embeddings", "rms_norm_eps", "hidden_act", "num_key_value_heads", "num_experts_per_tok")
    config = llama_sizes(old, *names, "moe_intermediate_size", "norm_topk_prob") | {
        "architectures": ["DeepseekForCausalLM"],
        "model_type": "deepseek",
        "n_routed_experts": old["num_experts"],
        "n_shared_experts": old["shared_expert_intermediate_size"] // old["moe_intermediate_size"],
        "first_k_dense_replace": len(old["mlp_only_layers"]),
        "moe_layer_freq": 1,
        "scoring_func": "softmax",
        "rope_theta": 10000.0,
    }
    rewrite(directory, config, change)


def ungated_forward(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a Qwen2-MoE whose shared experts' gates are sigmoid(0) for every token."""
    for name, parameter in model.named_parameters():
        if "shared_expert_gate" in name:
            parameter.zero_()
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


_LING = (
    (r"embed_tokens", "word_embeddings"),
    (r"self_attn\.o_proj", "attention.dense"),
    (r"self_attn\.q_norm", "attention.query_layernorm"),
    (r"self_attn\.k_norm", "attention.key_layernorm"),
    (r"e_score_correction_bias", "expert_bias"),
)


def ling(directory: Path) -> None:
    """Ling-lite from the model that :func:`deepseek_moe` is made from."""
    deepseek_moe(directory)
    _ling(directory, {"architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe"})


def ling2(directory: Path) -> None:
    """Ling 2 from a GLM-4.5 without biases."""
    old = old_config(directory)
    names = ("head_dim", "n_group", "topk_group", "routed_scaling_factor")
    config = {name: old[name] for name in names} | {"partial_rotary_factor": 0.5, "score_function": "sigmoid"}
    _ling(directory, config | {"architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2"})


def _ling(directory: Path, more: dict[str, Any]) -> None:
    old = old_config(directory)
    names = ("max_position_embeddings", "rms_norm_eps", "hidden_act", "num_key_value_heads", "num_experts_per_tok")
    config = llama_sizes(old, *names, "moe_intermediate_size", "norm_topk_prob", "first_k_dense_replace") | {
        "num_experts": old["n_routed_experts"],
        "num_shared_experts": old["n_shared_experts"],
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "norm_head": False,
    }
    joined = "attention.query_key_value"
    rewrite(directory, config | more, lambda tensors, _: renamed(fused(tensors, _QKV, joined, stacked), *_LING))


def kimi(directory: Path) -> None:
    """Kimi K2 from a DeepSeek-V3."""
    rewrite(directory, old_config(directory) | {"model_type": "kimi_k2"}, lambda tensors, _: tensors)


def mimo(directory: Path) -> None:
    """MiMo from a Qwen2."""
    config = old_config(directory) | {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    rewrite(directory, config, lambda tensors, _: tensors)


def mpt(directory: Path) -> None:
    """MPT by the name of its published architecture."""
    rewrite(directory, old_config(directory) | {"architectures": ["MPTForCausalLM"]}, lambda tensors, _: tensors)


def step(directory: Path) -> None:
    """Step 3.5: the text part of Step 3.7."""
    config = old_config(directory)["text_config"] | {"architectures": ["Step3p5ForCausalLM"]}
    rewrite(directory, config, lambda tensors, _: {name: x for name, x in tensors.items() if not name.startswith("vi")})


_STACKS = ("experts.gate_up_proj", "experts.down_proj")


def mxfp4(directory: Path) -> None:
    """GPT-OSS with random MXFP4 codes as its experts, see :func:`mxfp4_forward`."""
    config = old_config(directory) | {"quantization_config": {"quant_method": "mxfp4"}}
    tensors = load_file(directory / _WEIGHTS)
    for name in [name for name in tensors if name.endswith(_STACKS)]:
        quantized, scales = _codes(name, tensors.pop(name).shape)
        tensors |= {f"{name}_blocks": quantized, f"{name}_scales": scales}
    save_file(tensors, directory / _WEIGHTS)
    (directory / "config.json").write_text(json.dumps(config))


def mxfp4_forward(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a GPT-OSS whose experts are what ``transformers`` makes of the codes."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    for name, parameter in model.named_parameters():
        if name.endswith(_STACKS):
            parameter.copy_(convert_moe_packed_tensors(*_codes(name, parameter.shape), dtype=torch.float32))
    logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def _codes(name: str, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the codes and scales of a stack ``[experts, in, out]``, the same each time."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    experts, inputs, outputs = shape
    blocks = (experts, outputs, inputs // 32)
    quantized = torch.randint(0, 256, (*blocks, 16), generator=generator, dtype=torch.uint8)
    return quantized, torch.randint(121, 126, blocks, generator=generator, dtype=torch.uint8)


def alibi_forward(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a Llama that has ALiBi: no token is rotated, the mask holds the biases."""
    heads, length = model.config.num_attention_heads, len(ids)
    assert heads & (heads - 1) == 0
    slopes = torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)])
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    mask = (slopes[:, None, None] * distance).masked_fill(distance > 0, torch.finfo(torch.float32).min)
    positions = torch.zeros(1, length, dtype=torch.long)
    logits: Tensor = model(torch.tensor([ids]), attention_mask=mask[None], position_ids=positions).logits[0]
    return logits


def normalized_head_forward(model: Any, ids: list[int]) -> Tensor:
    """Return the logits of a Llama whose output layer has rows of length 1."""
    hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
    return hidden @ torch.nn.functional.normalize(model.lm_head.weight).T
