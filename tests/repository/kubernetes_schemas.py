"""Schemas of other projects' kinds, as far as we use them.

Written by hand from their documentation, as no package brings their definitions. A property that does not be here is
refused; so a new one must be looked up first.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: dict[str, Any] = {"type": "string", "pattern": r"^(\d+(ms|s|m|h))+$"}


def only(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object that has these properties and no others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def some(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list with something in it."""
    return {"type": "array", "items": items, "minItems": 1}


def kind(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a document."""
    metadata = only({"name": TEXT}, {"namespace": TEXT, "labels": TEXTS, "annotations": TEXTS})
    return only({"apiVersion": TEXT, "kind": TEXT, "metadata": metadata, "spec": spec})


_LABELS = only({"matchLabels": TEXTS})

# prometheus-operator.dev, API reference, monitoring.coreos.com/v1.
_SERVICE_MONITOR = only(
    {"selector": _LABELS, "endpoints": some(only({"port": TEXT}, {"path": TEXT, "interval": DURATION}))},
    {"jobLabel": TEXT},
)

# gateway-api-inference-extension.sigs.k8s.io, API reference, inference.networking.k8s.io/v1.
_INFERENCE_POOL = only(
    {
        "selector": _LABELS,
        "targetPorts": some(only({"number": PORT})),
        "endpointPickerRef": only({"name": TEXT, "port": only({"number": PORT})}, {"group": TEXT, "kind": TEXT}),
    }
)

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): kind(_SERVICE_MONITOR),
    ("inference.networking.k8s.io/v1", "InferencePool"): kind(_INFERENCE_POOL),
}
