"""Where schemas are in a document, and what references of theirs point to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lmdeploy.json_schema.errors import Budget, SchemaError

# Keywords that hold schemas: one, a list of them, or names of them.
_ONE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A schema, and where it is."""

    index: int  # in the order in which they are found
    schema: Any  # an object, or a boolean
    pointer: str  # JSON pointer from the root
    document: Document  # that its references are looked up in

    def at(self, *parts: str | int) -> Place:
        """Return the schema that is there below this one."""
        value = self.schema
        for part in parts:
            value = value[part]
        return self.document.place(value, self.pointer + "".join(f"/{escaped(part)}" for part in parts))

    def refuse(self, keyword: str, reason: str) -> SchemaError:
        """Return the error of a keyword of this schema."""
        return SchemaError(f"{self.pointer}/{escaped(keyword)}" if keyword else self.pointer, reason)


class Document:
    """A schema with all that is in it: what its references can point to."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self._root = root
        self.budget = budget
        self._known: dict[str, Place] = {}
        self._anchors: dict[str, str] | None = None

    def place(self, schema: Any, pointer: str) -> Place:
        """Return the place of a schema; raise `SchemaError` where there is none."""
        if (known := self._known.get(pointer)) is not None:
            return known
        if not isinstance(schema, dict | bool):
            raise SchemaError(pointer, f"a schema must be an object or a boolean, got {shown(schema)}")
        if isinstance(schema, dict):
            self.budget.spend(1 + len(schema) // 8, pointer)
            if pointer and "$id" in schema:
                raise SchemaError(
                    f"{pointer}/$id", "schemas inside of others that have their own $id are not supported"
                )
        self._known[pointer] = place = Place(len(self._known), schema, pointer, self)
        return place

    def referred(self, place: Place, keyword: str) -> Place:
        """Return the target of a schema's reference, within the document: nothing is fetched."""
        reference = place.schema[keyword]
        if not isinstance(reference, str):
            raise place.refuse(keyword, f"must be a string, got {shown(reference)}")
        base, _, fragment = reference.partition("#")
        own = self._root.get("$id") if isinstance(self._root, dict) else None
        if base and base != (own.partition("#")[0] if isinstance(own, str) else None):
            raise place.refuse(keyword, f"references to other documents are not followed, got {shown(reference)}")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            pointer = self._anchored().get(fragment)
            if pointer is None:
                raise place.refuse(keyword, f"there is no anchor {shown(fragment)}")
        else:
            pointer = fragment
        value, found = self._root, ""
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found += f"/{escaped(name)}"
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise place.refuse(keyword, f"points to nothing: {shown(reference)}")
        try:
            return self.place(value, found)
        except SchemaError as error:
            raise place.refuse(keyword, f"points to no schema: {error.reason}") from None

    def _anchored(self) -> Mapping[str, str]:
        """Return the pointer to each anchor."""
        if self._anchors is not None:
            return self._anchors
        self._anchors = {}
        waiting = [(self._root, "")]
        while waiting:
            schema, pointer = waiting.pop()
            if not isinstance(schema, dict):
                continue
            self.budget.spend(1, pointer)
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = schema.get(keyword)
                if isinstance(name, str) and self._anchors.setdefault(name, pointer) != pointer:
                    raise SchemaError(f"{pointer}/{keyword}", f"there is another anchor {shown(name)}")
            waiting += [(schema.get(keyword), f"{pointer}/{keyword}") for keyword in _ONE]
            for keyword in _LIST:
                if isinstance(members := schema.get(keyword), list):
                    waiting += [(each, f"{pointer}/{keyword}/{number}") for number, each in enumerate(members)]
            for keyword in _NAMED:
                if isinstance(named := schema.get(keyword), dict):
                    waiting += [(each, f"{pointer}/{keyword}/{escaped(name)}") for name, each in named.items()]
        return self._anchors


def escaped(part: str | int) -> str:
    """Return a part of a JSON pointer."""
    return str(part).replace("~", "~0").replace("/", "~1")


def shown(value: object, most: int = 60) -> str:
    """Return the beginning of a value, for a message."""
    text = repr(value[: 2 * most]) if isinstance(value, str | Sequence) else repr(value)
    return text if len(text) <= most else text[:most] + "..."
