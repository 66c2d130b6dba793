"""Tensor names of weights for image tokens (ImagesSpec)."""

import dataclasses
from dataclasses import dataclass

from lmdeploy.turbomind.families.layout import Arrange, Layout, linear_tensors, ungrouped
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import ModelSpec


def _same(expression: Expression) -> Expression:
    return expression


@dataclass(frozen=True)
class OwnWeights:
    """Names of the weights in place of those of text, after the layer's prefix; empty where there are none."""

    qkv: str = ""
    o: str = ""
    gate: str = ""
    up: str = ""
    down: str = ""

    def tensors(self, spec: ModelSpec, prefix: str) -> dict[str, Expression]:
        """Return the engine tensors of a layer whose tensors begin with ``prefix``."""
        hidden, size = spec.hidden_size, spec.intermediate_size
        heads, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        engine: dict[str, Expression] = {}
        if self.qkv:
            bias = spec.images is not None and spec.images.own_bias
            engine |= linear_tensors("attention.qkv.images", {prefix + self.qkv: heads + 2 * keys}, hidden, bias)
            engine |= linear_tensors("attention.o.images", {prefix + self.o: hidden}, heads, False)
        if self.gate:
            sources = {prefix + self.gate: size, prefix + self.up: size}
            engine |= linear_tensors("mlp.gate_up.images", sources, hidden, False)
            engine |= linear_tensors("mlp.down.images", {prefix + self.down: hidden}, size, False)
        return engine


@dataclass(frozen=True)
class LowRankWeights:
    """Low-rank update of a layout's matrices: two alongside each, in tensors of these names below that one's."""

    layout: Layout
    down: str
    up: str

    def tensors(self, spec: ModelSpec, prefix: str) -> dict[str, Expression]:
        """Return the engine tensors of a layer whose tensors begin with ``prefix``."""
        hidden, size, layout = spec.hidden_size, spec.intermediate_size, self.layout
        attention = spec.attention_of(0)
        heads, keys = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        grouped: Arrange = ungrouped(attention) if layout.is_grouped else _same
        return {
            **self._pair(spec, "attention.qkv.images.0", prefix + layout.qkv, heads + 2 * keys, hidden, grouped),
            **self._pair(spec, "attention.o.images.0", prefix + layout.o, hidden, heads),
            **self._pair(spec, "mlp.gate_up.images.0", prefix + layout.gate, size, hidden),
            **self._pair(spec, "mlp.gate_up.images.1", prefix + layout.up, size, hidden),
            **self._pair(spec, "mlp.down.images.0", prefix + layout.down, hidden, size),
        }

    def _pair(
        self, spec: ModelSpec, name: str, source: str, outputs: int, inputs: int, arrange: Arrange = _same
    ) -> dict[str, Expression]:
        rank = spec.images.low_rank if spec.images is not None else 0
        return {
            f"{name}.down.weight": Load(f"{source}.{self.down}.weight", (rank, inputs)),
            f"{name}.up.weight": arrange(Load(f"{source}.{self.up}.weight", (outputs, rank))),
        }


def with_low_rank(layout: Layout, down: str, up: str) -> Layout:
    """Return a layout whose matrices have such two alongside them."""
    return dataclasses.replace(layout, images=LowRankWeights(layout, down, up).tensors)
