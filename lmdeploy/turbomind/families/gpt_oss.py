"""GPT-OSS: attention sinks, a window in every other layer, and stacked experts with biases, laid out as [in, out]."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.experts import expert_of, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mistral import moe_spec
from lmdeploy.turbomind.manifest import Expression, Load, permute, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    alpha, limit = getattr(config, "swiglu_alpha", 1.702), getattr(config, "swiglu_limit", 7.0)
    reject_unless((alpha, limit) == (1.702, 7.0), f"swiglu_alpha {alpha} with swiglu_limit {limit}")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec("clamped_swiglu", bias=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, has_sinks=True),
        moe=moe_spec(config, RouterSpec(normalizes=True, bias=True)),
    )


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer; their gates and ups alternate."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    router, stack = prefix + "mlp.router", prefix + "mlp.experts."
    gate_up = Load(stack + "gate_up_proj", (count, hidden, 2 * size))
    gate_up_bias = Load(stack + "gate_up_proj_bias", (count, 2 * size))
    down = Load(stack + "down_proj", (count, size, hidden))
    down_bias = Load(stack + "down_proj_bias", (count, hidden))
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(f"{router}.weight", (count, hidden)),
        "moe.router.bias": Load(f"{router}.bias", (count,)),
    }
    for e in range(count):
        turns = reshape(rows_of(gate_up, e, e + 1), hidden, size, 2)
        bias_turns = reshape(rows_of(gate_up_bias, e, e + 1), size, 2)
        engine |= {
            f"moe.experts.{e}.gate_up.weight": reshape(permute(turns, 2, 1, 0), 2 * size, hidden),
            f"moe.experts.{e}.gate_up.bias": reshape(transpose(bias_turns), 2 * size),
            f"moe.experts.{e}.down.weight": transpose(expert_of(down, e)),
            f"moe.experts.{e}.down.bias": expert_of(down_bias, e),
        }
    return engine


FAMILY = Family(("GptOssForCausalLM",), spec, Layout(experts=experts).tensors)
