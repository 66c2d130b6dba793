"""`lmdeploy lite calibrate`: activation statistics of a model's linear layers on a text.

The statistics are two files that ``torch.load`` reads, ``inputs_stats.pth`` and ``outputs_stats.pth``: for each of
``max``, ``min``, ``mean``, ``absmax`` and ``absmean`` a dictionary from the checkpoint's module to a tensor with a
number for each input or output. ``auto_awq``, ``auto_gptq`` and ``smooth_quant`` calibrate by themselves and read
neither.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite.auto_awq import RATIOS, InputMoments, block_of, search_ratio
from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.lite.hidden_states import HiddenStates
from lmdeploy.lite.layer_runs import calibration_batches, walk
from lmdeploy.lite.quantized_layer import quantized_shapes
from lmdeploy.lite.rounding import Grid, fitting_group_size
from lmdeploy.lite.scaled_groups import ScaledGroup, groups_of
from lmdeploy.lite.settings import WHOLE_ROW, CalibrationSettings
from lmdeploy.lite.source_model import SourceModel
from lmdeploy.lite.work_dir import open_work_dir

INPUTS, OUTPUTS = "inputs_stats.pth", "outputs_stats.pth"
_KINDS = ("max", "min", "mean", "absmax", "absmean")
_BITS = 4  # that the search of ratios rounds to

LayerStats = dict[str, dict[str, dict[str, Any]]]  # of inputs and outputs: kind, module, numbers


class Statistics:
    """Largest, smallest and mean numbers of the columns of rows seen."""

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, Tensor] = {}

    def add(self, x: Tensor) -> None:
        """Take note of ``[..., features]``."""
        rows = x.detach().flatten(0, -2).float()
        if not len(rows):
            return
        statistics = {"max": rows.amax(0), "min": rows.amin(0), "absmax": rows.abs().amax(0)}
        statistics |= {"mean": rows.mean(0), "absmean": rows.abs().mean(0)}
        share = len(rows) / (self.count + len(rows))
        for kind, values in statistics.items():
            old = self._values.get(kind, values)
            match kind:
                case "mean" | "absmean":
                    self._values[kind] = old + share * (values - old)
                case "min":
                    self._values[kind] = torch.minimum(old, values)
                case _:
                    self._values[kind] = torch.maximum(old, values)
        self.count += len(rows)

    def value(self, kind: str) -> Tensor:
        """Return the numbers of a kind, ``[features]``."""
        return self._values[kind].cpu()


def calibrate(
    model_dir: Path,
    work_dir: Path,
    settings: CalibrationSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write the statistics of a model into ``work_dir``, continuing an interrupted run; return that folder.

    Raises `UnsupportedModelError`, `CheckpointError`, `ValueError` and `FileExistsError` as
    :func:`lmdeploy.lite.layer_runs.quantize`.
    """
    if (work_dir / INPUTS).exists():
        raise FileExistsError(f"{work_dir} holds {INPUTS} already: choose another --work-dir")
    model = SourceModel(model_dir, torch.device(settings.device))
    batches, text = calibration_batches(model, settings)
    group_size = fitting_group_size(None, quantized_shapes(model)) if settings.search_scale else WHOLE_ROW
    scratch = open_work_dir(work_dir, model.directory, "calibrate", settings, text)
    files = [scratch / f"layer-{number:05}.pth" for number in range(len(model))]

    def make(number: int, layer: LayerWeights, hidden: HiddenStates) -> None:
        work = _LayerStatistics(model, number, layer, settings, group_size)
        hidden.write(number + 1, work.run(hidden))
        _save(work.result(), files[number])

    walk(model, batches, scratch, [file.exists() for file in files], make, progress)
    whole: LayerStats = {}
    for file in files:
        for side, kinds in torch.load(file, weights_only=True).items():
            for kind, modules in kinds.items():
                whole.setdefault(side, {}).setdefault(kind, {}).update(modules)
    for name in (OUTPUTS, INPUTS):
        if name in whole:
            _save(whole[name], work_dir / name)
    shutil.rmtree(scratch)
    return work_dir


def _save(content: Any, file: Path) -> None:
    unfinished = file.with_suffix(".part")
    torch.save(content, unfinished)
    unfinished.replace(file)


class _LayerStatistics:
    """Statistics of one layer."""

    def __init__(
        self, model: SourceModel, number: int, layer: LayerWeights, settings: CalibrationSettings, group_size: int
    ) -> None:
        self._model, self._number, self._layer = model, number, layer
        self._searches, self._group_size = settings.search_scale, group_size
        self._groups = groups_of(model.spec, number)
        self._consumers = {name for group in self._groups for name in group.consumers}
        self._inputs: dict[str, Statistics] = defaultdict(Statistics)
        self._outputs: dict[str, Statistics] = defaultdict(Statistics)
        self._moments: dict[str, InputMoments] = {}

    def run(self, hidden: HiddenStates) -> Iterator[Tensor]:
        """Yield the layer's outputs, looking at what happens in it."""
        self._layer.watch = self._record_input
        self._layer.watch_output = None if self._searches else self._record_output
        for batch in hidden.read(self._number):
            yield self._model.run(self._number, self._layer, batch)

    def result(self) -> LayerStats:
        """Return the statistics by the checkpoint's names."""
        found: LayerStats = {INPUTS: {kind: {} for kind in _KINDS}}
        if not self._searches:
            found[OUTPUTS] = {kind: {} for kind in _KINDS}
        for name in self._consumers & self._inputs.keys():
            rows = self._model.row_map(self._number, f"{name}.weight")
            for source in rows.names:
                order, _ = rows.of(source)
                module = source.removesuffix(".weight")
                for kind in _KINDS:
                    found[INPUTS][kind][module] = self._inputs[name].value(kind)
                    if not self._searches:
                        found[OUTPUTS][kind][module] = self._outputs[name].value(kind)[order]
        if self._searches:
            found[INPUTS]["ratios"] = dict(self._ratios())
        return found

    def _record_input(self, name: str, x: Tensor) -> None:
        if name in self._consumers:
            self._inputs[name].add(x)
        if self._searches and any(name == group.seen_as for group in self._groups):
            if name not in self._moments:
                block = block_of(x.shape[-1], self._grid(x.shape[-1]).group)
                self._moments[name] = InputMoments.empty(x.shape[-1], x.device, block)
            self._moments[name].add(x)

    def _record_output(self, name: str, y: Tensor) -> None:
        if name in self._consumers:
            self._outputs[name].add(y)

    def _grid(self, features: int) -> Grid:
        size = features if self._group_size == WHOLE_ROW else self._group_size
        return Grid(_BITS, size, is_symmetric=False)

    def _ratios(self) -> Iterator[tuple[str, float]]:
        for group in self._groups:
            if group.producer is not None and group.seen_as in self._moments:
                ratio = self._ratio_of(group)
                for name in group.consumers:
                    for source in self._model.row_map(self._number, f"{name}.weight").names:
                        yield source.removesuffix(".weight"), ratio

    def _ratio_of(self, group: ScaledGroup) -> float:
        weights = [self._layer.weight(name) for name in group.consumers]
        moments = self._moments[group.seen_as]
        return search_ratio(weights, moments, self._grid(weights[0].shape[1]), RATIOS, group.tie)
