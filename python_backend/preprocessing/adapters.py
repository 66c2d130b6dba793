"""LoRA adapters' chat templates in requests and control requests."""

import hmac
import json
import os
from pathlib import Path
from typing import Any

from lmdeploy.templates.of_adapters import AdapterTemplates
from python_backend.inputs import text

_CONTROL_KEY = "LMDEPLOY_CONTROL_KEY"  # as in backend_cpp/triton/model_state.cc


def adapter_of(request: Any) -> str | None:
    """Return the adapter that a request names by an input or a parameter; None: none."""
    return text(request, "lora_name") or _parameters(request).get("lora_name")


def control(request: Any, templates: AdapterTemplates) -> None:
    """Learn or forget the template of an adapter, as the input ``lora_control`` says.

    Raises `ValueError` if the request is malformed or lacks the server's key, or the template is invalid.
    """
    key = os.environ.get(_CONTROL_KEY, "")
    if key and not hmac.compare_digest(str(_parameters(request).get("control_key", "")).encode(), key.encode()):
        raise ValueError("lora_control needs the control_key that the server was started with")
    action, name, path = (text(request, part) for part in ("lora_control", "lora_name", "lora_path"))
    if action not in ("load", "unload"):
        raise ValueError(f"lora_control must be load or unload, got {action}")
    if not name:
        raise ValueError("lora_control needs lora_name")
    if action == "unload":
        templates.drop(name)
    elif path:
        templates.add(name, Path(path))
    else:
        raise ValueError("lora_control load needs lora_path: the adapter's folder")


def _parameters(request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.parameters() or "{}")
    return found
