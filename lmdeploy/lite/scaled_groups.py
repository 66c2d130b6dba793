"""Which linear layers of a decoder layer have the same inputs, and where these inputs can be divided."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmdeploy.errors import UnsupportedModelError

_PATHS = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


@dataclass(frozen=True)
class ScaledGroup:
    """Linear layers with the same inputs, and what makes these.

    Attributes
    ----------
    consumers
        Name and module of each layer.
    producer
        A norm, or a linear layer, whose outputs are the inputs but for factors that are linear in them.
    source
        Which of the producer's outputs each input comes from, ``[in]``.
    """

    consumers: tuple[tuple[str, nn.Linear], ...]
    producer: Any
    source: Tensor

    def tie(self, values: Tensor) -> Tensor:
        """Return ``[in]`` values averaged over the inputs that come from the same output of the producer."""
        count = torch.bincount(self.source)
        total = torch.zeros(len(count), device=values.device).index_add_(0, self.source, values)
        return (total / count)[self.source]

    def apply(self, scales: Tensor) -> None:
        """Multiply the weights with ``scales`` ``[in]`` and divide the inputs, where they are made, by them."""
        for _, consumer in self.consumers:
            consumer.weight.mul_(scales)
        divisor = torch.ones(int(self.source.max()) + 1, device=scales.device).index_copy_(0, self.source, scales)
        weight = self.producer.weight
        weight.div_(divisor if weight.dim() == 1 else divisor[:, None])
        if getattr(self.producer, "bias", None) is not None:
            self.producer.bias.div_(divisor)


def groups_of(layer: nn.Module, name: str, head_dim: int) -> list[ScaledGroup]:
    """Return the groups of a decoder layer of Llama's structure.

    Raises
    ------
    UnsupportedModelError
        If the layer has other parts; says which.
    """
    parts: dict[str, Any] = {}
    for path in _PATHS:
        try:
            parts[path.rpartition(".")[2]] = layer.get_submodule(path)
        except AttributeError as error:
            raise UnsupportedModelError(
                f"{name} cannot be quantized: its layers have no {path} (layers like Llama's are supported)"
            ) from error
    linear = {key: part for key, part in parts.items() if key.endswith("_proj")}
    strange = [key for key, part in linear.items() if not isinstance(part, nn.Linear)]
    if strange:
        raise UnsupportedModelError(f"{name} cannot be quantized: {', '.join(strange)} are no linear layers")

    def group(producer: str, *consumers: str, source: Tensor | None = None) -> ScaledGroup:
        named = tuple((path, linear[key]) for path in _PATHS if (key := path.rpartition(".")[2]) in consumers)
        features, device = named[0][1].in_features, named[0][1].weight.device
        return ScaledGroup(named, parts[producer], torch.arange(features, device=device) if source is None else source)

    # A head of values serves several heads of queries, whose outputs are the inputs of o_proj.
    value_heads = linear["v_proj"].out_features // head_dim
    queries = linear["o_proj"].in_features // head_dim // value_heads
    values = torch.arange(value_heads * head_dim, device=linear["v_proj"].weight.device).view(value_heads, 1, head_dim)
    return [
        group("input_layernorm", "q_proj", "k_proj", "v_proj"),
        group("v_proj", "o_proj", source=values.expand(-1, queries, -1).reshape(-1)),
        group("post_attention_layernorm", "gate_proj", "up_proj"),
        group("up_proj", "down_proj"),
    ]
