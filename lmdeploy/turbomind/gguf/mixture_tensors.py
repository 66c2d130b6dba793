"""Names of experts in GGUF files, and the tensors of those that names do not suffice for."""

from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import ModelSpec

EXPERTS = ExpertNames(
    router="ffn_gate_inp",
    correction="exp_probs_b.bias",
    gate="ffn_gate.{}",
    up="ffn_up.{}",
    down="ffn_down.{}",
    shared="ffn_{}_shexp",
    shared_gate="ffn_gate_inp_shexp",
)


def joined_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer of which gate and up are one matrix (Mistral Small 4)."""
    moe, hidden = moe_of(spec), spec.hidden_size
    joined: dict[str, Expression] = {
        f"moe.experts.{e}.gate_up.weight": Load(f"{prefix}ffn_gate_up.{e}.weight", (2 * moe.intermediate_size, hidden))
        for e in range(moe.num_experts)
    }
    return EXPERTS.tensors(spec, prefix) | joined


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
