"""MPT: ALiBi, LayerNorm without bias, one matrix for q, k and v, a plain MLP."""

from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import alibi_slopes
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    mha, heads = config.attn_config, config.num_attention_heads
    if isinstance(mha, dict):  # of a GGUF file
        mha = SimpleNamespace(**mha)
    reject_unless(mha.alibi, "attention without alibi")
    reject_unless(not mha.qk_ln, "qk_ln")
    reject_unless(mha.alibi_bias_max == 8, f"alibi_bias_max {mha.alibi_bias_max}")
    config.max_position_embeddings = config.max_seq_len
    fields = {"scale": mha.softmax_scale} if mha.softmax_scale else {}
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=4 * config.hidden_size,
        num_kv_heads=heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer"),
        mlp=MlpSpec("gelu", is_gated=False),
        attention=attention_spec(config, qkv_clip=float(mha.clip_qkv or 0), alibi_slopes=alibi_slopes(heads), **fields),
        ropes=(),
    )


LAYOUT = Layout(
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    attention_norm="norm_1",
    mlp_norm="norm_2",
    qkv="attn.Wqkv",
    o="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)
FAMILY = Family(
    ("MptForCausalLM", "MPTForCausalLM"),  # the second as it is published
    spec,
    LAYOUT.tensors,
    sizes=("vocab_size", "d_model", "n_layers", "n_heads"),
)
