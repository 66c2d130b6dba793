"""Cache size of a sequence, by groups of layers of the same kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmdeploy.turbomind.spec import ModelSpec


@dataclass(frozen=True)
class MemoryGroup:
    """Layers with the same kind and size of memory, which the engine's cache keeps in the same blocks."""

    # ``paged`` (of all tokens), ``window`` (of the last `window` tokens), ``chunk`` (of the chunk of `window` tokens
    # that is under way), ``cross`` (of images) or ``state`` (a fixed size a sequence)
    kind: str
    layers: int  # how many
    window: int = 0  # tokens; 0 for other kinds
    values: int = 0  # numbers that a layer keeps of a token, or of a row of an image; 0 for ``state``

    def __str__(self) -> str:
        of = f"{self.layers} {'layer' if self.layers == 1 else 'layers'}"
        size_per_token = f"{self.values:,} values a"
        return {
            "paged": f"all tokens in {of}, {size_per_token} token",
            "window": f"the last {self.window:,} tokens in {of}, {size_per_token} token",
            "chunk": f"the last chunk of {self.window:,} tokens in {of}, {size_per_token} token",
            "cross": f"images in {of}, {size_per_token} row",
            "state": f"a state in {of}",
        }[self.kind]


def memory_groups(spec: ModelSpec) -> list[MemoryGroup]:
    """Return the groups of a model's layers, for sequences that are longer than any window.

    Layers that attend to the keys of earlier ones keep nothing, and are in none.
    """
    alike: Counter[tuple[str, int, int, int]] = Counter()  # by kind, window, kind of attention and values
    for layer in range(spec.num_layers):
        if compressed := spec.compressed_attention:
            last, values = compressed.sizes(layer, spec.head_dim)
            alike["window", compressed.window, 0, last] += 1
            if values:
                alike["paged", 0, 0, values] += 1
        if not spec.has_attention(layer) or spec.keys_of(layer) >= 0:
            continue
        attention = spec.attention_of(layer)
        window = attention.windows[layer] if attention.windows else 0
        kind = attention.reach(layer)
        latent = attention.mla.kv_rank + attention.mla.rope_dim if attention.mla else 0
        values = latent or attention.num_kv_heads * (attention.head_dim + attention.value_dim)
        alike[kind, window, spec.layer_attentions[layer] if spec.layer_attentions else 0, values] += 1
    groups = [MemoryGroup(kind, count, window, values) for (kind, window, _, values), count in sorted(alike.items())]
    if states := sum(map(spec.has_recurrence, range(spec.num_layers))):
        groups.append(MemoryGroup("state", states))
    if spec.images and spec.images.cross_layers:
        groups.append(MemoryGroup("cross", len(spec.images.cross_layers), values=2 * spec.num_kv_heads * spec.head_dim))
    return groups
