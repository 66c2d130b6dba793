"""Quantization of one decoder layer: the inputs to observe, their order, and where the codes go."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lmdeploy.lite.checkpoint_files import converted
from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.lite.method import Method, Observed
from lmdeploy.lite.scaled_groups import ScaledGroup, groups_of, rows_left_whole
from lmdeploy.lite.source_model import SourceModel
from lmdeploy.lite.source_rows import loads_in

_SEEN_AT_A_TIME = 512 << 20  # bytes of what is remembered of inputs
_FEW_ROWS = 32  # of inputs, which say too little of an expert
_UNCHANGED = (
    "moe.router.correction",
    "recurrence.conv",
    "recurrence.a_log",
    *(f"mlp.xielu.{part}" for part in ("positive", "negative", "linear")),
)  # which need not be stored row by row
_EXPERT = re.compile(r"moe\.experts\.(\d+)\.")


def quantized_shapes(model: SourceModel) -> dict[str, tuple[int, int]]:
    """Return name and shape ``[out, in]`` of each tensor of the checkpoint that is to become codes."""
    names: dict[str, tuple[int, int]] = {}
    for number in range(len(model)):
        for group in groups_of(model.spec, number):
            for consumer in group.consumers:
                for name in model.row_map(number, f"{consumer}.weight").names:
                    if name.endswith(".weight"):
                        rows, columns = model.shapes[name]
                        names[name] = (rows, columns)
    return names


def left_as_numbers(model: SourceModel, method: Method[Any]) -> list[str]:
    """Return the ends of the names of modules with a matrix that stays numbers; embeddings are none of them."""
    quantized = {name for name, shape in quantized_shapes(model).items() if method.holds(shape)}
    in_layers = model.tensors_of_layers()
    left: dict[str, None] = {}
    for name, shape in model.shapes.items():
        if len(shape) < 2 or not name.endswith(".weight") or name in quantized:
            continue
        module = name.removesuffix(".weight")
        if name in in_layers:
            left[re.split(r"\.\d+\.", module, maxsplit=1)[-1]] = None
        elif name not in model.tensors_of_decoder() or name in model.linears_outside():
            left[re.split(r"\.\d+\.", module, maxsplit=1)[0]] = None
    return list(left)


@dataclass(frozen=True)
class _Part:
    """Groups that are worked on at a time, and layers whose own inputs are looked at besides."""

    groups: tuple[ScaledGroup, ...]
    experts: tuple[str, ...] = ()


class QuantizedLayer:
    """A layer's weights, scaled and rounded part by part.

    ``layer``: its weights, which are scaled in place.
    """

    def __init__(self, model: SourceModel, number: int, layer: LayerWeights, method: Method[Any]) -> None:
        # Whose layer it is
        self._model, self._number, self._layer, self._method = model, number, layer, method
        self._seen: dict[str, Observed] = {}
        self._tensors: dict[str, Tensor] = {}
        self._quantized: set[str] = set()
        groups = [group for group in groups_of(model.spec, number) if any(map(self._sources, group.consumers))]
        first = tuple(group for group in groups if not _EXPERT.match(group.consumers[0]) or group.has_separate_inputs)
        self._shared_group = next((group for group in groups if group.has_separate_inputs), None)
        # Parts for :meth:`watching` and :meth:`make`, one after the other
        self.parts = [_Part(first), *self._expert_parts([group for group in groups if group not in first])]

    @contextmanager
    def watching(self, part: _Part) -> Iterator[None]:
        """While it lasts, what layers are given is remembered as far as a part needs it."""
        watched = {group.seen_as for group in part.groups} | set(part.experts)
        for name in watched:
            self._seen[name] = self._method.observe(self._layer.weight(name).shape[1], self._model.device)

        def record(name: str, x: Tensor) -> None:
            if name in watched:
                self._seen[name].add(x)

        self._layer.watch = record
        try:
            yield
        finally:
            self._layer.watch = None

    def make(self, part: _Part) -> None:
        """Scale and round what belongs to a part, and forget what was remembered for it."""
        for group in part.groups:
            seen = self._seen[group.seen_as]
            if group.producer is None:
                continue
            weights = [self._layer.weight(name) for name in group.consumers]
            scales = self._method.scales(group, weights, seen)
            if scales is not None:
                group.apply(self._layer, scales)
                seen.divide_by(scales)
        for name in part.experts:
            moments = self._seen[name]
            assert self._shared_group is not None
            everyones = self._seen[self._shared_group.seen_as]
            self._round(name, moments if moments.count >= _FEW_ROWS else everyones)
        for group in part.groups:
            seen = self._seen[group.seen_as]
            if _EXPERT.match(group.seen_as) and seen.count < _FEW_ROWS:
                seen = self._method.observe(self._layer.weight(group.seen_as).shape[1], self._model.device)
            for name in group.consumers:
                if not (group.has_separate_inputs and _EXPERT.match(name)):
                    self._round(name, seen)
        kept = self._shared_group.seen_as if self._shared_group is not None else ""
        self._seen = {name: seen for name, seen in self._seen.items() if name == kept}

    def stored(self) -> dict[str, Tensor]:
        """Return the tensors of the new checkpoint."""
        numbers: dict[str, Tensor] = {}
        for name, tree in self._model.trees(self._number).items():
            if name in _UNCHANGED:
                numbers |= {source: self._model.files.tensor(source).float() for source in loads_in(tree)}
                continue
            rows = self._model.row_map(self._number, name)
            for source in rows.names:
                if source in self._quantized:
                    continue
                if source not in numbers:
                    numbers[source] = self._model.files.tensor(source).float()
                module, row = rows.of(source)
                numbers[source][row] = self._layer.tensors[name].cpu()[module]
        return converted(numbers, self._method.settings.stored_dtype) | self._tensors

    def _expert_parts(self, downs: Sequence[ScaledGroup]) -> list[_Part]:
        """Return parts of as many experts as may be remembered at a time."""
        parts: list[_Part] = []
        size = _SEEN_AT_A_TIME
        for group in downs:
            down = group.consumers[0]
            gate_up = down.replace(".down", ".gate_up" if self._model.spec.mlp.is_gated else ".up")
            expert_bytes = sum(self._method.bytes_seen(self._layer.weight(name).shape[1]) for name in (down, gate_up))
            if size + expert_bytes > _SEEN_AT_A_TIME:
                parts.append(_Part(()))
                size = 0
            parts[-1] = _Part((*parts[-1].groups, group), (*parts[-1].experts, gate_up))
            size += expert_bytes
        return parts

    def _round(self, name: str, seen: Observed) -> None:
        """Put codes in the place of a layer's weight, as far as the format has a form for them."""
        sources = self._sources(name)
        if not sources:
            return
        rows = self._model.row_map(self._number, f"{name}.weight")
        weight = self._layer.weight(name)
        quantized = self._method.quantized(weight, seen, rows_left_whole(self._model.spec, self._number, name))
        self._quantized.update(sources)
        for source in sources:
            order, _ = rows.of(source)
            parts: Mapping[str, Tensor] = {part: tensor.cpu()[order] for part, tensor in quantized.rows.items()}
            module = source.removesuffix(".weight")
            stored = self._method.packed(parts) | dict(quantized.shared)
            # Files of safetensors hold no tensor twice.
            self._tensors |= {f"{module}.{part}": tensor.cpu().contiguous().clone() for part, tensor in stored.items()}

    def _sources(self, name: str) -> list[str]:
        """Return the checkpoint's tensors of a layer that are to become codes."""
        found = []
        for source in self._model.row_map(self._number, f"{name}.weight").names:
            rows, columns = self._model.shapes[source]
            if source.endswith(".weight") and self._method.holds((rows, columns)):
                found.append(source)
        return found
