"""Shapes of well-known models, and the tensors of their checkpoints by the names that those are published under.

Models with many experts have fewer layers than their originals, so that they load in seconds. What a step costs follows
from the same list of tensors (``cost.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tools.bench import random_model

_AWQ_GROUP = 128


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint.

    Attributes
    ----------
    dtype
        As in safetensors' headers.
    role
        ``matrix`` and ``expert``: multiplied with rows; ``embedding``, ``norm``, ``scale``, ``zeros``: not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"
    role: str = "matrix"


@dataclass(frozen=True)
class Shape:
    """A model.

    Attributes
    ----------
    architecture, config
        Of ``config.json``.
    weights
        ``bfloat16``, ``awq`` or ``fp8`` (a scale an output).
    """

    architecture: str
    config: dict[str, Any] = field(default_factory=dict)
    weights: str = "bfloat16"

    @property
    def head_dim(self) -> int:
        """Of queries and keys of plain attention."""
        found: int = self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
        return found

    @property
    def experts(self) -> int:
        """How many a layer has; 0: none."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        return next((self.config[name] for name in names if name in self.config), 0)

    @property
    def cached_values(self) -> int:
        """Values that attention reads for each token of a context, of all layers."""
        c = self.config
        if "kv_lora_rank" in c:
            return int(c["num_hidden_layers"] * (c["kv_lora_rank"] + c["qk_rope_head_dim"]))
        return int(2 * c["num_hidden_layers"] * c["num_key_value_heads"] * self.head_dim)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the checkpoint."""
        c = self.config
        yield Tensor("model.embed_tokens.weight", (c["vocab_size"], c["hidden_size"]), role="embedding")
        yield Tensor("model.norm.weight", (c["hidden_size"],), role="norm")
        yield Tensor("lm_head.weight", (c["vocab_size"], c["hidden_size"]))
        for layer in range(c["num_hidden_layers"]):
            for tensor in self._layer(layer):
                yield from self._stored(replace(tensor, name=f"model.layers.{layer}.{tensor.name}"))

    def _layer(self, layer: int) -> Iterator[Tensor]:
        hidden = self.config["hidden_size"]
        yield Tensor("input_layernorm.weight", (hidden,), role="norm")
        yield Tensor("post_attention_layernorm.weight", (hidden,), role="norm")
        yield from self._latent_attention() if "kv_lora_rank" in self.config else self._attention()
        if self.experts and layer >= self.config.get("first_k_dense_replace", 0):
            yield from self._experts()
        else:
            yield from _mlp("mlp", hidden, self.config["intermediate_size"])

    def _attention(self) -> Iterator[Tensor]:
        c, dim = self.config, self.head_dim
        hidden, heads, kv_heads = c["hidden_size"], c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
        yield Tensor("self_attn.q_proj.weight", (heads, hidden))
        yield Tensor("self_attn.k_proj.weight", (kv_heads, hidden))
        yield Tensor("self_attn.v_proj.weight", (kv_heads, hidden))
        yield Tensor("self_attn.o_proj.weight", (hidden, heads))
        if "Qwen3" in self.architecture:
            yield Tensor("self_attn.q_norm.weight", (dim,), role="norm")
            yield Tensor("self_attn.k_norm.weight", (dim,), role="norm")

    def _latent_attention(self) -> Iterator[Tensor]:
        c = self.config
        hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
        plain, turned, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        yield Tensor("self_attn.q_proj.weight", (heads * (plain + turned), hidden))
        yield Tensor("self_attn.kv_a_proj_with_mqa.weight", (rank + turned, hidden))
        yield Tensor("self_attn.kv_a_layernorm.weight", (rank,), role="norm")
        yield Tensor("self_attn.kv_b_proj.weight", (heads * (plain + value), rank))
        yield Tensor("self_attn.o_proj.weight", (hidden, heads * value))

    def _experts(self) -> Iterator[Tensor]:
        c = self.config
        hidden = c["hidden_size"]
        if self.architecture == "MixtralForCausalLM":
            size = c["intermediate_size"]
            yield Tensor("block_sparse_moe.gate.weight", (self.experts, hidden))
            for expert in range(self.experts):
                prefix = f"block_sparse_moe.experts.{expert}"
                for name, shape in (("w1", (size, hidden)), ("w3", (size, hidden)), ("w2", (hidden, size))):
                    yield Tensor(f"{prefix}.{name}.weight", shape, role="expert")
            return
        yield Tensor("mlp.gate.weight", (self.experts, hidden))
        for expert in range(self.experts):
            for tensor in _mlp(f"mlp.experts.{expert}", hidden, c["moe_intermediate_size"]):
                yield replace(tensor, role="expert")
        if shared := c.get("n_shared_experts", 0):
            yield from _mlp("mlp.shared_experts", hidden, shared * c["moe_intermediate_size"])

    def _stored(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield what a tensor of a layer is stored as."""
        if tensor.role not in ("matrix", "expert") or self.weights == "bfloat16":
            yield tensor
            return
        outputs, inputs = tensor.shape
        if self.weights == "fp8":
            yield replace(tensor, dtype="F8_E4M3")
            yield Tensor(f"{tensor.name}_scale", (outputs, 1), "F32", "scale")
            return
        layer = tensor.name.removesuffix(".weight")
        yield Tensor(f"{layer}.qweight", (inputs, outputs // 8), "I32", tensor.role)
        yield Tensor(f"{layer}.qzeros", (inputs // _AWQ_GROUP, outputs // 8), "I32", "zeros")
        yield Tensor(f"{layer}.scales", (inputs // _AWQ_GROUP, outputs), "F16", "scale")

    def quantization(self) -> dict[str, Any] | None:
        """Return ``quantization_config``, as AutoAWQ and llm-compressor write it."""
        if self.weights == "awq":
            return {
                "quant_method": "awq", "bits": 4, "group_size": _AWQ_GROUP, "version": "gemm", "zero_point": True,
                "modules_to_not_convert": None,
            }  # fmt: skip
        if self.weights == "fp8":
            numbers = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None}
            weights = numbers | {"strategy": "channel", "dynamic": False}
            inputs = numbers | {"strategy": "token", "dynamic": True}
            group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
            return {
                "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
                "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
            }  # fmt: skip
        return None


def _mlp(prefix: str, hidden: int, size: int) -> Iterator[Tensor]:
    yield Tensor(f"{prefix}.gate_proj.weight", (size, hidden))
    yield Tensor(f"{prefix}.up_proj.weight", (size, hidden))
    yield Tensor(f"{prefix}.down_proj.weight", (hidden, size))


_COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_LLAMA_8B = _COMMON | {"model_type": "llama"} | random_model.SHAPES["llama-3.1-8b"][1]
SHAPES = {
    "llama-8b": Shape("LlamaForCausalLM", _LLAMA_8B),
    "awq-8b": Shape("LlamaForCausalLM", _LLAMA_8B, "awq"),
    "fp8-8b": Shape("LlamaForCausalLM", _LLAMA_8B, "fp8"),
    "mixtral": Shape(
        "MixtralForCausalLM",
        _COMMON
        | {
            "model_type": "mixtral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 6,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    ),
    "qwen3-moe": Shape(
        "Qwen3MoeForCausalLM",
        _COMMON
        | {
            "model_type": "qwen3_moe",
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        },
    ),
    "deepseek": Shape(
        "DeepseekV2ForCausalLM",
        _COMMON
        | {
            "model_type": "deepseek_v2",
            "vocab_size": 102400,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "scoring_func": "softmax",
        },
    ),
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


def shortened(shape: Shape, layers: int) -> Shape:
    """Return a shape of this many layers."""
    return replace(shape, config=shape.config | {"num_hidden_layers": layers})


def tiny(shape: Shape) -> Shape:
    """Return a shape with everything small, for the emulation."""
    return replace(shape, config=shape.config | {name: size for name, size in _TINY.items() if name in shape.config})
