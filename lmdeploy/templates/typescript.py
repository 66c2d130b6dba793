"""Tools as declarations in TypeScript, as gpt-oss was trained to read them.

White space and all is that of the published template, whose quirks the model knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.templates.calls import Tool, as_json

_SCALARS = {"number": "number", "integer": "number", "boolean": "boolean"}
_MAX_ITEM_LEN = 50  # characters of an array's item type; a longer one is written `any`


def namespace_of(name: str, functions: Sequence[Tool]) -> str:
    """Return the namespace that declares functions, given as OpenAI describes them."""
    declared = "".join(_declaration(function) for function in functions)
    return f"## {name}\n\nnamespace {name} {{\n\n{declared}}} // namespace {name}"


def _declaration(function: Tool) -> str:
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    fields = "".join(_parameter(name, schema, name in required) for name, schema in properties.items())
    arguments = f"_: {{\n{fields}}}" if fields else ""
    return f"// {function.get('description', '')}\ntype {function['name']} = ({arguments}) => any;\n\n"


def _parameter(name: str, schema: Mapping[str, Any], is_required: bool) -> str:
    comment = f"// {schema['description']}\n" if schema.get("description") else ""
    return f"{comment}{name}{'' if is_required else '?'}: {_type(schema)}{_default(schema)},\n"


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    if schema.get("enum"):
        return f", // default: {schema['default']}"
    return f"// default: {schema['default']}" if schema.get("oneOf") else f", // default: {as_json(schema['default'])}"


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "array":
        return _array(schema) + _or_null(schema)
    if isinstance(kind, list) and kind:
        return " | ".join(kind)
    if schema.get("oneOf"):
        return " | \n".join(_variant(variant) for variant in schema["oneOf"])
    if kind == "string":
        return " | ".join(f'"{one}"' for one in schema["enum"]) if schema.get("enum") else "string" + _or_null(schema)
    if kind == "object":
        return _object(schema)
    return _SCALARS.get(str(kind), "any")


def _or_null(schema: Mapping[str, Any]) -> str:
    return " | null" if schema.get("nullable") else ""


def _array(schema: Mapping[str, Any]) -> str:
    items = schema.get("items")
    if not items:
        return "any[]"
    if items.get("type") == "string":
        return "string[]"
    item = _type(items)
    return "any[]" if item == "object | object" or len(item) > _MAX_ITEM_LEN else f"{item}[]"


def _variant(variant: Mapping[str, Any]) -> str:
    comment = f"// {variant['description']}" if variant.get("description") else ""
    default = f"{' ' * 20}// default: {as_json(variant['default'])}" if "default" in variant else ""
    return _type(variant) + comment + default


def _object(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not properties:
        return "object"
    required = schema.get("required") or ()
    fields = (f"{name}{'' if name in required else '?'}: \n{' ' * 16}{_type(one)}" for name, one in properties.items())
    return "{\n" + ", ".join(fields) + "}"
