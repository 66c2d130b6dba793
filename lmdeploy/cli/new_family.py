"""`lmdeploy new-family`: the start of a model family, from a config.json."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
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


def model_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that describe the model: neither off, nor among those that every config has."""
    from transformers import PretrainedConfig

    general = PretrainedConfig().to_dict().keys() | _OF_TRAINING
    return {
        name: value
        for name, value in config.items()
        if name not in general and not name.endswith(("_token_id", "dropout")) and value not in _OFF
    }


def skeleton(architecture: str, comments: Sequence[str], *, is_known: bool) -> str:
    """Return the source of a family; ``is_known``: whether ``transformers`` reads its config."""
    imports = ["Checkpoint", "Family", "attention_spec", "decoder_spec", *([] if is_known else ["llama_config"])]
    return _SKELETON.format(
        name=re.sub(r"(For\w+|Model)$", "", architecture),
        imports=", ".join(imports),
        comments="".join(f"    # {comment}\n" for comment in comments),
        architecture=architecture,
        config="" if is_known else ", llama_config",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report and the skeleton; return the exit status."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from lmdeploy.turbomind.checkpoint import read_config

    path: Path = args.config / "config.json" if args.config.is_dir() else args.config
    config = read_config(path.parent, path.name)
    architecture, *_ = config.get("architectures") or [""]
    if not architecture:
        raise UnsupportedModelError(f"{path} names no architecture; expected one in 'architectures'")
    fields = model_fields(config.get("text_config") or config)
    modules = readers()
    shared = {field for module in _SHARED for field in modules.pop(module)}
    special = {field: f"{field} = {json.dumps(fields[field])[:80]}" for field in fields if field not in shared}
    nearest = max(modules, key=lambda module: len(modules[module].keys() & special.keys()))
    found = {field: line for module in (*modules, nearest) for field, line in modules[module].items()}
    print(f"{architecture}, {path}")
    print(f"\nRead for every family: {', '.join(sorted(fields.keys() & shared)) or 'none'}")
    print(f"\nRead by some; {nearest}.py reads most:")
    print("\n".join(f"  {text}\n    {found[field]}" for field, text in special.items() if field in found) or "  none")
    print("\nRead by none: a new field of the spec, a new operation, or of no effect on the computation:")
    print("\n".join(f"  {text}" for field, text in special.items() if field not in found) or "  none")
    case = f'    "{re.sub("For.*", "", architecture)}": Case("{architecture}", {{}}),'
    print(f"\nA case of tests/engine/test_model_families.py, with these fields at tiny sizes:\n{case}")
    locations = {field: ":".join(line.split(":")[:2]) for field, line in found.items()}  # file and line number
    comments = [f"{text[:60]}: {locations.get(field, 'no family reads it')}" for field, text in special.items()]
    source = skeleton(architecture, comments, is_known=config.get("model_type") in CONFIG_MAPPING)
    if args.output:
        with args.output.open("x", encoding="utf-8") as file:
            file.write(source)
        print(f"\nWrote {args.output}")
    else:
        print(f"\nThe family:\n\n{source}", end="")
    return 0
