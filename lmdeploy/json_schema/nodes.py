"""Nodes of a schema document by JSON pointer, and the targets of their references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import unquote, urljoin

from lmdeploy.json_schema.errors import Budget, SchemaError

# Keywords that hold schemas: one, a list of them, or names of them.
_ONE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A schema and its pointer in the document."""

    index: int  # in the order in which they are found
    schema: Any  # an object or a boolean; a tuple: conjunctions, any of which is to be met
    pointer: str  # JSON pointer from the root
    document: Document  # that its references are looked up in

    def at(self, *parts: str | int) -> Node:
        """Return the schema that is there below this one."""
        value = self.schema
        for part in parts:
            value = value[part]
        return self.document.node(value, self.pointer + "".join(f"/{escaped(part)}" for part in parts))

    def instead(self, schema: Any) -> Node:
        """Return another schema in the place of this one."""
        return Node(next(self.document.indices), schema, self.pointer, self.document)

    def failure(self, keyword: str, reason: str) -> SchemaError:
        """Return the error of a keyword of this schema."""
        return SchemaError(f"{self.pointer}/{escaped(keyword)}" if keyword else self.pointer, reason)


class Document:
    """A schema with all that is in it: what its references can point to."""

    def __init__(self, root: Any, budget: Budget) -> None:
        self._root = root
        self.budget = budget
        self.indices = count()
        self._known: dict[str, Node] = {}
        # Schemas with an URI (`$id`) by their pointers, and the other way round; the root has an empty one otherwise.
        self._uris: dict[str, str] = {}
        self._pointers: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}  # pointer of the schema with an URI, name -> pointer
        self._dynamic = Counter[str]()  # names of `$dynamicAnchor`

    def node(self, schema: Any, pointer: str) -> Node:
        """Return the node of a schema; raise `SchemaError` where there is none."""
        if (known := self._known.get(pointer)) is not None:
            return known
        if not isinstance(schema, dict | bool):
            raise SchemaError(pointer, f"a schema must be an object or a boolean, got {shown(schema)}")
        if isinstance(schema, dict):
            self.budget.spend(1 + len(schema) // 8, pointer)
        self._known[pointer] = node = Node(next(self.indices), schema, pointer, self)
        return node

    def referred(self, node: Node, keyword: str) -> Node:
        """Return the target of a schema's reference, within the document: nothing is fetched."""
        reference = node.schema[keyword]
        if not isinstance(reference, str):
            raise node.failure(keyword, f"must be a string, got {shown(reference)}")
        if not self._uris:
            self._find_names()
        uri, _, fragment = reference.partition("#")
        resource = node.pointer
        while resource not in self._uris:
            resource = resource.rpartition("/")[0]
        target = _joined(self._uris[resource], uri) if uri else self._uris[resource]
        if (resource := self._pointers.get(target, "#")) == "#":
            raise node.failure(keyword, f"references to other documents are not followed, got {shown(reference)}")
        pointer = resource + (fragment := unquote(fragment))
        if fragment and not fragment.startswith("/"):
            if keyword == "$dynamicRef" and self._dynamic[fragment] > 1:
                raise node.failure(keyword, f"there are several dynamic anchors {shown(fragment)}: is not enforced")
            if (resource, fragment) not in self._anchors:
                raise node.failure(keyword, f"there is no anchor {shown(fragment)}")
            pointer = self._anchors[resource, fragment]
        value, found = self._root, ""
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found += f"/{escaped(name)}"
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise node.failure(keyword, f"points to nothing: {shown(reference)}")
            is_named = isinstance(value, dict) and isinstance(value.get("$id"), str) and value["$id"][:1] != "#"
            if is_named and found not in self._uris:
                raise node.failure(keyword, "an $id below a keyword that is not known is not supported")
        try:
            return self.node(value, found)
        except SchemaError as error:
            raise node.failure(keyword, f"points to no schema: {error.reason}") from None

    def is_of(self, draft: str) -> bool:
        """Return whether the document is surely of a draft whose name begins so."""
        return isinstance(self._root, dict) and f"draft/{draft}" in str(self._root.get("$schema"))

    def _find_names(self) -> None:
        """Find the URIs and anchors of all schemas."""
        waiting = [(self._root, "", "")]
        while waiting:
            schema, pointer, resource = waiting.pop()
            if not isinstance(schema, dict):
                schema = {}
            self.budget.spend(1, pointer)
            uri, _, anchor = _text(schema, pointer, "$id").partition("#")
            if uri and "$ref" in schema and pointer and not self.is_of("20"):
                reason = "hides behind $ref in older drafts: name a newer one in $schema"
                raise SchemaError(f"{pointer}/$id", reason)
            if uri or not pointer:
                uri = _joined(self._uris.get(resource, ""), uri)
                resource = pointer
                self._uris[pointer] = uri
                _add(self._pointers, uri, pointer, "$id")
            for keyword in ("$anchor", "$dynamicAnchor", "$id"):  # an $id of a fragment is an older draft's anchor
                name = anchor if keyword == "$id" else _text(schema, pointer, keyword)
                if name:
                    _add(self._anchors, (resource, name), pointer, keyword)
            self._dynamic[_text(schema, pointer, "$dynamicAnchor")] += 1
            for keyword in schema:
                below = f"{pointer}/{keyword}"
                if keyword in _ONE and isinstance(schema[keyword], dict):
                    waiting.append((schema[keyword], below, resource))
                elif keyword in _LIST and isinstance(members := schema[keyword], list):
                    waiting += [(member, f"{below}/{number}", resource) for number, member in enumerate(members)]
                elif keyword in _NAMED and isinstance(named := schema[keyword], dict):
                    waiting += [(member, f"{below}/{escaped(name)}", resource) for name, member in named.items()]


def _joined(base: str, uri: str) -> str:
    try:
        return urljoin(base, uri)
    except ValueError:  # it is none
        return uri


def _text(schema: Mapping[str, Any], pointer: str, keyword: str) -> str:
    if isinstance(value := schema.get(keyword, ""), str):
        return value
    raise SchemaError(f"{pointer}/{keyword}", f"must be a string, got {shown(value)}")


def _add(names: dict[Any, str], name: Any, pointer: str, keyword: str) -> None:
    if names.setdefault(name, pointer) != pointer:
        raise SchemaError(f"{pointer}/{keyword}", f"there is another {shown(name)}")


def escaped(part: str | int) -> str:
    """Return a part of a JSON pointer."""
    return str(part).replace("~", "~0").replace("/", "~1")


def shown(value: object, max_len: int = 60) -> str:
    """Return the beginning of a value, for a message."""
    text = repr(value[: 2 * max_len]) if isinstance(value, str | Sequence) else repr(value)
    return text if len(text) <= max_len else text[:max_len] + "..."
