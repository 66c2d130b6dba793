"""Lookup and construction of the model class of a configuration, the user's own first."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.module_map import MODULE_MAP, may_run
from lmdeploy.pytorch.nn.build_context import BuildContext, building
from lmdeploy.pytorch.step_context import StepContextManager, get_step_ctx_manager

CustomModuleMap = Mapping[str, Any] | str | Path | None
# Methods of a model that the engine calls.
_NEEDED = ("forward", "prepare_inputs_for_generation", "load_weights")


def read_module_map(custom_module_map: CustomModuleMap) -> dict[str, Any]:
    """Return the user's architectures, each with its class.

    Raises `ValueError` if the file cannot be run, has no such dict, or a class in it cannot be found.
    ``custom_module_map``: a dict of architecture to class (or its full name), the same as a JSON object, or the path of
    a Python file that has it as ``MODULE_MAP``. Names are looked up alongside the file, too.
    """
    if not custom_module_map:
        return {}
    if isinstance(custom_module_map, Mapping):
        return {name: _class_of(given, "custom_module_map") for name, given in custom_module_map.items()}
    text = str(custom_module_map)
    if text.lstrip().startswith("{"):
        try:
            return read_module_map(json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"custom_module_map is neither a file nor a JSON object: {error}") from error
    path = Path(text).expanduser().resolve()
    module = _run_file(path)
    found = getattr(module, "MODULE_MAP", None)
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{path} must have a dict MODULE_MAP of architecture to class, got {found!r}")
    return {name: _class_of(given, str(path)) for name, given in found.items()}


def model_class_for(hf_config: Any, custom_module_map: CustomModuleMap = None) -> type[nn.Module] | None:
    """Return the class that runs a configuration; None if there is none of the user's and none of ours.

    Raises `ValueError` as `read_module_map` does, or if a class lacks what the engine calls.
    """
    architectures = list(getattr(hf_config, "architectures", None) or [])
    for known in (read_module_map(custom_module_map), MODULE_MAP):
        for name in architectures:
            if name in known and (known is not MODULE_MAP or may_run(name, hf_config)):
                found = _class_of(known[name], "MODULE_MAP")
                missing = [part for part in _NEEDED if not callable(getattr(found, part, None))]
                if missing:
                    raise ValueError(f"{found.__name__}, which runs {name}, has no {', '.join(missing)}")
                return found
    return None


def build_model_from_hf_config(
    hf_config: Any,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    context: BuildContext | None = None,
    ctx_mgr: StepContextManager | None = None,
    custom_module_map: CustomModuleMap = None,
) -> nn.Module:
    """Build the model of a configuration, without weights; raise `UnsupportedModelError` if no class runs it."""
    found: Any = model_class_for(hf_config, custom_module_map)
    if found is None:
        names = ", ".join(getattr(hf_config, "architectures", None) or [type(hf_config).__name__])
        raise UnsupportedModelError(
            f"{names}: no class runs it; name one in custom_module_map, or take one of {', '.join(sorted(MODULE_MAP))}"
        )
    with building(context or BuildContext()):
        model: nn.Module = found(hf_config, ctx_mgr or get_step_ctx_manager(), dtype=dtype, device=device)
    return model.eval().requires_grad_(False)


def _class_of(given: Any, where: str) -> type[nn.Module]:
    if isinstance(given, type):
        return given
    module_name, _, name = str(given).rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise ValueError(f"{where} names {given!r}, which cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"{where} names {given!r}, which is no class")
    return found


def _run_file(path: Path) -> Any:
    """Run a Python file as its own module; files alongside it can be imported from then on."""
    if not path.is_file():
        raise ValueError(f"custom_module_map must be a dict or the path of a Python file; {path} is no file")
    name = f"lmdeploy_custom_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
