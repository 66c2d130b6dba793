"""The weight manifest: every tensor of the engine as an expression over the checkpoint's own tensors.

The JSON form is ``manifest.json`` of an engine directory (docs/internals/interfaces.md). This module
reads and writes no weights.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = 1
_FEW_MISSING = 8  # which a message names one by one
_SHOWN_NAMES = 4
WEIGHT_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Load:
    """The checkpoint tensor ``name``, which must have ``shape`` and one of the safetensors types ``dtypes``."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = tuple(WEIGHT_DTYPES)


@dataclass(frozen=True)
class Concat:
    """``args`` joined along dimension 0."""

    args: tuple["Expression", ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The joined shape."""
        return (sum(argument.shape[0] for argument in self.args), *self.args[0].shape[1:])


@dataclass(frozen=True)
class Slice:
    """``[begin, end)`` of dimension ``dim`` of the only argument."""

    args: tuple["Expression"]
    dim: int
    begin: int
    end: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The argument's shape with ``end - begin`` at ``dim``."""
        whole = self.args[0].shape
        return (*whole[: self.dim], self.end - self.begin, *whole[self.dim + 1 :])


@dataclass(frozen=True)
class Permute:
    """The only argument with its dimensions in the order ``dims``."""

    args: tuple["Expression"]
    dims: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The argument's sizes in the order ``dims``."""
        return tuple(self.args[0].shape[dim] for dim in self.dims)


@dataclass(frozen=True)
class Reshape:
    """The only argument's elements, row-major, in another shape."""

    args: tuple["Expression"]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Inputs:
    """The only argument, a matrix, with its inputs (dimension 1) in another order: blocks of ``size``, by number."""

    args: tuple["Expression"]
    size: int
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The argument's outputs, and as many inputs as the blocks have."""
        return (self.args[0].shape[0], self.size * len(self.order))


@dataclass(frozen=True)
class LogNegative:
    """``log(-x)`` of each number of the only argument."""

    args: tuple["Expression"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The argument's."""
        return self.args[0].shape


@dataclass(frozen=True)
class AddProduct:
    """A matrix plus the product of two others, ``args[0] + args[1] @ args[2]``, in float32."""

    args: tuple["Expression", "Expression", "Expression"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The first argument's."""
        return self.args[0].shape


@dataclass(frozen=True)
class Constant:
    """One number everywhere, which no checkpoint has, such as weights of a norm without weights."""

    shape: tuple[int, ...]
    value: float
    args: tuple["Expression", ...] = ()


@dataclass(frozen=True)
class Quantized:
    """The matrix that a checkpoint stores as codes (``lmdeploy.turbomind.quantized``)."""

    # How the codes are packed; ``group`` inputs share a scale
    layout: str
    bits: int
    group: int
    zeros_less_one: bool
    shape: tuple[int, ...]  # ``[out_features, in_features]``
    args: tuple[Load, ...]  # the tensors: codes, zero points, scales and, if stored, each input's group
    problems: tuple[str, ...] = ()  # what is wrong with these numbers, a sentence each
    stored_bits: int = 0  # of a code in the files, where these are less


@dataclass(frozen=True)
class Mxfp4:
    """The numbers that 4-bit floats ``[..., blocks, 16]`` (two in a byte) with scales ``[..., blocks]`` stand for."""

    args: tuple["Expression", "Expression"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers, ``[..., 32 blocks]``."""
        *outer, blocks = self.args[1].shape
        return (*outer, 32 * blocks)


@dataclass(frozen=True)
class Scaled:
    """A matrix of one byte a code, times scales (``lmdeploy.turbomind.scaled``)."""

    block: tuple[int, int]  # neighbouring outputs and inputs that share a scale
    args: tuple["Expression", "Expression"]  # codes ``[out_features, in_features]`` and scales
    divisor: float = 1.0  # what scales are divided by

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the codes."""
        return self.args[0].shape


@dataclass(frozen=True)
class RowQuantized:
    """The matrix that a checkpoint stores as codes, output by output (``lmdeploy.turbomind.row_quantized``)."""

    # How the codes are laid out, what kernels get of them, and how many inputs share a scale
    layout: str
    bits: int
    group: int
    # Further members of ``args``, after codes and scales: ``zeros``, ``groups`` (of inputs), ``factor`` or ``divisor``
    more: tuple[str, ...]
    shape: tuple[int, ...]  # ``[out_features, in_features]``
    args: tuple[Load, ...]  # the tensors
    problems: tuple[str, ...] = ()  # what is wrong with these numbers, a sentence each


@dataclass(frozen=True)
class Table:
    """A matrix stored as entries of a table times scales (``lmdeploy.turbomind.row_quantized.blocks``)."""

    # Neighbouring numbers that share a scale, and neighbouring scales that share one; 0: scales are numbers
    block: int
    outer_block: int
    offset: float  # added to each scale that is quantized
    shape: tuple[int, ...]  # ``[out_features, in_features]``
    args: tuple[Load, ...]  # the tensors: codes, table, scales and, of quantized scales, their table and scales
    problems: tuple[str, ...] = ()  # what is wrong with these numbers, a sentence each


@dataclass(frozen=True)
class Affine:
    """The matrix that a checkpoint stores as codes, scales and biases of ``group`` inputs, as MLX does."""

    # Of a code, and how many inputs share a scale and a bias
    bits: int
    group: int
    shape: tuple[int, ...]  # ``[out_features, in_features]``
    args: tuple[Load, ...]  # the tensors: codes, scales, biases
    problems: tuple[str, ...] = ()  # what is wrong with these numbers, a sentence each


AnyQuantized = Quantized | RowQuantized | Table | Affine
Operation = (
    Concat | Slice | Permute | Reshape | Inputs | LogNegative | AddProduct | Constant | Mxfp4 | Scaled | AnyQuantized
)
Expression = Load | Operation


def concat(*args: Expression) -> Concat:
    """Return ``args`` joined along dimension 0."""
    return Concat(args)


def rows_of(argument: Expression, begin: int, end: int, dim: int = 0) -> Expression:
    """Return ``[begin, end)`` of a dimension; where that is one of the arguments of a concatenation, this argument."""
    if isinstance(argument, Concat) and dim == 0:
        at = 0
        for part in argument.args:
            if (at, at + part.shape[0]) == (begin, end):
                return part
            at += part.shape[0]
    return Slice((argument,), dim, begin, end)


def permute(argument: Expression, *dims: int) -> Permute:
    """Return ``argument`` with its dimensions in another order."""
    return Permute((argument,), dims)


def transpose(argument: Expression) -> Permute:
    """Return a matrix with rows and columns swapped."""
    return permute(argument, 1, 0)


def reshape(argument: Expression, *shape: int) -> Reshape:
    """Return the elements of ``argument`` in another shape."""
    return Reshape((argument,), shape)


def repeated_rows(argument: Expression, times: int) -> Expression:
    """Return each row of ``argument`` so often."""
    rows, *inputs = argument.shape
    turns = reshape(concat(*(argument,) * times), times, rows, *inputs)
    return reshape(permute(turns, 1, 0, *range(2, len(inputs) + 2)), rows * times, *inputs)


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions in it."""
    yield expression
    if not isinstance(expression, Load):
        for argument in expression.args:
            yield from walk(argument)


def over_loads(
    expression: Expression,
    made_of: Callable[[Load], Expression],
    whole: Callable[[Operation], Expression | None] = lambda _: None,
) -> Expression:
    """Return an expression with something else in each tensor's place, or in an operation's if ``whole`` returns it."""
    if isinstance(expression, Load):
        return made_of(expression)
    if (made := whole(expression)) is not None:
        return made
    arguments: Any = tuple(over_loads(argument, made_of, whole) for argument in expression.args)
    return replace(expression, args=arguments)


def renamed(expression: Expression, name_of: Callable[[str], str]) -> Expression:
    """Return an expression over tensors of other names."""
    return over_loads(expression, lambda load: replace(load, name=name_of(load.name)))


@dataclass(frozen=True)
class Manifest:
    """The JSON-ready manifest: ``files`` and, for each engine tensor, an expression tree of dicts.

    ``weight_format`` says how the checkpoint stores its linear layers: ``hf`` (numbers), ``awq``, ``gptq`` or one of
    ``lmdeploy.turbomind.scaled.METHODS``.
    """

    files: tuple[Path, ...]
    tensors: Mapping[str, Mapping[str, Any]]
    weight_format: str = "hf"

    @classmethod
    def build(cls, tensors: Mapping[str, Expression], index: SafetensorsIndex, weight_format: str = "hf") -> "Self":
        """Return the manifest of ``tensors``, all of which must be in ``index`` (see :func:`find_problems`)."""

        def tree(expression: Expression) -> dict[str, Any]:
            if isinstance(expression, Load):
                info = index.tensors[expression.name]
                load = {"op": "load", "file": info.file, "name": expression.name}
                if info.offset is None:
                    return load
                return load | {"type": info.dtype, "shape": list(info.shape), "offset": info.offset}
            return _operation(expression) | {"args": [tree(argument) for argument in expression.args]}

        files = tuple(path.absolute() for path in index.files)
        return cls(files, {name: tree(expression) for name, expression in tensors.items()}, weight_format)

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        content = {
            "format": FORMAT,
            "weight_format": self.weight_format,
            "files": [str(file) for file in self.files],
            "tensors": self.tensors,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str, base: Path) -> "Self":
        """Return the manifest in ``text``; relative files start at ``base``, the manifest's folder."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"not a manifest.json of format {FORMAT}")
        files = tuple(base / name for name in content["files"])
        return cls(files, content["tensors"], content["weight_format"])

    def loads(self) -> Iterator[tuple[int, str, int | None]]:
        """Yield file number and name of every checkpoint tensor the manifest reads, and its place in a GGUF file."""

        def loads_in(tree: Mapping[str, Any]) -> Iterator[tuple[int, str, int | None]]:
            if tree["op"] == "load":
                yield tree["file"], tree["name"], tree.get("offset")
            for argument in tree.get("args", ()):
                yield from loads_in(argument)

        for expression in self.tensors.values():
            yield from loads_in(expression)


def _operation(expression: Operation) -> dict[str, Any]:
    match expression:
        case Quantized():
            names = ("layout", "bits", "group", "zeros_less_one", "shape")
            stored = {"stored_bits": expression.stored_bits} if expression.stored_bits else {}
            return {"op": "quantized"} | {name: getattr(expression, name) for name in names} | stored
        case RowQuantized():
            names = ("layout", "bits", "group", "more", "shape")
            return {"op": "row_codes"} | {name: getattr(expression, name) for name in names}
        case Table():
            numbers = ("block", "outer_block", "offset", "shape")
            return {"op": "table"} | {name: getattr(expression, name) for name in numbers}
        case Affine():
            return {"op": "affine"} | {name: getattr(expression, name) for name in ("bits", "group", "shape")}
        case Slice():
            return {"op": "slice", "dim": expression.dim, "begin": expression.begin, "end": expression.end}
        case Permute():
            return {"op": "permute", "dims": list(expression.dims)}
        case Reshape():
            return {"op": "reshape", "shape": list(expression.shape)}
        case Inputs():
            return {"op": "inputs", "size": expression.size, "order": list(expression.order)}
        case LogNegative():
            return {"op": "log_negative"}
        case AddProduct():
            return {"op": "add_product"}
        case Constant():
            return {"op": "constant", "shape": list(expression.shape), "value": expression.value}
        case Mxfp4():
            return {"op": "mxfp4"}
        case Scaled():
            divisor = {} if expression.divisor == 1 else {"divisor": expression.divisor}
            return {"op": "scaled", "block": list(expression.block)} | divisor
        case Concat():
            return {"op": "concat"}


def find_problems(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> list[str]:
    """Return everything that keeps the engine tensors from being loaded: one sentence a problem.

    ``tensors``: expression of each engine tensor. ``index``: what the checkpoint holds. Its own problems come first.
    """
    problems = list(index.problems)
    parts = [part for expression in tensors.values() for part in walk(expression)]
    problems += [problem for part in parts if isinstance(part, AnyQuantized) for problem in part.problems]
    needed = {part.name: part for part in parts if isinstance(part, Load)}
    missing = [] if index.has_unread_files else [name for name in needed if name not in index.tensors]
    others = sorted(index.tensors.keys() - needed, key=lambda name: (name.count("."), name))
    if others and len(missing) > max(_FEW_MISSING, len(needed) // 2):
        problems.append(
            f"{len(missing)} of the {len(needed)} tensors of this architecture are missing, such as {missing[0]}; the "
            f"files hold others, such as {', '.join(others[:_SHOWN_NAMES])}: they or config.json are another model's"
        )
    else:
        problems += [f"tensor {name} is missing" for name in missing]
    for name, load in needed.items():
        found = index.tensors.get(name)
        if found is None:
            continue
        if found.shape != load.shape:
            problems.append(f"tensor {name} has shape {list(found.shape)}, expected {list(load.shape)}")
        elif found.dtype not in load.dtypes:
            problems.append(f"tensor {name} has type {found.dtype}, expected one of {', '.join(load.dtypes)}")
    return problems
