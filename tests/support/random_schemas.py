"""Random JSON schemas (2020-12) that use every keyword, alone and alongside others, and that are mostly satisfiable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any] | bool

_NAMES = ["a", "b", "title", "x-1", "naïve key", 'q"uote', "description"]
_TEXTS = ["red", "green", "", 'qu"ote', "日本", "🙂", "x-1", "a/b\\c\n"]
_VALUES: list[Any] = [None, True, False, 0, 1, -7, 2.5, 1e6, *_TEXTS, [], [1, "red"], {}, {"title": 1}, {"a": [None]}]
_PATTERNS = [
    *("^[a-z]+$", "^[A-Z][a-z0-9_]{2,}$", "^x-", "red", "^(red|green)$", r"^\d{3}-\d{4}$", r"^[^\s@]+@\w+\.com$"),
    *("^.{2,5}$", r"\.pdf$", "^(a|b|)c?$", "^é+$", r"^[\w.-]*$", "^$", "", r"^(?:\d+|[a-f]{2})$", r"^\S+$"),
    *(r"^(?=a)", r"(.)\1", r"\bword\b", "^(?!red)", r"^\w+(-\w+)*$"),
]
_FORMATS = [
    *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference"),
    *("json-pointer", "relative-json-pointer", "uri-template", "iri", "idn-email", "idn-hostname", "regex", "color"),
]
_ANNOTATIONS = {
    "title": "Name",
    "description": "What it is",
    "default": 3,
    "examples": [1],
    "deprecated": True,
    "readOnly": False,
    "writeOnly": False,
    "$comment": "none",
    "contentEncoding": "base64",
    "contentMediaType": "text/plain",
    "contentSchema": {"type": "string"},
}


class RandomSchemas:
    """Makes schemas from a seed.

    ``seed``: of the random numbers; ``depth``: how deep schemas are in each other.
    """

    def __init__(self, seed: int, depth: int = 3) -> None:
        self._chance = random.Random(seed)
        self._depth = depth
        self._definitions = 0

    def schema(self) -> dict[str, Any]:
        """Return a schema, with definitions that it and they refer to."""
        self._definitions = self._chance.choice([0, 0, 1, 2])
        whole = self._of_any_kind(self._depth)
        if self._definitions:
            whole["$defs"] = {f"d{number}": self._of_any_kind(1) for number in range(self._definitions)}
            if self._chance.random() < 0.3:
                whole["$defs"]["d0"]["$anchor"] = "named"
        if self._chance.random() < 0.1:
            whole |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/it.json"}
        return whole

    def _some(self, *options: Any) -> Any:
        return self._chance.choice(options)

    def _maybe(self, likelihood: float, schema: dict[str, Any], keyword: str, value: Callable[[], Any]) -> None:
        if self._chance.random() < likelihood:
            schema[keyword] = value()

    def _below(self, depth: int) -> Schema:
        if self._chance.random() < 0.04:
            return self._some(True, True, {}, False)  # type: ignore[no-any-return]
        return self._of_any_kind(depth - 1)

    def _of_any_kind(self, depth: int) -> dict[str, Any]:
        makers: list[Callable[[int], dict[str, Any]]] = [self._number, self._string, self._simple, self._finite]
        if depth > 0:
            makers += [self._array, self._object, self._object, self._array, self._combined, self._combined]
        schema = self._chance.choice(makers)(depth)
        if depth > 0 and self._chance.random() < 0.25:
            schema |= self._combined(depth)
        if self._definitions and self._chance.random() < 0.15:
            schema["$ref"] = f"#/$defs/d{self._chance.randrange(self._definitions)}"
        if self._chance.random() < 0.2:
            schema |= dict(self._chance.sample(list(_ANNOTATIONS.items()), 2))
        return schema

    def _simple(self, _: int) -> dict[str, Any]:
        kinds = self._chance.sample(["null", "boolean", "integer", "number", "string"], self._some(1, 1, 2, 3))
        return {"type": kinds[0] if len(kinds) == 1 else kinds}

    def _finite(self, _: int) -> dict[str, Any]:
        if self._chance.random() < 0.3:
            return {"const": self._some(*_VALUES)}
        schema: dict[str, Any] = {"enum": self._chance.sample(_VALUES, self._some(1, 2, 3, 5))}
        return schema | (self._simple(0) if self._chance.random() < 0.2 else {})

    def _number(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self._some("integer", "integer", "number")}
        low = self._some(-100, -1, 0, 0.5, 3, 17)
        if self._chance.random() < 0.5:
            schema[self._some("minimum", "minimum", "exclusiveMinimum")] = low
        if self._chance.random() < 0.5:
            schema[self._some("maximum", "maximum", "exclusiveMaximum")] = low + self._some(0, 1, 2.5, 40, 1000)
        self._maybe(0.3, schema, "multipleOf", lambda: self._some(1, 2, 5, 7, 0.5, 0.01, 100))
        return schema

    def _string(self, _: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        minimum = self._some(0, 1, 2, 5)
        self._maybe(0.35, schema, "minLength", lambda: minimum)
        self._maybe(0.35, schema, "maxLength", lambda: minimum + self._some(0, 2, 10, 200))
        if self._chance.random() < 0.4:
            schema["pattern"] = self._some(*_PATTERNS)
        elif self._chance.random() < 0.3:
            schema["format"] = self._some(*_FORMATS)
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        self._maybe(0.3, schema, "prefixItems", lambda: [self._below(depth) for _ in range(self._some(1, 2, 3))])
        self._maybe(0.7, schema, "items", lambda: self._below(depth))
        minimum = self._some(0, 0, 1, 2)
        self._maybe(0.4, schema, "minItems", lambda: minimum)
        self._maybe(0.5, schema, "maxItems", lambda: minimum + self._some(0, 1, 2, 5))
        self._maybe(0.2, schema, "uniqueItems", lambda: self._some(True, True, False))
        if self._chance.random() < 0.2:
            schema["contains"] = self._below(depth)
            self._maybe(0.4, schema, "minContains", lambda: self._some(0, 1, 2))
            self._maybe(0.4, schema, "maxContains", lambda: self._some(1, 2, 3))
            if self._chance.random() < 0.2:
                schema["allOf"] = [{"contains": self._below(depth), "maxContains": self._some(1, 2)}]
        self._maybe(0.1, schema, "unevaluatedItems", lambda: self._some(False, self._below(depth)))
        return schema

    def _object(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"} if self._chance.random() < 0.9 else {}
        names = self._chance.sample(_NAMES, self._some(0, 1, 2, 3))
        if names:
            schema["properties"] = {name: self._below(depth) for name in names}
        if self._chance.random() < 0.6:
            schema["required"] = self._chance.sample(names, self._chance.randint(0, len(names)))
            if self._chance.random() < 0.1:
                schema["required"] = [*schema["required"], "other"]
        self._maybe(0.4, schema, "additionalProperties", lambda: self._some(False, False, True, self._below(depth)))
        if self._chance.random() < 0.15:
            patterns = self._chance.sample(["^x-", "^[a-z]+$", "itl", "^y"], self._some(1, 2))
            schema["patternProperties"] = {pattern: self._below(depth) for pattern in patterns}
        if self._chance.random() < 0.12:
            schema["propertyNames"] = self._some(
                {"maxLength": 6}, {"pattern": "^[a-z-]+$"}, {"enum": ["a", "b", "c", "title"]}, self._string(0)
            )
        self._maybe(0.15, schema, "minProperties", lambda: self._some(0, 1, 2, 3))
        self._maybe(0.15, schema, "maxProperties", lambda: self._some(1, 2, 3, 4))
        self._maybe(0.12, schema, "dependentRequired", lambda: {self._some(*_NAMES): [self._some(*_NAMES)]})
        self._maybe(
            0.08, schema, "dependentSchemas", lambda: {self._some(*_NAMES): depth <= 1 or self._object(depth - 1)}
        )
        self._maybe(0.1, schema, "unevaluatedProperties", lambda: self._some(False, False, True, self._below(depth)))
        return schema

    def _combined(self, depth: int) -> dict[str, Any]:
        match self._some("allOf", "anyOf", "oneOf", "not", "if", "$ref", "allOf", "anyOf", "oneOf", "tagged"):
            case "not":
                return {"not": self._some(self._finite(0), self._simple(0), self._number(0), self._below(depth))}
            case "if":
                schema: dict[str, Any] = {"if": self._below(depth)}
                schema |= {"then": self._below(depth)} if self._chance.random() < 0.8 else {}
                return schema | ({"else": self._below(depth)} if self._chance.random() < 0.6 else {})
            case "$ref" if self._definitions:
                name = f"d{self._chance.randrange(self._definitions)}"
                return {self._some("$ref", "$ref", "$dynamicRef"): f"#/$defs/{name}"}
            case "$ref":
                return {"$ref": self._some("#", "#/$defs/none", "https://example.com/remote.json")}
            case "tagged":
                kinds = ("circle", "square", "line")[: self._some(2, 3)]
                return {"oneOf": [self._tagged(kind, depth) for kind in kinds]}
            case keyword:
                return {keyword: [self._below(depth) for _ in range(self._some(1, 2, 2, 3))]}

    def _tagged(self, kind: str, depth: int) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, self._some(*_NAMES): self._below(depth)}
        return {"type": "object", "properties": properties, "required": ["kind"]}
