"""The engine's structs: how to generate, and how to run a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lmdeploy.fields.field import MAX_INT32, MAX_SEED, FieldInfo, Kind, fields_of
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.pytorch.settings import WorkerSettings
from lmdeploy.serve.request import FIELDS

NOTE = "// Written when CMake configures, from {}; change that."
_TYPES = {
    Kind.BOOLEAN: "bool",
    Kind.INTEGER: "int",
    Kind.SEED: "uint64_t",
    Kind.STRING: "std::string",
    Kind.STRINGS: "std::vector<std::string>",
    Kind.TOKENS: "std::vector<int32_t>",
    Kind.BIASES: "std::vector<std::pair<int32_t, float>>",
    Kind.JSON: "std::string",
    Kind.NAMES: "std::map<std::string, std::string>",
}
_SETTING_TYPES = {**_TYPES, Kind.NUMBER: "double", Kind.JSON: "Json"}
_FIELD_TYPES = {**_TYPES, Kind.NUMBER: "float"}
_SAMPLING = """\
// How a token is chosen from a row of logits, as a request says it.
{note}
#pragma once

namespace turbomind {{

// Devices and workers receive it as it is. The defaults ask for nothing.
struct SamplingFields {{
{members}
}};

// Calls visit(name, field, what asks for nothing) for every field.
template <class Fields, class Visit>
void visit_sampling(Fields& fields, Visit&& visit) {{
{visits}
}}

}}  // namespace turbomind
"""
_GENERATION = """\
// How a response is generated, as a request says it.
{note}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fields/limits.h"
#include "kernels/sampling_fields.h"

namespace turbomind {{

struct GenerationFields : SamplingFields {{
  GenerationFields() {{
{defaults}
  }}

{members}
}};

// Calls visit(name, field, limits) for every field.
template <class Fields, class Visit>
void visit_fields(Fields& fields, Visit&& visit) {{
{visits}
}}

// Fields a request that has one of them samples by, unless do_sample says otherwise.
inline constexpr std::string_view kSamplingFields[] = {{{sampling}}};

// Other names of fields among the parameters of a Triton request: {{theirs, ours}}.
inline constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {{
{others}
}};

}}  // namespace turbomind
"""
_SETTINGS = """\
// How a model is run: the fields of TurbomindEngineConfig and of WorkerSettings.
{note}
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "engine/fields/limits.h"

namespace turbomind {{

struct EngineSettings {{
{members}
}};

// Calls visit(name, field, limits) for every setting.
template <class Settings, class Visit>
void visit_settings(Settings& settings, Visit&& visit) {{
{visits}
}}

}}  // namespace turbomind
"""


def sampling_fields(_: str) -> str:
    """Return backend_cpp/kernels/sampling_fields.h."""
    fields = [replace(field, default=field.off) for field in FIELDS.values() if field.off is not None]
    return _SAMPLING.format(
        note=NOTE.format("lmdeploy/messages.py"),
        members=_members(fields, _FIELD_TYPES),
        visits="\n".join(
            f'  visit("{field.name}", fields.{field.name}, {_literal(_FIELD_TYPES[field.kind], field.default)});'
            for field in fields
        ),
    )


def generation_fields(_: str) -> str:
    """Return backend_cpp/engine/fields/generation_fields.h."""
    fields = [field for field in FIELDS.values() if field.is_param]
    return _GENERATION.format(
        note=NOTE.format("lmdeploy/messages.py and lmdeploy/serve/request.py"),
        defaults="\n".join(
            f"    {field.name} = {_literal(_FIELD_TYPES[field.kind], field.default)};"
            for field in fields
            if field.off not in (None, field.default)
        ),
        members=_members([field for field in fields if field.off is None], _FIELD_TYPES),
        visits=_visits(fields, "fields"),
        sampling=", ".join(f'"{field.name}"' for field in fields if field.makes_sampling),
        others="\n".join(f'    {{"{name}", "{field.name}"}},' for field in fields for name in field.also),
    )


def engine_settings(_: str) -> str:
    """Return backend_cpp/engine/fields/engine_settings_fields.h."""
    fields = fields_of(TurbomindEngineConfig) + fields_of(WorkerSettings)
    return _SETTINGS.format(
        note=NOTE.format("lmdeploy/messages.py and lmdeploy/pytorch/settings.py"),
        members=_members(fields, _SETTING_TYPES),
        visits=_visits(fields, "settings"),
    )


def _members(fields: Iterable[FieldInfo], types: Mapping[Kind, str]) -> str:
    return "\n".join(f"  {_declaration(field, types[field.kind])};" for field in fields)


def _declaration(field: FieldInfo, kind: str) -> str:
    value = field.none_means if field.default is None else field.default
    if value is None and field.kind in (Kind.INTEGER, Kind.NUMBER, Kind.SEED, Kind.BOOLEAN):
        return f"std::optional<{kind}> {field.name}"
    if value is None or value == "":
        return f"{kind} {field.name}"
    return f"{kind} {field.name} = {_literal(kind, value)}"


def _literal(kind: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'Json::parse(R"("{value}")")' if kind == "Json" else f'"{value}"'
    return f"{float(str(value))}f" if kind == "float" else str(value)


def _visits(fields: Iterable[FieldInfo], what: str) -> str:
    return "\n".join(f'  visit("{field.name}", {what}.{field.name}, {_limits(field)});' for field in fields)


def _limits(field: FieldInfo) -> str:
    if field.choices and field.kind is not Kind.JSON:
        shown = ", ".join(str(choice) for choice in field.choices if choice is not None)
        none = f".none = {field.none_means:g}, " if isinstance(field.none_means, int) else ""
        return f'Limits{{{none}.choices = "{shown}"}}'
    low = field.low if field.wire_low is None else field.wire_low
    parts = []
    if field.above is not None:
        parts += [f".low = {field.above:g}", ".excludes_low = true"]
    elif low is not None and field.kind is not Kind.SEED and not math.isclose(low, -MAX_INT32):
        parts.append(f".low = {low:g}")
    if field.high is not None and field.high not in (MAX_INT32, MAX_SEED):
        parts.append(f".high = {field.high:g}")
    if field.none_means is not None and low is not None and field.none_means < low:
        parts.append(f".none = {field.none_means:g}")
    if field.max_items is not None:
        parts.append(f".max_items = {field.max_items}")
    if field.max_bytes is not None:
        parts.append(f".max_bytes = {field.max_bytes}")
    return f"Limits{{{', '.join(parts)}}}"
