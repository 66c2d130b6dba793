"""RecurrentGemma (Griffin): real-gated linear recurrent units, and attention to a window in some layers."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.gated_delta import MIXERS, recurrence_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, permute, reshape
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec, OutputSpec, RecurrenceSpec

_TRAINED = 8192  # tokens of a text that it was trained with, which configs do not say


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; embeddings are scaled by a factor rounded to bfloat16."""
    import torch

    config.max_position_embeddings = getattr(config, "max_position_embeddings", _TRAINED)
    heads, kinds = config.num_attention_heads, config.layers_block_type
    windows = tuple(config.attention_window_size if kind == "sliding_attention" else 0 for kind in kinds)
    unit = RecurrenceSpec(
        "rg_lru",
        num_heads=heads,
        num_key_heads=heads,
        key_dim=1,
        value_dim=config.lru_width // heads,
        conv_kernel=config.conv1d_width,
        conv_bias=True,
        bias=True,
        norm="none",
        gate=activation_of(config.hidden_activation),
    )
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.intermediate_size // 2,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        mlp=MlpSpec(activation_of(config.hidden_activation), bias=True),
        attention=attention_spec(config, windows=windows, qkv_bias=config.attention_bias, o_bias=True),
        layer_mixers=tuple(MIXERS.get(kind, "attention") for kind in kinds),
        recurrence=unit if "linear_attention" in kinds else None,
        output=OutputSpec(softcap=config.logits_soft_cap or 0.0),
        embedding_scale=torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16).item(),
    )


def recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a recurrent unit, the gates' matrices as ``[out, in]`` of each head."""
    unit = recurrence_of(spec)
    heads, size, width = unit.num_heads, unit.value_dim, unit.num_heads * unit.value_dim
    prefix += "temporal_block."
    engine: dict[str, Expression] = {
        "recurrence.conv": reshape(
            Load(f"{prefix}conv_1d.weight", (width, 1, unit.conv_kernel)), width, unit.conv_kernel
        ),
        "recurrence.conv_bias": Load(f"{prefix}conv_1d.bias", (width,)),
        "recurrence.rates": Load(f"{prefix}rg_lru.recurrent_param", (width,)),
        "recurrence.out.weight": Load(f"{prefix}linear_out.weight", (spec.hidden_size, width)),
        "recurrence.out.bias": Load(f"{prefix}linear_out.bias", (spec.hidden_size,)),
    }
    for part, *shape in (("weight", width, spec.hidden_size), ("bias", width)):
        engine[f"recurrence.in.{part}"] = concat(*(Load(f"{prefix}linear_{x}.{part}", tuple(shape)) for x in "xy"))
    for name, source in (("input_gate", "input"), ("decay_gate", "recurrent")):
        stored = f"{prefix}rg_lru.{source}_gate_"
        turned = permute(Load(f"{stored}weight", (heads, size, size)), 0, 2, 1)
        engine[f"recurrence.{name}.weight"] = reshape(turned, width, size)
        engine[f"recurrence.{name}.bias"] = reshape(Load(f"{stored}bias", (heads, size)), width)
    return engine


LAYOUT = Layout(
    final_norm="model.final_norm",
    attention_norm="temporal_pre_norm",
    mlp_norm="channel_pre_norm",
    q="temporal_block.q_proj",
    k="temporal_block.k_proj",
    v="temporal_block.v_proj",
    o="temporal_block.o_proj",
    gate="mlp_block.gate_proj",
    up="mlp_block.up_proj",
    down="mlp_block.down_proj",
    recurrence=recurrence,
)
FAMILY = Family(("RecurrentGemmaForCausalLM",), spec, LAYOUT.tensors)
