"""Expansion of a schema to the union of sets that it allows: references followed, combinations worked out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.keywords import ANNOTATIONS, EVERYTHING, lacking, names_of, of_type, opposite, term
from lmdeploy.json_schema.languages import matches
from lmdeploy.json_schema.nodes import Document, Node, escaped, shown
from lmdeploy.json_schema.sets import (
    TRUE,
    Alternative,
    Arrays,
    Conjunction,
    Numbers,
    Objects,
    Rules,
    Strings,
    Union,
    Values,
    common,
    conjoined,
    unevaluating,
)
from lmdeploy.json_schema.values import distinct, exact, is_number, key_of, unspeakable

_MAX_DEPTH = 120  # of schemas in schemas, and of references to references
_MAX_SHARED = 16  # combinations of alternatives of ``anyOf``
_REFERENCES = ("$ref", "$dynamicRef")


class Expansion:
    """Works out schemas, each once."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._found: dict[Conjunction, Union] = {}
        self._open: list[Conjunction] = []
        self._has_unevaluated = False

    def document(self, schema: Any) -> Conjunction:
        """Return the conjunction of a whole schema."""
        self._has_unevaluated = "'unevaluated" in repr(schema)
        return term(Document(schema, self.budget).node(schema, ""))

    def of(self, conjunction: Conjunction) -> Union:
        """Return the values of a conjunction: those that meet all schemas, and none of those that must not be met."""
        if conjunction in self._found:
            return self._found[conjunction]
        if not conjunction:
            return EVERYTHING
        pointer = conjunction[0][0].pointer
        if any((node, not is_met) in conjunction for node, is_met in conjunction):
            return ()
        if conjunction in self._open:
            raise SchemaError(pointer, "refers to itself with nothing in between")
        if len(self._open) >= _MAX_DEPTH:
            raise SchemaError(pointer, f"is nested deeper than {_MAX_DEPTH} schemas")
        self._open.append(conjunction)
        try:
            if len(conjunction) == 1:
                [(node, is_met)] = conjunction
                found = self._positive(node) if is_met else self._negative(node)
            else:
                found = self._all(((literal,) for literal in conjunction), pointer)
        finally:
            self._open.pop()
        self._found[conjunction] = found if found is EVERYTHING else self._any([found], pointer)
        return self._found[conjunction]

    def is_empty(self, conjunction: Conjunction) -> bool:
        """Return whether it is known that nothing meets a conjunction; of one that is being worked out, it is not."""
        return conjunction not in self._open and not self.of(conjunction)

    def holds(self, union: Union, value: Any) -> bool:
        """Return whether a value is in a union."""
        return any(self._is_in(alternative, value) for alternative in union)

    # ---- combinations ----

    def _all(self, conjunctions: Iterable[Conjunction], pointer: str) -> Union:
        union: Union | None = None
        for conjunction in conjunctions:
            other = self.of(conjunction)
            union = other if union is None else self.both(union, other, pointer)
        return EVERYTHING if union is None else union

    def _any(self, unions: Iterable[Union], pointer: str) -> Union:
        """Return the union of some unions, each alternative once."""
        found: dict[int, Alternative] = {}
        for union in unions:
            self.budget.spend(len(union) // 8, pointer)
            found |= {id(alternative): alternative for alternative in union}
        whole = tuple(found.values())
        return EVERYTHING if len(whole) == len(EVERYTHING) and {*found} == {*map(id, EVERYTHING)} else whole

    def both(self, one: Union, other: Union, pointer: str) -> Union:
        """Return the intersection of two unions."""
        if one is EVERYTHING or other is EVERYTHING:
            return other if one is EVERYTHING else one
        found: list[Alternative] = []
        for first in one:
            self.budget.spend(len(other), pointer)
            found += filter(None, (self._common(first, second, pointer) for second in other))
        return tuple(found)

    def _common(self, one: Alternative, other: Alternative, pointer: str) -> Alternative | None:
        if isinstance(other, Values):
            one, other = other, one
        if isinstance(one, Values):
            if isinstance(other, Values):
                self.budget.spend((len(one.values) + len(other.values)) // 4, pointer)
                keys = {key_of(value) for value in other.values}
                kept = tuple(value for value in one.values if key_of(value) in keys)
            else:
                self.budget.spend(len(one.values), pointer)
                kept = tuple(value for value in one.values if self._is_in(other, value))
            return Values(kept) if kept else None
        if isinstance(other, Values) or type(one) is not type(other):
            return None
        found = common(one, other)
        if isinstance(found, Objects) and isinstance(one, Objects) and isinstance(other, Objects):
            self.budget.spend(1 + sum(len(rules.properties) for rules in found.rules) // 4, pointer)
            named = [{name for rules in operand.rules for name in rules.properties} for operand in (one, other)]
            shared = named[0] & named[1]  # what distinguishes alternatives is required, and spoken of by both
            if any(rules.others is not None for rules in found.rules):
                shared |= {*found.required}
            if any(name in shared and self.is_empty(self.member(found, name)) for name in found.required):
                return None
        return found

    # ---- one schema ----

    def _positive(self, node: Node) -> Union:
        schema = node.schema
        if isinstance(schema, bool):
            return EVERYTHING if schema else ()
        self.budget.spend(2 + len(schema), node.pointer)
        if isinstance(schema, tuple):
            return self._any(map(self.of, schema), node.pointer)
        union: Union = EVERYTHING if schema.keys() <= _ANY_TYPE else tuple(of_type(node))
        if (values := self._finite(node)) is not None:
            union = self.both((Values(values),), union, node.pointer)
        for other in self._combined(node):
            union = self.both(union, other, node.pointer)
        if "oneOf" in schema:
            union = self._one_of(node, union)
        if "unevaluatedProperties" in schema:
            union = tuple(self._closed_object(alternative, node) for alternative in union)
        if "unevaluatedItems" in schema:
            union = tuple(self._closed_array(alternative, node) for alternative in union)
        return union

    @staticmethod
    def _finite(node: Node) -> tuple[Any, ...] | None:
        lists: dict[str, list[Any]] = {}
        if "enum" in node.schema:
            lists["enum"] = node.schema["enum"]
            if not isinstance(lists["enum"], list) or not lists["enum"]:
                raise node.failure("enum", f"must be a list of values, got {shown(lists['enum'])}")
        if "const" in node.schema:
            lists["const"] = [node.schema["const"]]
        for keyword, values in lists.items():
            if why := unspeakable(values):
                raise node.failure(keyword, why)
        if not lists:
            return None
        shared = set.intersection(*({*map(key_of, values)} for values in lists.values()))
        return tuple(value for value in distinct(next(iter(lists.values()))) if key_of(value) in shared)

    def _combined(self, node: Node) -> Iterator[Union]:
        """Yield what each keyword that holds schemas for the same value allows."""
        schema = node.schema
        if "$recursiveRef" in schema:
            raise node.failure("$recursiveRef", "is of an older draft; use $dynamicRef")
        for keyword in _REFERENCES:
            if keyword in schema:
                yield self.of(term(node.document.referred(node, keyword)))
        for branch in self._listed(node, "allOf"):
            yield self.of(term(branch))
        if "anyOf" in schema:
            yield self._any_of(node)
        if "not" in schema:
            yield self.of(term(node.at("not"), False))
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._if(node)
        elif "if" in schema and self._has_unevaluated:  # what meets it is evaluated, all else may come too
            yield (*self.of(term(node.at("if"))), *EVERYTHING)
        yield from self._dependent(node)

    @staticmethod
    def _listed(node: Node, keyword: str) -> Sequence[Node]:
        given = node.schema.get(keyword, [])
        if not isinstance(given, list) or (keyword in node.schema and not given):
            raise node.failure(keyword, f"must be a list of schemas, got {shown(given)}")
        return [node.at(keyword, number) for number in range(len(given))]

    def _any_of(self, node: Node) -> Union:
        """Return the values of the alternatives, and those of several: where it matters, all of these evaluate."""
        pointer = f"{node.pointer}/anyOf"
        unions: list[Union] = []
        for branch in self._listed(node, "anyOf"):
            union = self.of(term(branch))
            has_shared = self._has_unevaluated and len(unions) < _MAX_SHARED
            unions += [*(self.both(other, union, pointer) for other in unions if has_shared), union]
        return self._any(unions, pointer)

    def _one_of(self, node: Node, all_else: Union) -> Union:
        """Return the values of just one alternative, within the other keywords."""
        pointer = f"{node.pointer}/oneOf"
        branches = self._listed(node, "oneOf")
        unions = [self.both(all_else, self.of(term(branch)), pointer) for branch in branches]
        overlaps: list[list[int]] = [[] for _ in branches]
        for one, other in combinations(range(len(branches)), 2):
            if self.both(unions[one], unions[other], pointer):  # or it is not known that none is in both
                overlaps[one].append(other)
                overlaps[other].append(one)
        found: list[Alternative] = []
        for union, others in zip(unions, overlaps, strict=True):
            for other in others:
                try:
                    union = self.both(union, self.of(term(branches[other], False)), pointer)
                except SchemaError as error:
                    why = f"alternatives overlap, and what is in one alone is not enforced ({error})"
                    raise SchemaError(pointer, why) from None
            found += union
        return tuple(found)

    def _if(self, node: Node) -> Union:
        condition = node.at("if")
        found: list[Alternative] = []
        for is_met, keyword in ((True, "then"), (False, "else")):
            union = self.of(term(condition, is_met))
            if keyword in node.schema:
                union = self.both(union, self.of(term(node.at(keyword))), f"{node.pointer}/{keyword}")
            found += union
        return tuple(found)

    def _dependent(self, node: Node) -> Iterator[Union]:
        for name, needed in self._dependencies(node):
            met = self.both(self.of(term(needed)), (Objects(required=(name,)),), needed.pointer)  # in this order
            yield (*(known for known in EVERYTHING if not isinstance(known, Objects)), lacking(node, name), *met)

    @staticmethod
    def _dependencies(node: Node) -> Iterator[tuple[str, Node]]:
        """Yield members' names, and the schemas that objects with these have to meet."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            given = node.schema.get(keyword, {})
            if not isinstance(given, dict):
                raise node.failure(keyword, f"must be an object, got {shown(given)}")
            for name, needs in given.items():
                if isinstance(needs, list) or keyword == "dependentRequired":
                    needs = {"required": names_of(node, keyword, needs)}
                yield name, node.document.node(needs, f"{node.pointer}/{keyword}/{escaped(name)}")

    # ---- what none of a schema's other keywords has spoken of ----

    def _closed_object(self, alternative: Alternative, node: Node) -> Alternative:
        if not isinstance(alternative, Objects):
            return self._only_empty(alternative, node, dict)
        others = term(node.at("unevaluatedProperties"))
        evaluated = [rules for rules in alternative.rules if rules.evaluates]
        if any(rules.others is not None for rules in evaluated):
            return alternative
        rules = Rules(
            {name: TRUE for rules in evaluated for name in rules.properties},
            tuple((language, TRUE) for rules in evaluated for language, _ in rules.patterns),
            others,
        )
        return replace(alternative, rules=(*alternative.rules, rules))

    def _closed_array(self, alternative: Alternative, node: Node) -> Alternative:
        if not isinstance(alternative, Arrays):
            return self._only_empty(alternative, node, list)
        others = term(node.at("unevaluatedItems"))
        count = alternative.evaluated
        if count is None or others == TRUE:
            return replace(alternative, is_open=True, evaluated=None)
        if contained := [needed.what for needed in alternative.contained if needed.evaluates]:
            others = ((node.instead((others, *contained)), True),)
        length = max(count, len(alternative.prefix))
        prefix = [
            alternative.at(index) if index < count else conjoined((alternative.at(index), others))
            for index in range(length)
        ]
        rest = conjoined((alternative.rest, others))
        return replace(alternative, prefix=tuple(prefix), rest=rest, is_open=True, evaluated=None)

    @staticmethod
    def _only_empty(alternative: Alternative, node: Node, kind: type) -> Alternative:
        """Return an alternative whose values are spoken of as they are."""
        keyword = "unevaluatedProperties" if kind is dict else "unevaluatedItems"
        if isinstance(alternative, Values) and any(isinstance(value, kind) and value for value in alternative.values):
            raise node.failure(keyword, "is not enforced alongside enum and const")
        return alternative

    # ---- the opposite of a schema ----

    def _negative(self, node: Node) -> Union:
        schema = node.schema
        if isinstance(schema, bool):
            return () if schema else EVERYTHING
        self.budget.spend(2 + len(schema), node.pointer)
        for keyword in ("unevaluatedProperties", "unevaluatedItems", "$recursiveRef"):
            if schema.get(keyword, True) is not True:
                raise node.failure(keyword, "its opposite is not enforced")
        found = [*opposite(node)]
        if (values := self._finite(node)) is not None:
            found += self._other_than(node, values)
        for keyword in _REFERENCES:
            if keyword in schema:
                found += self.of(term(node.document.referred(node, keyword), False))
        for branch in self._listed(node, "allOf"):
            found += self.of(term(branch, False))
        if "anyOf" in schema:
            found += self._all((term(item, False) for item in self._listed(node, "anyOf")), node.pointer)
        if "oneOf" in schema:
            branches = self._listed(node, "oneOf")
            found += self._all((term(branch, False) for branch in branches), node.pointer)
            for pair in combinations(branches, 2):
                found += map(unevaluating, self._all(map(term, pair), node.pointer))
        if "not" in schema:
            found += map(unevaluating, self.of(term(node.at("not"))))
        if "if" in schema:
            for is_met, keyword in ((True, "then"), (False, "else")):
                if keyword in schema:
                    union = self.of(term(node.at("if"), is_met))
                    other = self.of(term(node.at(keyword), False))
                    found += map(unevaluating, self.both(union, other, node.pointer))
        for name, needed in self._dependencies(node):
            found += self.both((Objects(required=(name,)),), self.of(term(needed, False)), needed.pointer)
        return tuple(found)

    def _other_than(self, node: Node, values: Sequence[Any]) -> Union:
        """Return all values but some."""
        pointer = f"{node.pointer}/{'enum' if 'enum' in node.schema else 'const'}"
        keys = {key_of(value) for value in values}
        numbers = sorted(exact(value) for value in values if is_number(value))
        lows, highs = [None, *((number, 1) for number in numbers)], [*((number, -1) for number in numbers), None]
        union: Union = (
            *(Values((value,)) for value in (None, True, False) if key_of(value) not in keys),
            *(Numbers(low, high, pointer=pointer) for low, high in zip(lows, highs, strict=True)),
            Strings(excluded=tuple((value, pointer) for value in values if isinstance(value, str))),
            Arrays(),
            Objects(),
        )
        for value in values:
            if isinstance(value, list | dict):
                same = Arrays if isinstance(value, list) else Objects
                others = [alternative for alternative in EVERYTHING if not isinstance(alternative, same)]
                union = self.both(union, (*others, *self._different(node, value, pointer)), pointer)
        return union

    @staticmethod
    def _different(node: Node, value: list[Any] | dict[str, Any], pointer: str) -> Iterator[Alternative]:
        """Yield the arrays, or the objects, that are not one of them."""
        kind = Arrays if isinstance(value, list) else Objects
        yield kind(low=len(value) + 1, pointer=pointer)
        if isinstance(value, list) and value:
            yield Arrays(high=len(value) - 1)
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for part, known in parts:
            other = term(node.instead({"const": known}), False)
            if isinstance(part, int):
                yield Arrays((*[TRUE] * part, other), is_open=True, low=part + 1)
            else:
                yield lacking(node, part)
                yield Objects((Rules({part: other}, evaluates=False),), (part,))

    def member(self, objects: Objects, name: str) -> Conjunction:
        """Return the conjunction for a member of a name."""
        found = []
        for rules in objects.rules:
            matching = [
                what for language, what in rules.patterns if matches(language, name, self.budget, "/patternProperties")
            ]
            if name in rules.properties:
                matching.append(rules.properties[name])
            elif not matching:
                matching.append(TRUE if rules.others is None else rules.others)
            found += matching
        return conjoined(found)

    # ---- values ----

    def _is_in(self, alternative: Alternative, value: Any) -> bool:
        self.budget.spend(1, "")
        match alternative:
            case Values(values):
                key = key_of(value)
                return any(key_of(known) == key for known in values)
            case Numbers():
                return is_number(value) and alternative.holds(exact(value))
            case Strings():
                return isinstance(value, str) and self._is_string(alternative, value)
            case Arrays():
                return isinstance(value, list) and self._is_array(alternative, value)
            case Objects():
                return isinstance(value, dict) and self._is_object(alternative, value)

    def _is_string(self, strings: Strings, value: str) -> bool:
        if len(value) < strings.low or (strings.high is not None and len(value) > strings.high):
            return False
        if any(value == other for other, _ in strings.excluded):
            return False
        return all(matches(language, value, self.budget, at) for language, at in strings.languages)

    def _is_array(self, arrays: Arrays, value: list[Any]) -> bool:
        if len(value) < arrays.low or (arrays.high is not None and len(value) > arrays.high):
            return False
        if arrays.unique is not None and len(distinct(value)) < len(value):
            return False
        if not all(self.holds(self.of(arrays.at(index)), item) for index, item in enumerate(value)):
            return False
        for contained in arrays.contained:
            count = sum(self.holds(self.of(contained.what), item) for item in value)
            if count < contained.low or (contained.high is not None and count > contained.high):
                return False
        return True

    def _is_object(self, objects: Objects, value: dict[str, Any]) -> bool:
        if len(value) < objects.low or (objects.high is not None and len(value) > objects.high):
            return False
        if not all(name in value for name in objects.required):
            return False
        for named, what in objects.beyond:
            if not any(name not in named and self.holds(self.of(what), member) for name, member in value.items()):
                return False
        names = self.of(objects.names)
        return all(
            self.holds(names, name) and self.holds(self.of(self.member(objects, name)), member)
            for name, member in value.items()
        )


# Keywords that do not speak of one type.
_ANY_TYPE = ANNOTATIONS | {
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("enum", "const", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems"),
    *("unevaluatedProperties", "$anchor", "$defs", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "definitions"),
}
