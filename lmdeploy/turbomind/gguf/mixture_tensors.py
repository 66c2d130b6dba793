"""Experts with biases in GGUF files, as GPT-OSS has them; without, a layout's own names suffice."""

from lmdeploy.turbomind.families.experts import moe_of
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import ModelSpec


def biased_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, once each is a tensor of its own (`stacks.apart`)."""
    moe, hidden = moe_of(spec), spec.hidden_size
    size = moe.intermediate_size
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(f"{prefix}ffn_gate_inp.weight", (moe.num_experts, hidden)),
        "moe.router.bias": Load(f"{prefix}ffn_gate_inp.bias", (moe.num_experts,)),
    }
    for e in range(moe.num_experts):
        gate, up, down = (f"{prefix}ffn_{part}.{e}" for part in ("gate", "up", "down"))
        own = f"moe.experts.{e}"
        engine |= {
            f"{own}.gate_up.weight": concat(*(Load(f"{part}.weight", (size, hidden)) for part in (gate, up))),
            f"{own}.gate_up.bias": concat(*(Load(f"{part}.bias", (size,)) for part in (gate, up))),
            f"{own}.down.weight": Load(f"{down}.weight", (hidden, size)),
            f"{own}.down.bias": Load(f"{down}.bias", (hidden,)),
        }
    return engine
