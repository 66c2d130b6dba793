"""Tensor names of a layer's experts."""

from dataclasses import dataclass

from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec


def moe_of(spec: ModelSpec) -> MoeSpec:
    """Return the experts of a spec that has some."""
    if spec.moe is None:
        raise ValueError(f"{spec.architecture} has no experts")
    return spec.moe


def has_experts(spec: ModelSpec, layer: int) -> bool:
    """Return whether a layer's MLP is a mixture of experts."""
    return spec.moe is not None and (not spec.moe.layers or spec.moe.layers[layer])


def has_dense_mlp(spec: ModelSpec, layer: int) -> bool:
    """Return whether a layer has an MLP that every token uses."""
    return spec.has_mlp(layer) and (not has_experts(spec, layer) or moe_of(spec).is_alongside_mlp)


@dataclass(frozen=True)
class ExpertNames:
    """Names of a layer's tensors, after the layer's prefix and without ``.weight``; ``{}`` is an expert's number."""

    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    gate: str = "mlp.experts.{}.gate_proj"
    up: str = "mlp.experts.{}.up_proj"
    down: str = "mlp.experts.{}.down_proj"
    shared: str = "mlp.shared_experts.{}_proj"
    shared_parts: tuple[str, str, str] = ("gate", "up", "down")  # what these are in the name
    shared_gate: str = "mlp.shared_expert_gate"
    latent: str = "mlp.fc{}_latent_proj"  # in front of the routed experts, after them

    def tensors(self, spec: ModelSpec, prefix: str) -> dict[str, Expression]:
        """Return the engine tensors of the experts of a layer whose tensors begin with ``prefix``."""
        moe, hidden = moe_of(spec), spec.hidden_size
        router = prefix + self.router
        engine: dict[str, Expression] = {"moe.router.weight": Load(f"{router}.weight", (moe.num_experts, hidden))}
        if moe.router.has_correction:
            engine["moe.router.correction"] = Load(prefix + self.correction, (moe.num_experts,))
        for e in range(moe.num_experts):
            names = tuple(prefix + name.format(e) for name in (self.gate, self.up, self.down))
            engine |= _mlp(f"moe.experts.{e}", names, moe.intermediate_size, moe.latent_size or hidden, spec)
        if size := moe.latent_size:
            engine |= {
                "moe.latent_in.weight": Load(f"{prefix}{self.latent.format(1)}.weight", (size, hidden)),
                "moe.latent_out.weight": Load(f"{prefix}{self.latent.format(2)}.weight", (hidden, size)),
            }
        if size := moe.shared_intermediate_size:
            shared = tuple(prefix + self.shared.format(part) for part in self.shared_parts)
            engine |= _mlp("moe.shared", shared, size, hidden, spec)
        if moe.has_shared_gate:
            engine["moe.shared_gate.weight"] = Load(f"{prefix}{self.shared_gate}.weight", (1, hidden))
        return engine


def expert_of(stack: Expression, expert: int) -> Expression:
    """Return an expert's part of a stack ``[experts, ...]``."""
    one = rows_of(stack, expert, expert + 1)
    return reshape(one, *one.shape[1:])


def stacked_experts(spec: ModelSpec, gate_up: str, down: str, *, are_turned: bool = False) -> dict[str, Expression]:
    """Return the engine tensors of experts whose matrices stand in two tensors, ``[in, out]`` if turned."""
    moe, hidden = moe_of(spec), spec.hidden_size
    shapes = {"gate_up": (gate_up, 2 * moe.intermediate_size, hidden), "down": (down, hidden, moe.intermediate_size)}
    engine: dict[str, Expression] = {}
    for part, (name, *shape) in shapes.items():
        stack = Load(name, (moe.num_experts, *(reversed(shape) if are_turned else shape)))
        for e in range(moe.num_experts):
            one = expert_of(stack, e)
            engine[f"moe.experts.{e}.{part}.weight"] = transpose(one) if are_turned else one
    return engine


def joined_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of experts that MegaBlocks made: expert e has rows e size .. (e + 1) size of each."""
    moe, hidden = moe_of(spec), spec.hidden_size
    size = moe.intermediate_size
    w1, v1, w2 = (Load(f"{prefix}experts.mlp.{name}", (moe.num_experts * size, hidden)) for name in ("w1", "v1", "w2"))
    router = Load(f"{prefix}router.layer.weight", (moe.num_experts, hidden))
    engine: dict[str, Expression] = {"moe.router.weight": router}
    for e in range(moe.num_experts):
        rows = (e * size, (e + 1) * size)
        if spec.mlp.is_gated:
            engine[f"moe.experts.{e}.gate_up.weight"] = concat(rows_of(w1, *rows), rows_of(v1, *rows))
        else:
            engine[f"moe.experts.{e}.up.weight"] = rows_of(w1, *rows)
        engine[f"moe.experts.{e}.down.weight"] = transpose(rows_of(w2, *rows))
    return engine


def _mlp(engine: str, parts: tuple[str, ...], size: int, hidden: int, spec: ModelSpec) -> dict[str, Expression]:
    """Return the engine tensors of an expert, whose gate is only there in a gated MLP."""
    gate, up, down = (part + ".weight" for part in parts)
    tensors: dict[str, Expression] = {f"{engine}.down.weight": Load(down, (hidden, size))}
    if spec.mlp.is_gated:
        tensors[f"{engine}.gate_up.weight"] = concat(Load(gate, (size, hidden)), Load(up, (size, hidden)))
    else:
        tensors[f"{engine}.up.weight"] = Load(up, (size, hidden))
    return tensors
