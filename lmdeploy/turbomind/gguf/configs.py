"""config.json from the metadata of a GGUF file.

What a key means: github.com/ggml-org/ggml, docs/gguf.md. What metadata do not contain and llama.cpp hard-codes
(``src/llama-model.cpp``, ``load_hparams``) is said where it is filled in.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.gguf.metadata import Metadata

# Of architectures that also have models without.
_WITHOUT_EXPERTS = (
    "llama arcee granite xverse qwen2 qwen3 gemma gemma2 gemma3_text phi3 falcon starcoder2 cohere".split()
)
FULL, SLIDING = "full_attention", "sliding_attention"


def common(metadata: Metadata, model_type: str, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """Return the fields of all architectures, and of most; missing sizes are None.

    Raises `UnsupportedModelError` for unknown rotary scalings, and mixtures of experts of architectures that are
    read without, and `ValueError` if there is no context length or no epsilon of norms.
    """
    if metadata.get("expert_count") and model_type in _WITHOUT_EXPERTS:
        raise UnsupportedModelError(
            f"GGUF files of mixtures of experts of architecture {metadata.architecture} are not read: take the model "
            "as safetensors"
        )
    stored_eps = "layer_norm_rms_epsilon" if eps == "rms_norm_eps" else "layer_norm_epsilon"
    rope, heads = _rope(metadata), metadata.of_all_layers("attention.head_count")
    trained = "original_max_position_embeddings"  # Phi-3's config has it outside, too
    return {
        "model_type": model_type,
        "vocab_size": metadata.vocab_size,
        "hidden_size": metadata.get("embedding_length"),
        "intermediate_size": metadata.of_all_layers("feed_forward_length"),
        "num_hidden_layers": metadata.layer_count,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.of_all_layers("attention.head_count_kv", heads),
        "head_dim": metadata.head_dim,
        "max_position_embeddings": metadata.need("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_parameters": rope,
        **({trained: rope[trained]} if rope["rope_type"] == "longrope" else {}),
        **(_experts(metadata) if metadata.get("expert_count") else {}),
        "hidden_act": "silu",
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        eps: metadata.need(f"attention.{stored_eps}"),
    }


def _experts(metadata: Metadata) -> dict[str, Any]:
    """Return the number of experts in all names that it has, and how many a token goes to."""
    names = dict.fromkeys(("num_experts", "num_local_experts"), metadata.need("expert_count"))
    return names | {"num_experts_per_tok": metadata.need("expert_used_count")}


def _rope(metadata: Metadata) -> dict[str, Any]:
    kind = metadata.get("rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 10000.0)}
    rope |= partial_rotation(metadata)
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear")) or 1.0
    if factors := _long_factors(metadata):
        return rope | factors
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return rope | ({} if factor == 1.0 else {"rope_type": "linear", "factor": factor})
    if kind not in {"linear", "yarn"}:
        raise UnsupportedModelError(
            f"rotary embeddings of GGUF's scaling type {kind!r} without tensors of factors are not supported"
        )
    return rope | {"rope_type": kind, "factor": factor} | (_yarn(metadata) if kind == "yarn" else {})


def _yarn(metadata: Metadata) -> dict[str, Any]:
    """Return YaRN's numbers as published configs name them."""
    names = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attn_factor"}
    given = {name: metadata.get(f"rope.scaling.yarn_{key}") for name, key in names.items()}
    if factor := metadata.get("rope.scaling.yarn_log_multiplier"):
        given |= {"mscale": 1.0, "mscale_all_dim": factor}
    trained = metadata.get("rope.scaling.original_context_length", metadata.get("context_length"))
    return {name: value for name, value in given.items() if value} | {"original_max_position_embeddings": trained}


def _long_factors(metadata: Metadata) -> dict[str, Any]:
    """Return longrope's factors, which are tensors; empty where a file has none."""
    longer, shorter = (metadata.numbers.get(f"rope_factors_{length}.weight") for length in ("long", "short"))
    if not longer or not shorter:
        return {}
    trained = metadata.get("rope.scaling.original_context_length", metadata.get("context_length"))
    rope = {"rope_type": "longrope", "long_factor": longer, "short_factor": shorter}
    scaling = metadata.get("rope.scaling.attn_factor")  # of cos and sin
    rope |= {"original_max_position_embeddings": trained}
    return rope if scaling is None else rope | {"attention_factor": scaling}


def partial_rotation(metadata: Metadata) -> dict[str, float]:
    """Return the part of a head that turns, where it is not all of it.

    Raises `ValueError` if more than a head shall turn.
    """
    head_dim, turning = metadata.head_dim, metadata.get("rope.dimension_count")
    if not head_dim or type(turning) is not int or turning == head_dim:
        return {}
    if turning > head_dim or turning % 2:
        raise ValueError(
            f"{metadata.architecture}.rope.dimension_count must be an even number <= {head_dim}, the size of a head, "
            f"got {turning}"
        )
    return {"partial_rotary_factor": turning / head_dim}


