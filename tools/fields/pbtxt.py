"""The inputs of the models ``turbomind`` and ``ensemble``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lmdeploy.fields.field import FieldInfo, Kind
from lmdeploy.serve.request import FIELDS

_TYPES = {
    Kind.BOOLEAN: ("TYPE_BOOL", "1"),
    Kind.INTEGER: ("TYPE_INT32", "1"),
    Kind.NUMBER: ("TYPE_FP32", "1"),
    Kind.SEED: ("TYPE_UINT64", "1"),
    Kind.STRING: ("TYPE_STRING", "1"),
    Kind.STRINGS: ("TYPE_STRING", "-1"),
    Kind.TOKENS: ("TYPE_INT32", "-1"),
    Kind.JSON: ("TYPE_STRING", "1"),
}
# A chat template has stop words of its own, which preprocessing adds to the request's.
_FROM_PREPROCESSING = {"stop_words": "_stop_words"}


def tensors(field: FieldInfo) -> Iterator[tuple[str, str, str]]:
    """Yield name, data type and dimension of a field's tensors."""
    if not field.is_tensor:
        return
    if field.kind is Kind.BIASES:
        yield f"{field.name}_ids", "TYPE_INT32", "-1"
        yield f"{field.name}_values", "TYPE_FP32", "-1"
    else:
        yield field.name, *_TYPES[field.kind]


def engine(text: str) -> str:
    """Return turbomind/config.pbtxt with the inputs of the table."""
    return _replaced(text, "fields of a request", _inputs())


def ensemble(text: str) -> str:
    """Return ensemble/config.pbtxt with the inputs of the table, handed to turbomind."""
    maps = []
    for name, _, _ in chain.from_iterable(map(tensors, FIELDS.values())):
        key = f'"{name}"'
        maps.append(f'      input_map  {{ key: {key:<22} value: "{_FROM_PREPROCESSING.get(name, name)}" }}')
    return _replaced(engine(text), "fields of a request, handed on", maps, indent="      ")


def _inputs() -> list[str]:
    lines = []
    for name, data_type, dimension in chain.from_iterable(map(tensors, FIELDS.values())):
        quoted, dims = f'"{name}"', f"[ {dimension} ]"
        lines.append(f"  {{ name: {quoted:<21} data_type: {data_type:<11} dims: {dims:<6} optional: true }},")
    return lines


def _replaced(text: str, part: str, lines: list[str], indent: str = "  ") -> str:
    """Return `text` with `lines` between the marks of `part`; raise `ValueError` if the marks are not there."""
    begin = f"{indent}# begin: {part} (written by `make fields`)\n"
    end = f"{indent}# end: {part}\n"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"no lines that mark the part {part!r}")
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after
