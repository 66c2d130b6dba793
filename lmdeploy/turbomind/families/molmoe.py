"""MolmoE: OLMoE in the names of its authors' code, with norms over all queries and over all keys of a token."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.molmo import EMBEDDING, qk_norm_of, refuse_what_differs
from lmdeploy.turbomind.families.rope import plain_rope
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec, NormSpec

LAYOUT = Layout(
    final_norm="model.transformer.ln_f",
    lm_head="model.transformer.ff_out",
    layer="model.transformer.blocks.{}.",
    attention_norm="attn.attn_norm",
    mlp_norm="mlp.ff_norm",
    qkv="attn.att_proj",
    q_norm="attn.q_norm",
    k_norm="attn.k_norm",
    o="attn.attn_out",
)


def read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    inner = raw.get("mlp_hidden_size") or raw["mlp_ratio"] * raw["d_model"]
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=inner // 2,  # of gate and up together
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        num_key_value_heads=raw.get("n_kv_heads") or raw["n_heads"],
        head_dim=raw.get("head_dim"),
        max_position_embeddings=raw.get("max_position_embeddings") or raw["max_sequence_length"],
        tie_word_embeddings=raw.get("weight_tying", False),
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    raw = config.raw
    refuse_unless(raw.get("model_type") == "molmo", "OLMo in its first layout (use allenai/OLMo-7B-hf, or OLMo 2)")
    refuse_what_differs(raw)
    refuse_unless(not raw.get("norm_after"), "MolmoE with norm_after")
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layer_norm_eps"]),
        mlp=MlpSpec("silu"),
        attention=attention_spec(config, qkv_bias=bool(raw.get("qkv_bias")), qk_norm=qk_norm_of(raw)),
        ropes=(plain_rope(raw["rope_theta"], config.hidden_size // config.num_attention_heads),),
        moe=MoeSpec(
            num_experts=raw["moe_num_experts"],
            experts_per_token=raw["moe_top_k"],
            intermediate_size=config.intermediate_size,
        ),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    engine = LAYOUT.tensors(spec)
    return engine | {"token_embedding": Load(EMBEDDING, (spec.vocab_size, spec.hidden_size))}


FAMILY = Family(
    ("OLMoForCausalLM",),
    spec,
    tensors,
    config=read_config,
    sizes=("vocab_size", "d_model", "n_layers", "n_heads", "moe_num_experts", "moe_top_k"),
)