Config = Callable[[Metadata], dict[str, Any]]
# Functions of the metadata: the value of a key, which must be there or need not, and whether there is a tensor.
need, get, has = partial(methodcaller, "need"), partial(methodcaller, "get"), partial(methodcaller, "has")


def lacks(tensor: str) -> Callable[[Metadata], bool]:
    """Return the function that tells whether there is no such tensor."""
    return lambda metadata: not metadata.has(tensor)


def joined(*configs: Config, **fields: Any) -> Config:
    """Return the reader of the fields of configs, the later in place of the earlier, and of others.

    ``fields``: values, or functions from the metadata to these.
    """

    def config(metadata: Metadata) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in configs:
            found |= part(metadata)
        return found | {name: value(metadata) if callable(value) else value for name, value in fields.items()}

    return config


def plain(model_type: str, *parts: Config, eps: str = "rms_norm_eps", **fields: Any) -> Config:
    """Return the reader of an architecture's config: the fields that most have, those of parts, and others."""
    return joined(partial(common, model_type=model_type, eps=eps), *parts, **fields)


def window(metadata: Metadata) -> int | None:
    """Return the tokens of a window; None: there are none."""
    return metadata.get("attention.sliding_window") or None


def windows(period: int) -> Callable[[Metadata], list[str]]:
    """Return the reader of layers' kinds: as the file lists them, or the last of ``period`` sees everything."""

    def kinds(metadata: Metadata) -> list[str]:
        given = metadata.get("attention.sliding_window_pattern", period)
        layers = range(metadata.layer_count or 0)
        if isinstance(given, list):
            return [SLIDING if is_sliding else FULL for is_sliding in given[: len(layers)]]
        return [SLIDING if given and (layer + 1) % given else FULL for layer in layers]

    return kinds


def expert_size(metadata: Metadata) -> Any:
    """Return the intermediate size of an expert: what the metadata say, or that of its tensors.

    Raises `ValueError` if the metadata name no experts.
    """
    metadata.need("expert_count")
    first = next((t for name, t in metadata.tensors.items() if name.endswith(".ffn_up_exps.weight")), None)
    return metadata.get("expert_feed_forward_length", first.shape[1] if first else None)


def shared_size(metadata: Metadata) -> int:
    """Return the intermediate size of what every token goes to; 0: there is no such thing."""
    first = next((t for name, t in metadata.tensors.items() if name.endswith(".ffn_up_shexp.weight")), None)
    return first.shape[0] if first else 0


def padding(metadata: Metadata) -> Any:
    """Return the token that fills up texts."""
    return metadata.values.get("tokenizer.ggml.padding_token_id")


squared = joined(hidden_act="relu2", mlp_bias=has("blk.0.ffn_up.bias"))  # an MLP of squared ReLU
llama = plain("llama", mlp_bias=has("blk.0.ffn_down.bias"))  # and Mistral, whose files name the same architecture

# EXAONE 3 and 3.5, also in the names of its published config.
exaone = joined(
    llama,
    model_type="exaone",
    activation_function="silu",
    num_layers=attrgetter("layer_count"),
    layer_norm_epsilon=need("attention.layer_norm_rms_epsilon"),
)


def deci(metadata: Metadata) -> dict[str, Any]:
    """Llama-Nemotron Super, as `lmdeploy.turbomind.families.nemotron` reads the published config."""
    keys = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    values, layers = map(metadata.need, keys), metadata.layer_count or 0
    heads, kv_heads, sizes = (value if isinstance(value, list) else [value] * layers for value in values)
    if linear := [layer for layer in range(layers) if heads[layer] and not kv_heads[layer]]:
        raise UnsupportedModelError(f"layers {linear} have a matrix in place of attention, which is not supported")
    return llama(metadata) | {
        "model_type": "nemotron-nas",
        "num_attention_heads": max(heads),
        "num_key_value_heads": max(kv_heads),
        "intermediate_size": max(sizes),
        "layer_kv_heads": kv_heads,
        "layer_sizes": sizes,
        "mlp_bias": False,
    }


def mistral3(metadata: Metadata) -> dict[str, Any]:
    """Ministral 3 and Devstral Small 2: queries grow with their position."""
    fields = llama(metadata) | {"model_type": "ministral3"}
    if beta := metadata.get("attention.temperature_scale"):
        fields["rope_parameters"] |= {"llama_4_scaling_beta": beta}
    return fields


