"""The engine's structs: how to generate, and how to run a model."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from lmdeploy.fields.rows import MAX_INT32, MAX_SEED, Kind, Row, rows_of
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.pytorch.settings import WorkerSettings
from lmdeploy.serve.request import FIELDS

ROOT = Path(__file__).resolve().parents[2]
NOTE = "// Written by `make fields` from {}; change that."
_TYPES = {
    Kind.FLAG: "bool",
    Kind.WHOLE: "int",
    Kind.SEED: "uint64_t",
    Kind.TEXT: "std::string",
    Kind.TEXTS: "std::vector<std::string>",
    Kind.TOKENS: "std::vector<int32_t>",
    Kind.BIASES: "std::vector<std::pair<int32_t, float>>",
    Kind.JSON: "std::string",
    Kind.NAMES: "std::map<std::string, std::string>",
}
_SETTING_TYPES = {**_TYPES, Kind.NUMBER: "double", Kind.JSON: "Json"}
_FIELD_TYPES = {**_TYPES, Kind.NUMBER: "float"}
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

namespace turbomind {{

struct GenerationFields {{
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


def generation_fields(_: str) -> str:
    """Return backend_cpp/engine/fields/generation_fields.h."""
    rows = [row for row in FIELDS.values() if row.is_param]
    text = _GENERATION.format(
        note=NOTE.format("lmdeploy/messages.py and lmdeploy/serve/request.py"),
        members=_members(rows, _FIELD_TYPES),
        visits=_visits(rows, "fields"),
        sampling=", ".join(f'"{row.name}"' for row in rows if row.makes_sampling),
        others="\n".join(f'    {{"{name}", "{row.name}"}},' for row in rows for name in row.also),
    )
    return laid_out(text)


def engine_settings(_: str) -> str:
    """Return backend_cpp/engine/fields/engine_settings_fields.h."""
    rows = rows_of(TurbomindEngineConfig) + rows_of(WorkerSettings)
    text = _SETTINGS.format(
        note=NOTE.format("lmdeploy/messages.py and lmdeploy/pytorch/settings.py"),
        members=_members(rows, _SETTING_TYPES),
        visits=_visits(rows, "settings"),
    )
    return laid_out(text)


def laid_out(source: str) -> str:
    """Return C++ as clang-format lays it out."""
    command = [
        str(Path(sys.executable).parent / "clang-format"),
        "--style=file",
        "--assume-filename=backend_cpp/written.h",
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _members(rows: Iterable[Row], types: Mapping[Kind, str]) -> str:
    lines = []
    for row in rows:
        lines += textwrap.wrap(row.sentence, width=116, initial_indent="  // ", subsequent_indent="  // ")
        lines.append(f"  {_declaration(row, types[row.kind])};")
    return "\n".join(lines)


def _declaration(row: Row, kind: str) -> str:
    value = row.none_means if row.default is None else row.default
    if value is None and row.kind in (Kind.WHOLE, Kind.NUMBER, Kind.SEED, Kind.FLAG):
        return f"std::optional<{kind}> {row.name}"
    if value is None or value == "":
        return f"{kind} {row.name}"
    return f"{kind} {row.name} = {_literal(kind, value)}"


def _literal(kind: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value}f" if kind == "float" else str(value)


def _visits(rows: Iterable[Row], what: str) -> str:
    lines = []
    for row in rows:
        limits = _limits(row)
        lines.append(f'  visit("{row.name}", {what}.{row.name}, {limits});')
    return "\n".join(lines)


def _limits(row: Row) -> str:
    if row.choices:
        shown = ", ".join(str(choice) for choice in row.choices if choice is not None)
        none = f".none = {row.none_means:g}, " if isinstance(row.none_means, int) else ""
        return f'Limits{{{none}.choices = "{shown}"}}'
    low = row.low if row.wire_low is None else row.wire_low
    parts = []
    if row.above is not None:
        parts += [f".low = {row.above:g}", ".excludes_low = true"]
    elif low is not None and row.kind is not Kind.SEED and not math.isclose(low, -MAX_INT32):
        parts.append(f".low = {low:g}")
    if row.high is not None and row.high not in (MAX_INT32, MAX_SEED):
        parts.append(f".high = {row.high:g}")
    if row.none_means is not None and low is not None and row.none_means < low:
        parts.append(f".none = {row.none_means:g}")
    if row.max_items is not None:
        parts.append(f".max_items = {row.max_items}")
    if row.max_bytes is not None:
        parts.append(f".max_bytes = {row.max_bytes}")
    return f"Limits{{{', '.join(parts)}}}"
