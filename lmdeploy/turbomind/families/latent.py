"""Multi-head latent attention: its spec out of a DeepSeek-like config, and where checkpoints keep its tensors."""

import math
from typing import Any

from lmdeploy.turbomind.families.common import reject_unless
from lmdeploy.turbomind.manifest import Expression, Load, repeated_rows
from lmdeploy.turbomind.spec import AttentionSpec, MlaSpec, ModelSpec

_NORM_EPS = 1e-6  # of the norms of the latents, whatever the config says of the others


def latent_attention(config: Any, *, has_gate: bool = False) -> AttentionSpec:
    """Return the attention of a config with ``kv_lora_rank``, ``qk_nope_head_dim``, ...

    With YaRN the scores grow by the square of its factor of magnitude for all dimensions, ``mscale_all_dim``.
    """
    reject_unless(not config.attention_bias, "attention_bias with latent attention")
    mla = MlaSpec(
        kv_rank=config.kv_lora_rank,
        q_rank=config.q_lora_rank or 0,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        norm_eps=_NORM_EPS,
        has_gate=has_gate,
    )
    parameters = config.rope_parameters or {}
    factor, all_dim = parameters.get("factor") or 1.0, parameters.get("mscale_all_dim") or 0.0
    magnitude = 1.0
    if parameters.get("rope_type", "default") != "default" and factor > 1:
        magnitude += 0.1 * all_dim * math.log(factor)
    return AttentionSpec(scale=(mla.nope_dim + mla.rope_dim) ** -0.5 * magnitude**2, mla=mla)


def latent_tensors(
    spec: ModelSpec, prefix: str, names: str = "self_attn.", o: str = "o_proj", gate: str = "", *, by_head: bool = False
) -> dict[str, Expression]:
    """Return the latent attention of a layer whose tensors begin with ``prefix``, and then ``names``.

    ``gate``: the matrix for the gate of what attention gives, if any; ``by_head``: it has one row a head.
    """
    mla = spec.attention.mla
    if mla is None:
        raise ValueError(f"{spec.architecture} has no latent attention")
    attention, hidden = prefix + names, spec.hidden_size
    queries = spec.num_heads * (mla.nope_dim + mla.rope_dim)
    matrices = {
        "kv_down": ("kv_a_proj_with_mqa", (mla.kv_rank + mla.rope_dim, hidden)),
        "kv_down_norm": ("kv_a_layernorm", (mla.kv_rank,)),
        "kv_up": ("kv_b_proj", (spec.num_heads * (mla.nope_dim + mla.value_dim), mla.kv_rank)),
        "o": (o, (hidden, spec.num_heads * mla.value_dim)),
    }
    if mla.q_rank:
        matrices |= {
            "q_down": ("q_a_proj", (mla.q_rank, hidden)),
            "q_down_norm": ("q_a_layernorm", (mla.q_rank,)),
            "q_up": ("q_b_proj", (queries, mla.q_rank)),
        }
    else:
        matrices["q"] = ("q_proj", (queries, hidden))
    if gate:
        matrices["gate"] = (gate, (spec.num_heads * (1 if by_head else mla.value_dim), hidden))
    engine: dict[str, Expression] = {
        f"attention.{name}.weight": Load(f"{attention}{key}.weight", shape) for name, (key, shape) in matrices.items()
    }
    if by_head:
        engine["attention.gate.weight"] = repeated_rows(engine["attention.gate.weight"], mla.value_dim)
    return engine
