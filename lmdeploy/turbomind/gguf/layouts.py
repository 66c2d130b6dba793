"""Layouts of GGUF files with tensors that names alone do not describe."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lmdeploy.turbomind.families.layout import Layout, without_norm_weights
from lmdeploy.turbomind.families.minimax import block_indexer_tensors
from lmdeploy.turbomind.manifest import Expression, Load, renamed, reshape, rows_of
from lmdeploy.turbomind.spec import ModelSpec


@dataclass(frozen=True)
class WithoutNormWeights(Layout):
    """Names of a model with norms without weights."""

    bare: str = "norm.weight"  # end of the engine's names of their weights

    def tensors(self, spec: ModelSpec) -> dict[str, Expression]:
        """Return the expression of each engine tensor of a model."""
        return without_norm_weights(super().tensors(spec), self.bare)


@dataclass(frozen=True)
class FamilyLayout(Layout):
    """Names of a model whose further tensors are those of a family."""

    # From the spec to the family's engine tensors
    family: Callable[[ModelSpec], Mapping[str, Expression]] = lambda spec: {}
    names: tuple[tuple[str, str], ...] = ()  # patterns in the family's names of tensors, and what GGUF has

    def tensors(self, spec: ModelSpec) -> dict[str, Expression]:
        """Return the expression of each engine tensor of a model."""
        engine = super().tensors(spec)
        if spec.attention.block_indexer:
            engine |= block_indexer_tensors(spec, self.layer + "indexer.")
        more = {name: expression for name, expression in self.family(spec).items() if name not in engine}
        engine |= {name: renamed(expression, self._stored) for name, expression in more.items()}
        if spec.streams is not None:
            count, size = spec.streams.count - 1, spec.hidden_size
            for part, stored in (("make", "altup_proj"), ("read", "altup_unembd_proj")):
                stack = Load(f"{stored}.weight", (count, size, size))
                for i in range(count):
                    engine[f"streams.{part}.{i}.weight"] = reshape(rows_of(stack, i, i + 1), size, size)
        return engine

    def _stored(self, name: str) -> str:
        for published, stored in self.names:
            name = re.sub(published, stored, name)
        return name
