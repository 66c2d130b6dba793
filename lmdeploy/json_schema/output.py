"""From plans to the schema that the grammar engine is given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any
from zlib import crc32

from lmdeploy.json_schema.errors import SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.expressions import expression_of
from lmdeploy.json_schema.keywords import EVERYTHING
from lmdeploy.json_schema.languages import ANYTHING
from lmdeploy.json_schema.plans import ArrayPlan, Leaf, ObjectPlan, Plan, Planner
from lmdeploy.json_schema.sets import Conjunction, least

_SHORT_LIST = 8  # values that are not referred to
_MAX_NESTING = 8  # of schemas written into each other; deeper ones are referred to
_ANY_NAME = expression_of(ANYTHING) or ""
_TAG = "x-hash"
"""xgrammar 0.2.8 takes schemas for the same that differ only in members called ``title``, ``description`` or the like:
a hash of all that is in them distinguishes them."""


class Output:
    """Writes conjunctions as schemas that refer to each other."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._planner = Planner(expansion)
        self._plans: dict[Conjunction, tuple[Plan, ...]] = {}
        self._productive: set[Conjunction] = set()
        self._uses: Counter[Conjunction] = Counter()
        self._names: dict[Conjunction, str] = {}
        self._waiting: list[tuple[str, list[Plan]]] = []  # definitions

    def of(self, conjunction: Conjunction) -> dict[str, Any]:
        """Return the schema of a conjunction; raise `SchemaError` where no value meets it."""
        self._plan(conjunction)
        self._find_productive()
        if conjunction not in self._productive:
            raise SchemaError(conjunction[0][0].pointer if conjunction else "", "no value meets this schema")
        schema, definitions = self._written(conjunction, 0), dict[str, Any]()
        while self._waiting:
            name, plans = self._waiting.pop(0)
            definitions[name] = self._joined(plans, 1)
        return schema | ({"$defs": definitions} if definitions else {})

    # ---- what there is ----

    def _plan(self, start: Conjunction) -> None:
        """Make the plans of all that is within reach."""
        waiting = [start]
        while waiting:
            conjunction = waiting.pop()
            self._uses[conjunction] += 1
            if conjunction in self._plans:
                continue
            union = self._expansion.of(conjunction)
            plans = () if union is EVERYTHING else tuple(plan for each in union for plan in self._planner.of(each))
            self._expansion.budget.spend(1 + len(plans), conjunction[0][0].pointer if conjunction else "")
            self._plans[conjunction] = plans
            if union is EVERYTHING:
                self._productive.add(conjunction)
            for plan in plans:
                waiting += _parts(plan)

    def _find_productive(self) -> None:
        """Find out what has values that end: a schema that always needs itself has none."""
        users: dict[Conjunction, list[Conjunction]] = {}
        for conjunction, plans in self._plans.items():
            for plan in plans:
                for part in _parts(plan):
                    users.setdefault(part, []).append(conjunction)
        waiting = list(self._plans)
        while waiting:
            conjunction = waiting.pop()
            if conjunction not in self._productive and any(map(self._ends, self._plans[conjunction])):
                self._productive.add(conjunction)
                waiting += users.get(conjunction, ())

    def _ends(self, plan: Plan) -> bool:
        match plan:
            case Leaf():
                return True
            case ArrayPlan():
                return self._length(plan) is not None
            case ObjectPlan(members, groups, low, high, _):
                if not all(value in self._productive for _, value, is_required in members if is_required):
                    return False
                needed = sum(is_required for *_, is_required in members)
                there = sum(value in self._productive for _, value, _ in members)
                if high is not None and needed > high:
                    return False
                return there >= low or any(group.value in self._productive for group in groups)

    def _length(self, plan: ArrayPlan) -> tuple[int, int | None] | None:
        """Return how many first items an array has, and how many items at most; None: there is none."""
        prefix = len([*takewhile(self._productive.__contains__, plan.prefix)])
        has_rest = prefix == len(plan.prefix) and plan.rest in self._productive
        high = plan.high if has_rest else least(plan.high, prefix)
        return None if high is not None and high < plan.low else (prefix, high)

    # ---- what is written ----

    def _written(self, conjunction: Conjunction, depth: int) -> dict[str, Any]:
        if conjunction in self._names:
            return {"$ref": f"#/$defs/{self._names[conjunction]}"}
        plans = [plan for plan in self._plans[conjunction] if self._ends(plan)]
        if not plans:
            return {}
        is_short = all(isinstance(plan, Leaf) and len(plan.schema.get("enum", ())) <= _SHORT_LIST for plan in plans)
        if is_short or (self._uses[conjunction] == 1 and depth < _MAX_NESTING):
            return self._joined(plans, depth)
        name = self._names[conjunction] = f"d{len(self._names)}"
        self._waiting.append((name, plans))
        return {"$ref": f"#/$defs/{name}"}

    def _joined(self, plans: Iterable[Plan], depth: int) -> dict[str, Any]:
        """Return the schema of what is of any plan, with all lists of values in one."""
        values: list[Any] = []
        schemas: list[dict[str, Any]] = []
        for plan in plans:
            match plan:
                case Leaf({"enum": list(listed)}):
                    values += listed
                    continue
                case Leaf(schema):
                    pass
                case ArrayPlan():
                    schema = self._array(plan, depth + 1)
                case ObjectPlan():
                    schema = self._object(plan, depth + 1)
            if schema not in schemas:
                schemas.append(schema)
        if values:
            schemas.append(self._tagged({"enum": values}))
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    @staticmethod
    def _tagged(schema: dict[str, Any]) -> dict[str, Any]:
        return schema | {_TAG: f"{crc32(json.dumps(schema).encode()):08x}"}

    def _array(self, plan: ArrayPlan, depth: int) -> dict[str, Any]:
        found = self._length(plan)
        assert found is not None
        prefix, high = found
        schema: dict[str, Any] = {"type": "array"}
        if prefix:
            schema["prefixItems"] = [self._written(each, depth) for each in plan.prefix[:prefix]]
        has_rest = high is None or high > prefix
        schema["items"] = self._written(plan.rest, depth) if has_rest and plan.rest is not None else False
        schema |= {"minItems": plan.low} if plan.low else {}
        schema |= {"maxItems": high} if high is not None and has_rest else {}
        return self._tagged(schema)

    def _object(self, plan: ObjectPlan, depth: int) -> dict[str, Any]:
        members = [each for each in plan.members if each[1] in self._productive]
        groups = [group for group in plan.groups if group.value in self._productive]
        needed = sum(is_required for *_, is_required in members)
        low = plan.low if plan.low > needed else 0
        if low > needed + 1 and groups:
            # Members of a group may have the same name: of those, only one is sure to count.
            if len(members) < low:
                raise SchemaError(plan.pointer, "is enforced up to the members with their own names, and one more")
            groups = []
        schema: dict[str, Any] = {"type": "object"}
        if members:
            schema["properties"] = {name: self._written(value, depth) for name, value, _ in members}
        if needed:
            schema["required"] = [name for name, _, is_required in members if is_required]
        if len(groups) == 1 and groups[0].names is None and not members:
            schema["additionalProperties"] = self._written(groups[0].value, depth)
        else:
            schema["additionalProperties"] = False
            if groups:
                names = (group.names or _ANY_NAME for group in groups)
                values = (self._written(group.value, depth) for group in groups)
                schema["patternProperties"] = dict(zip(names, values, strict=True))
        schema |= {"minProperties": low} if low else {}
        if plan.high is not None and (groups or plan.high < len(members)):
            schema["maxProperties"] = plan.high
        return self._tagged(schema)


