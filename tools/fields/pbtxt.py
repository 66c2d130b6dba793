"""The inputs of the models ``turbomind`` and ``ensemble``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from lmdeploy.fields.field import FieldInfo, Kind, describe
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


def default_text(field: FieldInfo) -> str:
    """Return the value of a tensor that is not given."""
    if field.tensor_default:
        return field.tensor_default
    if field.default is None:
        return "none"
    default = field.default
    return str(default).lower() if isinstance(default, bool | str) else f"{default:g}"


def engine(text: str) -> str:
    """Return turbomind/config.pbtxt with the inputs of the table, each with its sentence."""
    lines = []
    for field in FIELDS.values():
        if not field.is_tensor:
            continue
        sentence = f"{describe(field)} Default: {default_text(field)}."
        lines += textwrap.wrap(sentence, width=116, initial_indent="  # ", subsequent_indent="  # ")
        lines += _inputs(field)
    return _replaced(text, "#", "fields of a request", lines)


def ensemble(text: str) -> str:
    """Return ensemble/config.pbtxt with the inputs of the table, handed to turbomind."""
    inputs = [line for field in FIELDS.values() for line in _inputs(field)]
    maps = []
    for field in FIELDS.values():
        for name, _, _ in tensors(field):
            key = f'"{name}"'
            maps.append(f'      input_map  {{ key: {key:<22} value: "{_FROM_PREPROCESSING.get(name, name)}" }}')
    text = _replaced(text, "#", "fields of a request", inputs)
    return _replaced(text, "#", "fields of a request, handed on", maps, indent="      ")


def _inputs(field: FieldInfo) -> list[str]:
    lines = []
    for name, data_type, dimension in tensors(field):
        quoted, dims = f'"{name}"', f"[ {dimension} ]"
        lines.append(f"  {{ name: {quoted:<21} data_type: {data_type:<11} dims: {dims:<6} optional: true }},")
    return lines


def _replaced(text: str, comment: str, part: str, lines: list[str], indent: str = "  ") -> str:
    """Return `text` with `lines` between the marks of `part`; raise `ValueError` if the marks are not there."""
    begin = f"{indent}{comment} begin: {part} (written by `make fields`)\n"
    end = f"{indent}{comment} end: {part}\n"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"no lines that mark the part {part!r}")
    return before + begin + "".join(f"{line}\n" for line in lines) + end + after
