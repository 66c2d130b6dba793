"""Groups of linear layers with the same input, and where that input can be scaled (AWQ, SmoothQuant)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.turbomind.families.experts import has_experts
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RecurrenceSpec


@dataclass(frozen=True)
class Producer:
    """A norm, or a linear layer, that makes inputs which are linear in its outputs."""

    name: str  # the engine's
    # Which of its outputs each input comes from, ``[in]``; None: the one of the same number
    source: Tensor | None = None
    offset: float = 0.0  # what a norm adds to its weight


@dataclass(frozen=True)
class ScaledGroup:
    """Linear layers with the same inputs, and what makes these."""

    consumers: tuple[str, ...]  # names of the layers that are quantized
    producer: Producer | None  # None: the inputs cannot be divided where they are made
    others: tuple[str, ...] = ()  # names of layers with the same inputs that stay numbers
    watched: str = ""  # the layer whose inputs are all there are; a layer with experts gives each of these only some
    has_separate_inputs: bool = False  # whether each consumer sees other rows

    @property
    def seen_as(self) -> str:
        """The layer whose inputs are looked at for the whole group."""
        return self.watched or self.consumers[0]

    def tie(self, values: Tensor) -> Tensor:
        """Return ``[in]`` values averaged over the inputs that come from the same output of the producer."""
        if self.producer is None or self.producer.source is None:
            return values
        source = self.producer.source.to(values.device)
        count = torch.bincount(source).clamp(min=1)
        total = torch.zeros(len(count), device=values.device).index_add_(0, source, values)
        return (total / count)[source]

    def apply(self, layer: LayerWeights, scales: Tensor) -> None:
        """Multiply the weights with ``scales`` ``[in]`` and divide the inputs, where they are made, by them."""
        if self.producer is None:
            return
        for name in (*self.consumers, *self.others):
            layer.weight(name).mul_(scales)
        weight, bias = layer.weight(self.producer.name), layer.bias(self.producer.name)
        divisor = scales
        if self.producer.source is not None:
            divisor = torch.ones(len(weight), device=scales.device)
            divisor = divisor.index_copy_(0, self.producer.source.to(scales.device), scales)
        if weight.dim() == 1:
            weight.add_(self.producer.offset).div_(divisor).sub_(self.producer.offset)
        else:
            weight.div_(divisor[:, None])
        if bias is not None:
            bias.div_(divisor)


def groups_of(spec: ModelSpec, layer: int) -> list[ScaledGroup]:
    """Return the groups of a decoder layer."""
    moe = spec.moe if has_experts(spec, layer) else None
    mixed, gates = _mixed(spec, layer)
    is_alongside = moe is not None and moe.is_alongside_mlp
    inner, shared = _inner(spec, None if is_alongside else moe) if spec.has_mlp(layer) else ((), ())
    offset = spec.norm.offset
    block = spec.block_of(layer)
    # Otherwise what is read is the residual stream, which others read too.
    has_norms = block.has_input_norms and not block.norms_stream
    is_mixture = moe is not None and not is_alongside
    watched = "moe.router" if is_mixture else ""
    groups = []
    if block.shares_norm:
        producer = Producer("attention_norm", offset=offset)
        groups.append(ScaledGroup((*mixed, *inner), producer, shared, watched, has_separate_inputs=is_mixture))
    else:
        if mixed:
            norm = Producer("attention_norm", offset=offset) if has_norms else None
            groups.append(ScaledGroup(mixed, norm, gates))
        if inner:
            norm = Producer("mlp_norm", offset=offset) if has_norms else None
            groups.append(ScaledGroup(inner, norm, shared, watched, has_separate_inputs=is_mixture))
    if spec.has_recurrence(layer) and spec.recurrence is not None:
        groups.append(ScaledGroup(("recurrence.out",), _outputs(spec.recurrence)))
    if spec.has_attention(layer):
        mla = spec.attention_of(layer).mla
        if mla and mla.q_rank:
            groups.append(ScaledGroup(("attention.q_up",), Producer("attention.q_down_norm", offset=offset)))
        groups.append(ScaledGroup(("attention.o",), _values(spec, layer)))
    if spec.layer_input is not None:
        groups += [ScaledGroup(("input.gate",), None), ScaledGroup(("input.project",), None)]
    return groups + (_downs(spec, None if is_alongside else moe, layer) if spec.has_mlp(layer) else [])


def _mixed(spec: ModelSpec, layer: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the layers that read what a layer mixes tokens with, and those of them that stay numbers."""
    names: list[str] = []
    gates: list[str] = []
    if spec.has_recurrence(layer) and spec.recurrence is not None:
        names.append("recurrence.in")
        gates = [f"recurrence.{name}" for name in spec.recurrence.gates()]
    if spec.has_attention(layer):
        if mla := spec.attention_of(layer).mla:
            names += ["attention.q_down" if mla.q_rank else "attention.q", "attention.kv_down"]
            gates += ["attention.gate"] * mla.has_gate
        else:
            names.append("attention.qkv")
    return tuple(names), tuple(gates)


