"""`lmdeploy new-family`: the start of a model family, from a config.json."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.errors import UnsupportedModelError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_FAMILIES = Path(__file__).parents[1] / "turbomind" / "families"
_SHARED = ("common", "rope")  # modules that read fields for every family
_READ = re.compile(r"config(?:\.|, \")([a-z]\w+)")
_QUOTED = re.compile(r'"([a-z]\w+)"')
_OF_TRAINING = {"auto_map", "ep_size", "initializer_range", "pretraining_tp", "torch_dtype", "use_cache"}
_OFF: tuple[object, ...] = (None, False, 0, 0.0, "", [], {})
_SKELETON = '''"""{name}."""

from typing import Any

from lmdeploy.turbomind.families.common import {imports}
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
{comments}    return decoder_spec(config, checkpoint, attention=attention_spec(config))


FAMILY = Family(("{architecture}",), spec, Layout().tensors{config})
'''


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "new-family",
        help="Start a model family of the C++ engine from a config.json.",
        description="Print which fields of a config.json the families read, and which none does: those may need a new"
        " field of the spec or a new operation. Write a family's first lines (docs/internals/new-model.md).",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="config.json, or the directory that has it.")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="Write the family there (default: print it).")
    parser.set_defaults(run=run)


def readers() -> dict[str, dict[str, str]]:
    """Return the fields of configs that each module of families reads, and the first line that does."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(_FAMILIES.glob("*.py")):
        fields = found.setdefault(path.stem, {})
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for field in _READ.findall(line) + (_QUOTED.findall(line) if path.stem == "common" else []):
                fields.setdefault(field, f"{path.name}:{number}: {line.strip()}")
    return found


def asked_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say something of the model: neither off, nor among those that every config has."""
    from transformers import PretrainedConfig

    general = PretrainedConfig().to_dict().keys() | _OF_TRAINING
    return {
        name: value
        for name, value in config.items()
        if name not in general and not name.endswith(("_token_id", "dropout")) and value not in _OFF
    }


def run(args: argparse.Namespace) -> int:
    """Print the report and the skeleton; return the exit status."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path: Path = args.config / "config.json" if args.config.is_dir() else args.config
    whole = json.loads(path.read_text(encoding="utf-8"))
    names = whole.get("architectures")
    if not names:
        raise UnsupportedModelError(f"{path} names no architecture; expected one in 'architectures'")
    asked = asked_fields(whole.get("text_config", whole))
    modules = readers()
    shared = {field for module in _SHARED for field in modules.pop(module)}
    special = {field: value for field, value in asked.items() if field not in shared}
    nearest = max(modules, key=lambda module: len(modules[module].keys() & special.keys()))
    print(f"{names[0]}, {path}")
    print(f"\nRead for every family: {', '.join(sorted(asked.keys() & shared)) or 'none'}")
    print(f"\nRead by some; {nearest}.py reads most:")
    comments = []
    for field, value in special.items():
        lines = [modules[module][field] for module in (nearest, *modules) if field in modules[module]]
        said = f"{field} = {json.dumps(value)[:80]}"
        comments.append(f"    # {said}: {lines[0] if lines else 'no family reads it'}"[:119] + "\n")
        if lines:
            print(f"  {said}\n    {lines[0]}")
    unread = [field for field in special if not any(field in fields for fields in modules.values())]
    print("\nRead by none: a new field of the spec, a new operation, or of no effect on what is computed:")
    print("\n".join(f"  {field} = {json.dumps(asked[field])[:80]}" for field in unread) or "  none")
    is_known = whole.get("model_type") in CONFIG_MAPPING
    imports = ["Checkpoint", "Family", "attention_spec", "decoder_spec", *([] if is_known else ["llama_config"])]
    skeleton = _SKELETON.format(
        name=re.sub(r"(For\w+|Model)$", "", names[0]),
        imports=", ".join(imports),
        comments="".join(comments),
        architecture=names[0],
        config="" if is_known else ", llama_config",
    )
    case = f'    "{re.sub("For.*", "", names[0])}": Case("{names[0]}", {{}}),'
    print(f"\nA case of tests/engine/test_model_families.py, with these fields at tiny sizes:\n{case}")
    if args.output:
        with args.output.open("x", encoding="utf-8") as file:
            file.write(skeleton)
        print(f"\nWrote {args.output}")
    else:
        print(f"\nThe family:\n\n{skeleton}", end="")
    return 0
