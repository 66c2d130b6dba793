"""EXAONE 3 to 4 and K-EXAONE."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, llama_config
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.olmo import OLMO2_LAYOUT
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec


# EXAONE 3 and 3.5: Llama with its own names, published with their own code.
def exaone_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's."""
    names = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    act = raw.get("activation_function", "silu")
    return llama_config(raw, hidden_act=act, **{name: raw[name_there] for name, name_there in names.items()})


EXAONE_LAYOUT = Layout(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    o="attn.attention.out_proj",
    gate="mlp.c_fc_0",
    up="mlp.c_fc_1",
    down="mlp.c_proj",
)
EXAONE_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_attention_heads", "intermediate_size")
EXAONE = Family(("ExaoneForCausalLM",), decoder_spec, EXAONE_LAYOUT.tensors, config=exaone_config, sizes=EXAONE_SIZES)


# EXAONE 4: OLMo 2's norms after attention and MLP alone; where layers have windows, the others do not rotate.
def exaone4_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    rotates = [config.sliding_window is None or kind == "sliding_attention" for kind in config.layer_types]
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qk_norm="head"),
        layer_ropes=tuple(0 if rotates_layer else -1 for rotates_layer in rotates),
        **({"block": BlockSpec(has_input_norms=False, has_output_norms=True)} | fields),
    )


EXAONE4 = Family(("Exaone4ForCausalLM",), exaone4_spec, OLMO2_LAYOUT.tensors)


# K-EXAONE: EXAONE 4's attention between norms in front, and experts chosen as in DeepSeek-V3.
def exaone_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return exaone4_spec(config, checkpoint, block=BlockSpec(), moe=moe_spec(config, corrected_router(config)))


_EXPERTS = ExpertNames(correction="mlp.e_score_correction_bias")
EXAONE_MOE = Family(("ExaoneMoeForCausalLM",), exaone_moe_spec, Layout(experts=_EXPERTS.tensors).tensors)
