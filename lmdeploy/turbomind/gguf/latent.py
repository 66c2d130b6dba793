"""Latent attention in GGUF files, where the projections out of the latent are apart, that of keys transposed."""

from lmdeploy.turbomind.manifest import Expression, Load, concat, permute, reshape
from lmdeploy.turbomind.spec import ModelSpec


def latent_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the latent attention of a layer whose tensors begin with ``prefix``."""
    mla, heads, hidden = spec.attention.mla, spec.num_heads, spec.hidden_size
    assert mla is not None
    queries = heads * (mla.nope_dim + mla.rope_dim)

    def load(name: str, *shape: int) -> Expression:
        return Load(f"{prefix}{name}.weight", shape)

    keys = permute(load("attn_k_b", heads, mla.kv_rank, mla.nope_dim), 2, 0, 1)
    values = permute(load("attn_v_b", heads, mla.value_dim, mla.kv_rank), 1, 0, 2)
    both = permute(concat(keys, values), 1, 0, 2)
    engine = {
        "kv_down": load("attn_kv_a_mqa", mla.kv_rank + mla.rope_dim, hidden),
        "kv_down_norm": load("attn_kv_a_norm", mla.kv_rank),
        "kv_up": reshape(both, heads * (mla.nope_dim + mla.value_dim), mla.kv_rank),
        "o": load("attn_output", hidden, heads * mla.value_dim),
    }
    if mla.q_rank:
        engine |= {
            "q_down": load("attn_q_a", mla.q_rank, hidden),
            "q_down_norm": load("attn_q_a_norm", mla.q_rank),
            "q_up": load("attn_q_b", queries, mla.q_rank),
        }
    else:
        engine["q"] = load("attn_q", queries, hidden)
    return {f"attention.{name}.weight": expression for name, expression in engine.items()}
