"""The structs of a model's description, with the rules of their fields, from ``lmdeploy/turbomind/spec``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from lmdeploy.turbomind.spec import ModelSpec
from lmdeploy.turbomind.spec.fields import Field, OneOf, Real, Whole, fields_of
from tools.fields.cpp import NOTE

_TYPES = {bool: "bool", int: "int", float: "float", str: "std::string"}
_PAGE = """\
// Description of one decoder model: sizes and the choices in which families differ.
{note}
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

{headers}
#include "model/spec/spec_rules.h"

namespace turbomind {{

{enums}

{structs}

}}  // namespace turbomind
"""


def structs(_: str) -> str:
    """Return backend_cpp/model/spec/model_spec_fields.h."""
    parts = list(dict.fromkeys(_parts_first(ModelSpec)))
    choices = {rule.enum: rule for part in parts for rule in _enums(part)}
    headers = sorted({f'#include "{rule.header}"' for rule in choices.values() if rule.header})
    return _PAGE.format(
        note=NOTE.format("lmdeploy/turbomind/spec/"),
        headers="\n".join(headers),
        enums="\n".join(_enum(rule) for rule in choices.values()),
        structs="\n\n".join(_struct(part) for part in parts),
    )


def _parts_first(part: type) -> Iterator[type]:
    """Yield the dataclasses that a description consists of, each after its parts."""
    for field in fields_of(part):
        if isinstance(field.kind, type) and dataclasses.is_dataclass(field.kind):
            yield from _parts_first(field.kind)
    yield part


def _enums(part: type) -> Iterator[OneOf]:
    for field in fields_of(part):
        if isinstance(field.rule, OneOf) and field.rule.enum:
            yield field.rule


def _enum(rule: OneOf) -> str:
    values = ", ".join(_enumerator(name) for name in rule.names)
    names = ", ".join(f'{{"{name}", {rule.enum}::{_enumerator(name)}}}' for name in rule.names)
    declaration = "" if rule.header else f"enum class {rule.enum} : uint8_t {{ {values} }};\n"
    kind = f"std::array<std::pair<std::string_view, {rule.enum}>, {len(rule.names)}>"
    return f"{declaration}inline constexpr {kind} k{rule.enum}Names{{{{{names}}}}};"


def _enumerator(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def _struct(part: type) -> str:
    lines = [f"struct {part.__name__} {{"]
    lines += [f"  {_type(field)} {field.name}{_default(field)};" for field in fields_of(part)]
    lines += ["};", "", "template <class Visit>", f"void visit_fields({part.__name__}& part, Visit&& visit) {{"]
    lines += [f"  {_visit(field)}" for field in fields_of(part)]
    return "\n".join([*lines, "}"])


def _scalar_type(field: Field) -> str:
    if isinstance(field.rule, OneOf) and field.rule.enum:
        return field.rule.enum
    if isinstance(field.rule, Real) and field.rule.is_double:
        return "double"
    return _TYPES.get(field.kind) or str(field.kind.__name__)


def _type(field: Field) -> str:
    kind = _scalar_type(field)
    return f"std::vector<{kind}>" if field.is_tuple else f"std::optional<{kind}>" if field.is_optional else kind


def _default(field: Field) -> str:
    if field.is_tuple or field.is_optional or dataclasses.is_dataclass(field.kind):
        return ""
    if isinstance(field.rule, OneOf) and field.rule.enum:
        return f" = {_value(field, field.rule.names[0] if field.is_required else field.default)}"
    value = field.kind() if field.is_required else field.default
    return "" if value == "" else f" = {_value(field, value)}"


def _value(field: Field, value: Any) -> str:
    if isinstance(field.rule, OneOf):
        return f"{field.rule.enum}::{_enumerator(value)}" if field.rule.enum else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _visit(field: Field) -> str:
    rules = [_rule(field)]
    if field.per_layer:
        rules.append(f"PerLayer{{{_scalar_type(field)}{{{_value(field, field.per_layer.default)}}}}}")
    call = "required" if field.is_required else "optional"
    return f'visit.{call}("{field.name}", part.{field.name}, {", ".join(rules)});'


def _rule(field: Field) -> str:
    rule = field.rule
    if isinstance(rule, Whole):
        return f"Whole{{{rule.low}, {rule.high}}}"
    if isinstance(rule, Real):
        low = rule.above if rule.low is None else rule.low
        return "Real{}" if low is None else f"Real{{{low:g}, {str(rule.low is None).lower()}}}"
    return f"k{rule.enum}Names" if isinstance(rule, OneOf) and rule.enum else "Anything{}"
