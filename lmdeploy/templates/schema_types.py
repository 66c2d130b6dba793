"""JSON types that a schema allows."""

from collections.abc import Iterator, Mapping
from typing import Any

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)
_MAX_REFERENCES = 16  # of a chain


def argument_types(schema: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the JSON types that an argument may have, in the schema's order; none: the schema does not say."""
    properties = schema.get("properties")
    described = properties.get(name) if isinstance(properties, Mapping) else None
    if described is None:
        described = schema.get("additionalProperties")
    return tuple(dict.fromkeys(_types(described, schema, _MAX_REFERENCES)))


def _types(described: Any, root: Mapping[str, Any], left: int) -> Iterator[str]:
    if not isinstance(described, Mapping) or left == 0:
        return
    kind = described.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (name for name in kind if isinstance(name, str))
    elif isinstance(described.get("enum"), list):
        yield from (json_type(value) for value in described["enum"])
    elif "const" in described:
        yield json_type(described["const"])
    elif isinstance(described.get("$ref"), str):
        yield from _types(_referred(root, described["$ref"]), root, left - 1)
    for several in ("anyOf", "oneOf", "allOf"):
        for one in described.get(several) or () if isinstance(described.get(several), list) else ():
            yield from _types(one, root, left - 1)


def _referred(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def resolved(root: Mapping[str, Any], described: Any) -> dict[str, Any]:
    """Return the schema that references lead to, or the first of several that is not null."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(described, dict):
            return {}
        several: list[Any] = next(
            (described[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(described.get(key), list)), []
        )
        if isinstance(described.get("$ref"), str):
            described = _referred(root, described["$ref"])
        elif several:
            described = next((one for one in several if not isinstance(one, dict) or one.get("type") != "null"), {})
        else:
            return described
    return {}


def json_type(value: Any) -> str:
    """Return the JSON type of a value."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "object")
