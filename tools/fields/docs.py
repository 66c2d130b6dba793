"""docs/reference/settings.md: every field of a request and every setting of an engine."""

from __future__ import annotations

from collections.abc import Iterable

from lmdeploy.fields.field import FieldInfo, fields_of
from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.serve.request import RequestFields

_PAGE = """\
# Settings

Every field of a request and every setting of an engine. Written by `make fields` from `lmdeploy/messages.py` and
`lmdeploy/serve/request.py`, where each is declared once; `GenerationConfig`, Triton's tensors, the HTTP API's checks,
the engine and the command line all follow them.

## Generation: `GenerationConfig`

Where the column *tensor* says yes, the field is also an optional input of the models `ensemble` and `turbomind`, a
member of the JSON body of Triton's `generate` and `generate_stream`, and a request parameter, as clients of Triton's
vLLM backend send them (the column *also* has their names). Where it says *parameter*, it is all of that but an input.

{generation}

## Additional fields of Triton requests

{request}

## Engine: `TurbomindEngineConfig`

Each is an option of `lmdeploy chat`, `serve api_server` and `serve gradio` (`--session-len`), and a member of the JSON
in `LMDEPLOY_ENGINE_CONFIG` and in the parameter `engine_config` of `turbomind/config.pbtxt`. An option wins
over the environment, which wins over the file.

{turbomind}

## PyTorch engine: `PytorchEngineConfig`

Of the [PyTorch engine](pytorch-engine.md). `eager_mode`, `custom_module_map` and `worker_step_seconds` are options of
the command line and members of that JSON as well.

{pytorch}
"""


def settings(_: str) -> str:
    """Return the page."""
    return _PAGE.format(
        generation=_table(fields_of(GenerationConfig), has_tensors=True),
        request=_table(fields_of(RequestFields), has_tensors=True),
        turbomind=_table(fields_of(TurbomindEngineConfig), has_tensors=False),
        pytorch=_table(fields_of(PytorchEngineConfig), has_tensors=False),
    )


def _table(fields: Iterable[FieldInfo], has_tensors: bool) -> str:
    columns = ["field", "type", "default", "range", *(["tensor", "also"] if has_tensors else []), "what it does"]
    lines = [f"| {' | '.join(columns)} |", "| " + " | ".join("---" for _ in columns) + " |"]
    for field in fields:
        sentence = field.description + (f" No effect: {field.no_effect}." if field.no_effect else "")
        way = "yes" if field.is_tensor else "parameter" if field.is_param else "no"
        about_tensors = [way, ", ".join(f"`{name}`" for name in field.also)]
        cells = [f"`{field.name}`", field.kind.value, f"`{field.default}`", field.range_text]
        cells += [*(about_tensors if has_tensors else []), sentence.replace("|", "\\|")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
