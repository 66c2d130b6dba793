"""Quantized linear layers of a checkpoint, for models that run in PyTorch.

How codes are stored is known to the readers of the TurboMind engine (`lmdeploy.turbomind.quantized`, ``scaled`` and
``row_quantized``); its C++ code packs them for the CPU's kernels, or turns them into numbers.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import lmdeploy._turbomind as _turbomind
from lmdeploy.errors import CheckpointError
from lmdeploy.pytorch.text_part.tensors import TextTensors, text_tensors
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.manifest import Expression, Load, Manifest, Quantized, RowQuantized, Scaled, find_problems, walk
from lmdeploy.turbomind.quantized import Quantization, is_zero_bias_of_quantized, weight_format, with_quantized
from lmdeploy.turbomind.row_quantized import RowScheme, row_schemes, with_row_quantized
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, TensorInfo, read_checkpoint
from lmdeploy.turbomind.scaled import ScaledWeights, is_unused, with_scales
from lmdeploy.turbomind.stacked_experts import parts_of_stacks, stack_of

_WEIGHT = ".weight"
_MAX_OUTPUTS = 1 << 32
_QUANTIZED_DTYPES = ("I8", "F8_E4M3")
Part = tuple[int, int, int]  # how many there are, and which: [begin, end)


class QuantizedMatrix:
    """A weight as the kernels take it, packed from codes; has what `lmdeploy.pytorch.cpu_kernels.Matrix` has."""

    def __init__(
        self,
        checkpoint: _turbomind.QuantizedCheckpoint,  # where the codes are
        outputs: Sequence[tuple[str, Part]],  # tensors and which of their outputs, one after another
        inputs: Part,  # which of the inputs
        bias: torch.Tensor | None,  # ``[outputs]`` or None
    ) -> None:
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        address = 0 if self.bias is None else self.bias.data_ptr()
        self._linear = _turbomind.QuantizedLinear(checkpoint, outputs, inputs, address)
        self.native = self._linear.weight
        self.is_packed = self._linear.is_packed
        self.out_features = sum(end - begin for _, (_, begin, end) in outputs)
        self.in_features = inputs[2] - inputs[1]


@dataclass(frozen=True)
class QuantizedWeights:
    """The coded layers of a checkpoint."""

    shapes: dict[str, tuple[int, int]]  # ``[outputs, inputs]`` of each layer's weight, by the layer's name
    expressions: dict[str, Quantized | RowQuantized | Scaled]  # how each is stored
    hidden: frozenset[str]  # the tensors that codes and what belongs to them are stored in: a model must not load them
    index: SafetensorsIndex  # of the checkpoint
    native: _turbomind.QuantizedCheckpoint
    # Names of layers in the checkpoint, where they differ: those of a text part
    stored_as: Mapping[str, str] = field(default_factory=dict)

    def _stored(self, layer: str) -> str:
        return self.stored_as.get(layer, layer) + _WEIGHT

    def matrix(
        self, outputs: Sequence[tuple[str, slice]], inputs: slice | None = None, bias: torch.Tensor | None = None
    ) -> QuantizedMatrix:
        """Return a weight made of outputs of layers.

        ``outputs``: layers and which of their outputs, one after another; all have the same inputs. ``inputs``: which
        of the inputs; None: all. ``bias``: ``[outputs]`` or None.
        """
        width = self.shapes[outputs[0][0]][1]
        kept = slice(0, width) if inputs is None else inputs
        parts = [(self._stored(name), (self.shapes[name][0], rows.start, rows.stop)) for name, rows in outputs]
        return QuantizedMatrix(self.native, parts, (width, kept.start, kept.stop), bias)

    def indices(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield in the place of each weight where it is stored, as int64 ``[outputs, inputs]``; see `rows_of`."""
        for number, (layer, (outputs, inputs)) in enumerate(self.shapes.items()):
            yield layer + _WEIGHT, (torch.arange(outputs) + number * _MAX_OUTPUTS)[:, None].expand(outputs, inputs)

    def rows_of(self, indices: torch.Tensor) -> list[tuple[str, slice]]:
        """Return layers and which of their outputs some indices ``[count]`` are, in this order."""
        rows: list[tuple[str, slice]] = []
        names = list(self.shapes)
        for index in indices.tolist():
            layer, output = names[index // _MAX_OUTPUTS], index % _MAX_OUTPUTS
            if rows and rows[-1][0] == layer and rows[-1][1].stop == output:
                rows[-1] = (layer, slice(rows[-1][1].start, output + 1))
            else:
                rows.append((layer, slice(output, output + 1)))
        return rows

    def stored(self, layer: str) -> list[torch.Tensor]:
        """Return the tensors of a layer's codes as they are, in the order of its expression."""
        return [self.index.tensor(part.name) for part in walk(self.expressions[layer]) if isinstance(part, Load)]

    def numbers(self, layer: str) -> torch.Tensor:
        """Return the weight ``[outputs, inputs]`` that a layer's codes stand for, float32."""
        outputs, inputs = self.shapes[layer]
        values = torch.empty(outputs, inputs, dtype=torch.float32)
        self.native.read(self._stored(layer), outputs, inputs, values.data_ptr())
        return values


def is_index(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is what `QuantizedWeights.places` yields."""
    return bool(tensor.dtype == torch.int64 and tensor.dim() == 2)


def require_numbers(tensor: torch.Tensor) -> None:
    """Raise ``ValueError`` for codes where a model takes numbers alone."""
    if is_index(tensor):
        raise ValueError("the weight is stored as codes, which this layer does not take")


@functools.lru_cache(maxsize=1)  # a worker asks twice for its one checkpoint
def quantized_weights(checkpoint: Path) -> QuantizedWeights | None:
    """Return the coded layers of a checkpoint, or of the text part that a folder is; None if config.json names none.

    Raises `UnsupportedModelError` if codes are of a kind that no engine here reads, and `CheckpointError` if something
    is missing of them, or of another size than config.json says; names the tensor.
    """
    text = text_tensors(checkpoint)
    checkpoint = checkpoint if text is None else text.checkpoint
    raw = read_config(checkpoint)
    if not raw.get("quantization_config"):
        return None
    kind = weight_format(raw)
    index = read_checkpoint(checkpoint)
    quantization, scaled = Quantization.from_config(raw), ScaledWeights.from_config(raw)
    schemes = [] if scaled is None else row_schemes(raw)
    shapes = _shapes_of(index, quantization, schemes)
    tensors: dict[str, Expression] = {f"{n}{_WEIGHT}": Load(f"{n}{_WEIGHT}", shape) for n, shape in shapes.items()}
    for name, matrix in parts_of_stacks(raw, index).items():
        shapes[name], tensors[name + _WEIGHT] = (matrix.shape[0], matrix.shape[1]), matrix
    if quantization is not None:
        tensors = with_quantized(tensors, quantization, index)
    if scaled is not None:
        tensors = with_scales(with_row_quantized(tensors, schemes, index), scaled, index)
    quantized = {name: made for name, made in tensors.items() if isinstance(made, Quantized | RowQuantized | Scaled)}
    if problems := find_problems(quantized, index):
        raise CheckpointError(checkpoint, problems)
    read = {part.name for made in quantized.values() for part in walk(made) if isinstance(part, Load)}
    unused = {n for n in index.tensors if is_unused(n) or is_zero_bias_of_quantized(n, index)}
    with tempfile.TemporaryDirectory(prefix="lmdeploy-codes-") as folder:
        (Path(folder) / "manifest.json").write_text(Manifest.build(quantized, index, kind).to_json(), encoding="utf-8")
        native = _turbomind.QuantizedCheckpoint(folder)
    layers = {name.removesuffix(_WEIGHT): made for name, made in quantized.items()}
    hidden = read | unused
    stored_as = {}
    if text is not None:
        names = {layer: _name_in(text, layer) for layer in layers}
        stored_as = {name: layer for layer, name in names.items() if name}
        hidden |= {text.names[name] for name in hidden if name in text.names}
        layers = {name: layers[layer] for name, layer in stored_as.items()}
    sizes = {name: shapes[stored_as.get(name, name)] for name in layers}
    return QuantizedWeights(sizes, layers, frozenset(hidden), index, native, stored_as)


def _name_in(text: TextTensors, layer: str) -> str:
    """Return the name of a checkpoint's layer in its text part; empty: it has none."""
    if (found := stack_of(layer)) and found[0] in text.names:
        return text.names[found[0]].rpartition(".")[0] + found[1]
    return text.names.get(layer + _WEIGHT, "").removesuffix(_WEIGHT)


def _shapes_of(
    index: SafetensorsIndex, quantization: Quantization | None, schemes: Sequence[RowScheme]
) -> dict[str, tuple[int, int]]:
    """Return ``[outputs, inputs]`` of what may be coded layers, as far as the sizes of the codes say."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, info in index.tensors.items():
        layer, _, part = name.rpartition(".")
        if len(info.shape) != 2:
            continue
        if quantization is not None and part == "qweight":
            shapes[layer] = _of_words(info, quantization)
            continue
        units = [
            _inputs_of(info, scheme) for scheme in schemes if scheme.quantized == part and _inputs_of(info, scheme)
        ]
        if units or (part == "weight" and info.dtype in _QUANTIZED_DTYPES):
            shapes[layer] = (info.shape[0], info.shape[1] * (units[0] if units else 1))
    return shapes


def _inputs_of(info: TensorInfo, scheme: RowScheme) -> int:
    """Return how many inputs an element of codes holds; 0 if they are not of the scheme."""
    dtype, inputs = {"words": ("I32", 32 // scheme.bits), "bytes": ("I8", 1), "float4": ("U8", 2)}[scheme.layout]
    return inputs if info.dtype == dtype else 0


def _of_words(info: TensorInfo, quantization: Quantization) -> tuple[int, int]:
    per_word = 32 // quantization.bits
    first, second = info.shape
    return (second * per_word, first) if quantization.method == "awq" else (second, first * per_word)