def _outputs(mixer: RecurrenceSpec) -> Producer | None:
    """Return the producer of the inputs of the linear layer after a recurrence."""
    values = mixer.num_heads * mixer.value_dim
    if mixer.norm == "head":
        return Producer("recurrence.norm", torch.arange(mixer.value_dim).repeat(mixer.num_heads))
    if mixer.norm == "groups":
        return Producer("recurrence.norm")
    if mixer.gate == "linear":
        return Producer("recurrence.in", 2 * values + torch.arange(values))
    return None


def _inner(spec: ModelSpec, moe: MoeSpec | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the layers after the MLP's norm, and those of them that stay numbers."""
    if moe is None:
        return (("mlp.gate_up" if spec.mlp.is_gated else "mlp.up"),), ()
    up = "gate_up" if spec.mlp.is_gated else "up"
    experts = tuple(f"moe.experts.{number}.{up}" for number in range(moe.num_experts))
    shared = (f"moe.shared.{up}",) if moe.shared_intermediate_size else ()
    return (*experts, *shared), ("moe.router", *(("moe.shared_gate",) if moe.has_shared_gate else ()))


def _values(spec: ModelSpec, layer: int) -> Producer | None:
    """Return the producer of the inputs of the linear layer after attention."""
    attn = spec.attention_of(layer)
    if attn.qkv_clip or attn.norms_values or attn.keys_are_values:  # values are not what the projection alone makes
        return None
    if spec.keys_of(layer) >= 0 or layer in spec.layer_keys:  # other layers attend to them too
        return None
    if mla := attn.mla:
        heads = torch.arange(attn.num_heads)[:, None] * (mla.nope_dim + mla.value_dim)
        return Producer("attention.kv_up", (heads + mla.nope_dim + torch.arange(mla.value_dim)).flatten())
    # A head of values serves several heads of queries.
    first = (attn.num_heads + attn.num_kv_heads) * attn.head_dim
    rows = first + torch.arange(attn.num_kv_heads * attn.value_dim).view(attn.num_kv_heads, 1, attn.value_dim)
    return Producer("attention.qkv", rows.expand(-1, attn.num_heads // attn.num_kv_heads, -1).flatten())


def _downs(spec: ModelSpec, moe: MoeSpec | None, layer: int) -> list[ScaledGroup]:
    """Return the groups of the last layer of each MLP: what is up goes linearly into its inputs, if there is a gate."""

    def group(name: str, size: int) -> ScaledGroup:
        is_linear = spec.mlp.is_gated and spec.mlp.activation != "clamped_swiglu"
        is_linear &= moe is None or not (moe.activations or moe.shared_activations)  # bounded in some layers
        producer = Producer(f"{name}.gate_up", size + torch.arange(size)) if is_linear else None
        return ScaledGroup((f"{name}.down",), producer)

    if moe is None:
        return [group("mlp", spec.mlp_size(layer))]
    groups = [group(f"moe.experts.{number}", moe.intermediate_size) for number in range(moe.num_experts)]
    if moe.shared_intermediate_size:
        groups.append(group("moe.shared", moe.shared_intermediate_size))
    return groups


def rows_left_whole(spec: ModelSpec, layer: int, name: str) -> int:
    """Return how many first rows of a linear layer of decoder layer ``layer`` make queries and keys.

    These meet in a product, where cutting weights off on both sides adds up.
    """
    if name == "recurrence.in" and spec.recurrence is not None:
        if spec.recurrence.kind in {"mamba", "short_convolution"}:
            return 0
        return 2 * spec.recurrence.num_key_heads * spec.recurrence.key_dim
    if name == "attention.qkv":
        attn = spec.attention_of(layer)
        keys = attn.num_kv_heads if spec.keys_of(layer) < 0 else 0
        return (attn.num_heads + keys) * attn.head_dim
    return 1 << 30 if name.startswith(("attention.q", "attention.kv")) else 0