def _parts(plan: Plan) -> list[Conjunction]:
    """Return the parts of a plan that need plans of their own."""
    match plan:
        case ArrayPlan(prefix, rest, _, _):
            return [*prefix, *(() if rest is None else (rest,))]
        case ObjectPlan(members, groups, _, _, _):
            return [*(value for _, value, _ in members), *(group.value for group in groups)]
    return []


# Longer texts make the grammar too large; they are cut here, which fits the schema still.
_LONGEST = 16000
_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions", "patternProperties")


def without_lengths(schema: Any) -> Any:
    """Return an enforced schema whose texts have patterns in place of lengths.

    xgrammar lets texts of bounded length hold control characters, which JSON forbids. So such a text is held to
    characters that need no escape.
    """
    if isinstance(schema, list):
        return [without_lengths(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {}
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            changed[key] = {name: without_lengths(each) for name, each in value.items()}
        else:
            changed[key] = value if key in ("enum", "const", "default", "examples") else without_lengths(value)
    if "pattern" in changed or not ("minLength" in changed or "maxLength" in changed):
        return changed
    least, most = length_bounds(changed)
    kept = {key: value for key, value in changed.items() if key not in ("minLength", "maxLength")}
    return kept | {"pattern": rf'^[^"\\\x00-\x1f]{{{least},{most}}}$'}


def length_bounds(schema: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the largest length of a text."""
    least = schema.get("minLength", 0)
    return least, max(least, min(schema.get("maxLength", _LONGEST), _LONGEST))