def with_axes(config: Config) -> Config:
    """Return the reader of the config of a model whose tokens of images have positions of three axes."""

    def whole(metadata: Metadata) -> dict[str, Any]:
        fields = config(metadata)
        fields["rope_parameters"]["mrope_section"] = metadata.need("rope.dimension_sections")[:3]
        return fields

    return whole


qwen2 = plain("qwen2", use_sliding_window=False)
# Experts of Qwen, which all layers have.
qwen_experts = joined(
    use_sliding_window=False,
    decoder_sparse_step=1,
    mlp_only_layers=(),
    num_experts=need("expert_count"),
    moe_intermediate_size=expert_size,
    norm_topk_prob=True,
)
# Qwen1.5-MoE and Qwen2-MoE: weights of chosen experts are left as they are.
qwen2moe = plain(
    "qwen2_moe",
    qwen_experts,
    norm_topk_prob=False,
    qkv_bias=has("blk.0.attn_q.bias"),
    shared_expert_intermediate_size=shared_size,
)


def _gemma_scale(layers_of_27b: int) -> Callable[[Metadata], Any]:
    """Return the reader of the size whose root scores are divided by: of the 27B models it is not that of a head."""

    def scale(metadata: Metadata) -> Any:
        hidden, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
        if metadata.get("block_count") == layers_of_27b and type(hidden) is int and type(heads) is int and heads > 0:
            return hidden / heads
        return metadata.head_dim

    return scale


# Gemma 2: every other layer has a window, the first one among them.
gemma2 = plain(
    "gemma2",
    hidden_activation="gelu_pytorch_tanh",
    query_pre_attn_scalar=_gemma_scale(46),
    attn_logit_softcapping=get("attn_logit_softcapping", 50.0),
    final_logit_softcapping=get("final_logit_softcapping", 30.0),
    sliding_window=get("attention.sliding_window", 4096),
    layer_types=windows(2),
)


def gemma3(metadata: Metadata) -> dict[str, Any]:
    """Gemma 3 (text): every sixth layer sees everything, the others turn with a base of 10,000 and have a window."""
    fields = common(metadata, "gemma3_text")
    whole = fields["rope_parameters"]
    if metadata.get("rope.freq_base") is None:
        whole["rope_theta"] = 1e6
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10000.0)}
    return fields | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _gemma_scale(62)(metadata),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.get("attention.sliding_window", 1024),
        "layer_types": windows(6)(metadata),
        "rope_parameters": {FULL: whole, SLIDING: local},
    }


def falcon(metadata: Metadata) -> dict[str, Any]:
    """Falcon 7B, 11B, 40B: which it is, the number of key/value heads and norms show."""
    fields = common(metadata, "falcon", "layer_norm_epsilon")
    del fields["head_dim"]  # the hidden size's share
    kv_heads = fields["num_key_value_heads"]
    is_new = kv_heads != 1
    return fields | {
        "ffn_hidden_size": metadata.get("feed_forward_length"),
        "activation": "gelu",
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if metadata.has("blk.0.attn_norm_2.weight") else 1,
        "multi_query": not is_new,
        "parallel_attn": True,
        "bias": metadata.has("blk.0.attn_qkv.bias"),
        "alibi": False,
    }


def minicpm(metadata: Metadata) -> dict[str, Any]:
    """MiniCPM, in the names of its published config; factors that older files lack are those of its 2B."""
    fields, layers = common(metadata, "minicpm"), metadata.layer_count or 1
    hidden = fields["hidden_size"]
    logits = metadata.get("logit_scale", hidden / 256)
    return fields | {
        "scale_emb": metadata.get("embedding_scale", 12.0),
        "scale_depth": metadata.get("residual_scale", 1.4 / layers**0.5) * layers**0.5,
        "dim_model_base": hidden / logits,
    }


