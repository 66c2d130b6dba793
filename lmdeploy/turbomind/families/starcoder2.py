"""StarCoder2: LayerNorm, a plain MLP, biases, a sliding window in every layer."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bias = config.use_bias
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.norm_epsilon, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=bias),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
    )


FAMILY = Family(("Starcoder2ForCausalLM",), spec, Layout(up="mlp.c_fc", down="mlp.c_proj").tensors)
