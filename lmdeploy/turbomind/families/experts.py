"""What families with a mixture of experts share: where checkpoints keep the experts of a layer."""

from dataclasses import dataclass

from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import ModelSpec


@dataclass(frozen=True)
class ExpertNames:
    """Tensors of one layer, without the layer's prefix and ``.weight``; ``{}`` stands for the expert's number."""

    router: str = "mlp.gate"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"


def with_experts(
    tensors: dict[str, Expression], spec: ModelSpec, prefix: str, names: ExpertNames
) -> dict[str, Expression]:
    """Return a dense model's ``tensors`` with experts in place of the MLP, in the layers that have them.

    ``prefix`` begins the names of a layer in the checkpoint; ``{}`` stands for its number.
    """
    assert spec.moe is not None
    has_experts = spec.moe.layers or (True,) * spec.num_layers
    sparse = [i for i, is_sparse in enumerate(has_experts) if is_sparse]
    dense_parts = tuple(f"layers.{i}.mlp." for i in sparse)
    kept = {name: expression for name, expression in tensors.items() if not name.startswith(dense_parts)}
    for i in sparse:
        experts = moe_tensors(spec, prefix.format(i), names)
        kept |= {f"layers.{i}.{name}": expression for name, expression in experts.items()}
    return kept


def moe_tensors(spec: ModelSpec, prefix: str, names: ExpertNames) -> dict[str, Expression]:
    """Return the expression of each engine tensor of a layer's experts; ``prefix`` begins the checkpoint's names."""
    moe, hidden = spec.moe, spec.hidden_size
    assert moe is not None
    tensors: dict[str, Expression] = {
        "moe.router.weight": Load(f"{prefix}{names.router}.weight", (moe.num_experts, hidden))
    }
    if moe.router.has_correction:
        tensors["moe.router.correction"] = Load(f"{prefix}{names.router}.e_score_correction_bias", (moe.num_experts,))
    for e in range(moe.num_experts):
        own = tuple(prefix + name.format(e) for name in (names.gate, names.up, names.down))
        tensors |= _gated_mlp(f"moe.experts.{e}", own, moe.intermediate_size, hidden)
    if size := moe.shared_intermediate_size:
        shared = tuple(f"{prefix}{names.shared}.{name}_proj" for name in ("gate", "up", "down"))
        tensors |= _gated_mlp("moe.shared", shared, size, hidden)
    if moe.has_shared_gate:
        tensors["moe.shared_gate.weight"] = Load(f"{prefix}{names.shared_gate}.weight", (1, hidden))
    return tensors


def _gated_mlp(engine: str, parts: tuple[str, ...], size: int, hidden: int) -> dict[str, Expression]:
    gate, up, down = (part + ".weight" for part in parts)
    return {
        f"{engine}.gate_up.weight": concat(Load(gate, (size, hidden)), Load(up, (size, hidden))),
        f"{engine}.down.weight": Load(down, (hidden, size)),
    }