def with_windows(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of models whose layers with a window rotate without YaRN."""
    whole = _rope(metadata)
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", whole["rope_theta"])}
    return {
        "sliding_window": metadata.get("attention.sliding_window"),
        "layer_types": windows(4)(metadata),
        "rope_parameters": {FULL: whole, SLIDING: local},
    }


def exaone4(metadata: Metadata) -> dict[str, Any]:
    """EXAONE 4: 1.2B, whose layers all see and rotate everything, and 32B."""
    size = window(metadata)
    kinds = windows(4)(metadata) if size else [FULL] * (metadata.layer_count or 0)
    return common(metadata, "exaone4") | {"sliding_window": size, "layer_types": kinds}


ernie4_5 = plain("ernie4_5", use_bias=has("blk.0.attn_q.bias"))  # without experts


def muse_glimmer(metadata: Metadata) -> dict[str, Any]:
    """Muse Glimmer's text part: layers with a window rotate alone; norms of queries have the factor of scores."""
    fields, kinds = common(metadata, "muse_glimmer_text"), windows(4)(metadata)
    base = fields["rope_parameters"]["rope_theta"]
    return fields | {
        "hidden_activation": "silu",
        "qk_scale_factor": 1.0,
        "post_norm_eps": 1e-8,
        "output_multiplier": metadata.need("logit_scale"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": kinds,
        "layer_rope_theta": [base if kind == SLIDING else 0 for kind in kinds],
    }


command_r = plain(
    "cohere", eps="layer_norm_eps", use_qk_norm=has("blk.0.attn_q_norm.weight"), logit_scale=need("logit_scale")
)
# Command R7B and A: the last of four layers sees everything and does not rotate.
cohere2 = joined(
    command_r, model_type="cohere2", sliding_window=need("attention.sliding_window"), layer_types=windows(4)
)
stablelm = plain(
    "stablelm",
    eps="layer_norm_eps",
    use_qkv_bias=has("blk.0.attn_q.bias"),
    qk_layernorm=has("blk.0.attn_q_norm.weight"),
    use_parallel_residual=lacks("blk.0.ffn_norm.weight"),
)
# Factors of Granite's models.
multipliers = joined(
    attention_multiplier=lambda metadata: metadata.get("attention.scale") or (metadata.head_dim or 1) ** -0.5,
    embedding_multiplier=get("embedding_scale", 1.0),
    residual_multiplier=get("residual_scale", 1.0),
    logits_scaling=get("logit_scale", 1.0),
)
# SmolLM3: the last of four layers does not rotate.
smollm3 = joined(
    llama,
    model_type="smollm3",
    no_rope_layers=lambda metadata: [int(bool((layer + 1) % 4)) for layer in range(metadata.layer_count or 0)],
)
# GPT-NeoX, Pythia, Dolly.
gptneox = plain(
    "gpt_neox",
    eps="layer_norm_eps",
    hidden_act="gelu",
    attention_bias=has("blk.0.attn_qkv.bias"),
    use_parallel_residual=get("use_parallel_residual", True),
)


def gpt2(metadata: Metadata) -> dict[str, Any]:
    """GPT-2, and StarCoder 1, which has one key/value head."""
    fields = common(metadata, "gpt2", "layer_norm_epsilon")
    positions = metadata.tensors.get("position_embd.weight")
    return fields | {
        "n_embd": fields["hidden_size"],
        "n_layer": fields["num_hidden_layers"],
        "n_head": fields["num_attention_heads"],
        "n_inner": fields["intermediate_size"],
        "max_position_embeddings": positions.shape[0] if positions else fields["max_position_embeddings"],
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "multi_query": fields["num_key_value_heads"] == 1,
    }


def mpt(metadata: Metadata) -> dict[str, Any]:
    """MPT."""
    fields = common(metadata, "mpt", "layer_norm_epsilon")
    bias = metadata.get("attention.max_alibi_bias", 0.0)
    return fields | {
        "d_model": fields["hidden_size"],
        "n_heads": fields["num_attention_heads"],
        "n_layers": fields["num_hidden_layers"],
        "max_seq_len": fields["max_position_embeddings"],
        "attn_config": {
            "alibi": bias > 0,
            "alibi_bias_max": int(bias),
            "clip_qkv": metadata.get("attention.clamp_kqv"),
            "qk_ln": False,
            "softmax_scale": None,
        },
    }


def xielu(metadata: Metadata) -> dict[str, list[float]]:
    """Return the learned numbers of Apertus's activation, by layer, as the tensors that they are published as."""
    found: dict[str, list[float]] = {}
    for name in ("alpha_p", "alpha_n", "beta"):
        key = f"xielu.{name}"  # without the name of the architecture
        numbers = metadata.values.get(key)
        if numbers is None:
            raise ValueError(f"its metadata lack {key}")
        for layer in range(metadata.layer_count or 0):
            found[f"blk.{layer}.xielu.{name}"] = [numbers[layer] if isinstance(numbers, list) else numbers]
    return found


# Qwen 1, in the names of its published config; what it does beyond its trained length is not in the file.
qwen = joined(
    model_type="qwen",
    vocab_size=attrgetter("vocab_size"),
    hidden_size=need("embedding_length"),
    intermediate_size=need("feed_forward_length"),
    num_hidden_layers=attrgetter("layer_count"),
    num_attention_heads=need("attention.head_count"),
    kv_channels=lambda metadata: metadata.need("embedding_length") // metadata.need("attention.head_count"),
    max_position_embeddings=need("context_length"),
    seq_length=need("context_length"),
    layer_norm_epsilon=lambda metadata: metadata.get(
        "attention.layer_norm_rms_epsilon", metadata.get("attention.layer_norm_epsilon")
    ),
    rotary_emb_base=get("rope.freq_base", 10000.0),
    tie_word_embeddings=lacks("output.weight"),
)
