"""Expansion of a schema to the union of sets that it allows: references followed, combinations worked out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.keywords import ANNOTATIONS, EVERYTHING, lacking, names_of, of_type, opposite, term
from lmdeploy.json_schema.languages import matches
from lmdeploy.json_schema.places import Document, Place, escaped, shown
from lmdeploy.json_schema.sets import (
    TRUE,
    Alternative,
    Arrays,
    Conjunction,
    Excluded,
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
_REFERENCES = ("$ref", "$dynamicRef")


class Expansion:
    """Works out schemas, each once."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._found: dict[Conjunction, Union] = {}
        self._open: list[Conjunction] = []

    def document(self, schema: Any) -> Conjunction:
        """Return the conjunction of a whole schema."""
        return term(Document(schema, self.budget).place(schema, ""))

    def of(self, conjunction: Conjunction) -> Union:
        """Return the values of a conjunction: those that meet all schemas, and none of those that must not be met."""
        if conjunction in self._found:
            return self._found[conjunction]
        if not conjunction:
            return EVERYTHING
        pointer = conjunction[0][0].pointer
        if any((place, not is_met) in conjunction for place, is_met in conjunction):
            return ()
        if conjunction in self._open:
            raise SchemaError(pointer, "refers to itself with nothing in between")
        if len(self._open) >= _MAX_DEPTH:
            raise SchemaError(pointer, f"is nested deeper than {_MAX_DEPTH} schemas")
        self._open.append(conjunction)
        try:
            if len(conjunction) == 1:
                [(place, is_met)] = conjunction
                found = self._positive(place) if is_met else self._negative(place)
            else:
                found = self._all(((each,) for each in conjunction), pointer)
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
        for each in conjunctions:
            other = self.of(each)
            union = other if union is None else self.both(union, other, pointer)
        return EVERYTHING if union is None else union

    def _any(self, unions: Iterable[Union], pointer: str) -> Union:
        """Return the union of some unions, each alternative once."""
        found: dict[int, Alternative] = {}
        for union in unions:
            self.budget.spend(len(union) // 8, pointer)
            found |= {id(each): each for each in union}
        whole = tuple(found.values())
        return EVERYTHING if len(whole) == len(EVERYTHING) and {*found} == {*map(id, EVERYTHING)} else whole

    def both(self, one: Union, other: Union, pointer: str) -> Union:
        """Return the intersection of two unions."""
        if one is EVERYTHING or other is EVERYTHING:
            return other if one is EVERYTHING else one
        found: list[Alternative] = []
        for mine in one:
            self.budget.spend(len(other), pointer)
            found += filter(None, (self._common(mine, theirs, pointer) for theirs in other))
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
            named = [{name for rules in each.rules for name in rules.properties} for each in (one, other)]
            shared = named[0] & named[1]  # what distinguishes alternatives is required, and spoken of by both
            if any(rules.others is not None for rules in found.rules):
                shared |= {*found.required}
            if any(name in shared and self.is_empty(self.member(found, name)) for name in found.required):
                return None
        return found

    # ---- one schema ----

    def _positive(self, place: Place) -> Union:
        schema = place.schema
        if isinstance(schema, bool):
            return EVERYTHING if schema else ()
        self.budget.spend(2 + len(schema), place.pointer)
        union: Union = EVERYTHING if schema.keys() <= _ANY_TYPE else tuple(of_type(place))
        if (values := self._finite(place)) is not None:
            union = self.both((Values(values),), union, place.pointer)
        for other in self._combined(place):
            union = self.both(union, other, place.pointer)
        if "oneOf" in schema:
            union = self._one_of(place, union)
        if "unevaluatedProperties" in schema:
            union = tuple(self._closed_object(each, place) for each in union)
        if "unevaluatedItems" in schema:
            union = tuple(self._closed_array(each, place) for each in union)
        return union

    @staticmethod
    def _finite(place: Place) -> tuple[Any, ...] | None:
        lists: dict[str, list[Any]] = {}
        if "enum" in place.schema:
            lists["enum"] = place.schema["enum"]
            if not isinstance(lists["enum"], list) or not lists["enum"]:
                raise place.refuse("enum", f"must be a list of values, got {shown(lists['enum'])}")
        if "const" in place.schema:
            lists["const"] = [place.schema["const"]]
        for keyword, values in lists.items():
            if why := unspeakable(values):
                raise place.refuse(keyword, why)
        if not lists:
            return None
        shared = set.intersection(*({*map(key_of, values)} for values in lists.values()))
        return tuple(value for value in distinct(next(iter(lists.values()))) if key_of(value) in shared)

    def _combined(self, place: Place) -> Iterator[Union]:
        """Yield what each keyword that holds schemas for the same value allows."""
        schema = place.schema
        if "$recursiveRef" in schema:
            raise place.refuse("$recursiveRef", "is of an older draft; use $dynamicRef")
        for keyword in _REFERENCES:
            if keyword in schema:
                yield self.of(term(place.document.referred(place, keyword)))
        for each in self._listed(place, "allOf"):
            yield self.of(term(each))
        if "anyOf" in schema:
            yield self._any((self.of(term(each)) for each in self._listed(place, "anyOf")), f"{place.pointer}/anyOf")
        if "not" in schema:
            yield self.of(term(place.at("not"), False))
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._if(place)
        yield from self._dependent(place)

    @staticmethod
    def _listed(place: Place, keyword: str) -> Sequence[Place]:
        given = place.schema.get(keyword, [])
        if not isinstance(given, list) or (keyword in place.schema and not given):
            raise place.refuse(keyword, f"must be a list of schemas, got {shown(given)}")
        return [place.at(keyword, number) for number in range(len(given))]

    def _one_of(self, place: Place, all_else: Union) -> Union:
        """Return the values of just one alternative, within the other keywords."""
        pointer = f"{place.pointer}/oneOf"
        branches = self._listed(place, "oneOf")
        unions = [self.both(all_else, self.of(term(each)), pointer) for each in branches]
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

    def _if(self, place: Place) -> Union:
        condition = place.at("if")
        found: list[Alternative] = []
        for is_met, keyword in ((True, "then"), (False, "else")):
            union = self.of(term(condition, is_met))
            if keyword in place.schema:
                union = self.both(union, self.of(term(place.at(keyword))), f"{place.pointer}/{keyword}")
            found += union
        return tuple(found)

    def _dependent(self, place: Place) -> Iterator[Union]:
        for name, needed in self._dependencies(place):
            met = self.both(self.of(term(needed)), (Objects(required=(name,)),), needed.pointer)  # in this order
            yield (*(each for each in EVERYTHING if not isinstance(each, Objects)), lacking(place, name), *met)

    @staticmethod
    def _dependencies(place: Place) -> Iterator[tuple[str, Place]]:
        """Yield members' names, and the schemas that objects with these have to meet."""
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            given = place.schema.get(keyword, {})
            if not isinstance(given, dict):
                raise place.refuse(keyword, f"must be an object, got {shown(given)}")
            for name, wanted in given.items():
                if isinstance(wanted, list) or keyword == "dependentRequired":
                    wanted = {"required": names_of(place, keyword, wanted)}
                yield name, place.document.place(wanted, f"{place.pointer}/{keyword}/{escaped(name)}")

    # ---- what none of a schema's other keywords has spoken of ----

    def _closed_object(self, alternative: Alternative, place: Place) -> Alternative:
        if not isinstance(alternative, Objects):
            return self._only_empty(alternative, place, dict)
        others = term(place.at("unevaluatedProperties"))
        evaluated = [rules for rules in alternative.rules if rules.evaluates]
        if any(rules.others is not None for rules in evaluated):
            return alternative
        rules = Rules(
            {name: TRUE for each in evaluated for name in each.properties},
            tuple((language, TRUE) for each in evaluated for language, _ in each.patterns),
            others,
        )
        return replace(alternative, rules=(*alternative.rules, rules))

    def _closed_array(self, alternative: Alternative, place: Place) -> Alternative:
        if not isinstance(alternative, Arrays):
            return self._only_empty(alternative, place, list)
        others = term(place.at("unevaluatedItems"))
        count = alternative.evaluated
        if count is None or others == TRUE:
            return replace(alternative, is_open=True, evaluated=None)
        # An item that `contains` has found is not asked here either: what is left is allowed.
        length = max(count, len(alternative.prefix))
        prefix = [
            alternative.at(index) if index < count else conjoined((alternative.at(index), others))
            for index in range(length)
        ]
        rest = conjoined((alternative.rest, others))
        return replace(alternative, prefix=tuple(prefix), rest=rest, is_open=True, evaluated=None)

    @staticmethod
    def _only_empty(alternative: Alternative, place: Place, kind: type) -> Alternative:
        """Return an alternative whose values are spoken of as they are."""
        keyword = "unevaluatedProperties" if kind is dict else "unevaluatedItems"
        if isinstance(alternative, Values) and any(isinstance(each, kind) and each for each in alternative.values):
            raise place.refuse(keyword, "is not enforced alongside enum and const")
        return alternative

    # ---- the opposite of a schema ----

    def _negative(self, place: Place) -> Union:
        schema = place.schema
        if isinstance(schema, bool):
            return () if schema else EVERYTHING
        self.budget.spend(2 + len(schema), place.pointer)
        for keyword in ("unevaluatedProperties", "unevaluatedItems", "$recursiveRef"):
            if schema.get(keyword, True) is not True:
                raise place.refuse(keyword, "its opposite is not enforced")
        found = [*opposite(place)]
        if (values := self._finite(place)) is not None:
            keyword = "enum" if "enum" in schema else "const"
            found += _other_than(values, f"{place.pointer}/{keyword}")
        for keyword in _REFERENCES:
            if keyword in schema:
                found += self.of(term(place.document.referred(place, keyword), False))
        for each in self._listed(place, "allOf"):
            found += self.of(term(each, False))
        if "anyOf" in schema:
            found += self._all((term(each, False) for each in self._listed(place, "anyOf")), place.pointer)
        if "oneOf" in schema:
            branches = self._listed(place, "oneOf")
            found += self._all((term(each, False) for each in branches), place.pointer)
            for pair in combinations(branches, 2):
                found += map(unevaluating, self._all(map(term, pair), place.pointer))
        if "not" in schema:
            found += map(unevaluating, self.of(term(place.at("not"))))
        if "if" in schema:
            for is_met, keyword in ((True, "then"), (False, "else")):
                if keyword in schema:
                    union = self.of(term(place.at("if"), is_met))
                    other = self.of(term(place.at(keyword), False))
                    found += map(unevaluating, self.both(union, other, place.pointer))
        for name, needed in self._dependencies(place):
            found += self.both((Objects(required=(name,)),), self.of(term(needed, False)), needed.pointer)
        return tuple(found)

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
                return any(key_of(each) == key for each in values)
            case Numbers():
                fits = is_number(value) and alternative.holds(exact(value))
            case Strings():
                fits = isinstance(value, str) and self._is_string(alternative, value)
            case Arrays():
                fits = isinstance(value, list) and self._is_array(alternative, value)
            case Objects():
                fits = isinstance(value, dict) and self._is_object(alternative, value)
        return fits and not any(key_of(each.value) == key_of(value) for each in alternative.excluded)

    def _is_string(self, strings: Strings, value: str) -> bool:
        long_enough = strings.low <= len(value) and (strings.high is None or len(value) <= strings.high)
        return long_enough and all(matches(language, value, self.budget, at) for language, at in strings.languages)

    def _is_array(self, arrays: Arrays, value: list[Any]) -> bool:
        if len(value) < arrays.low or (arrays.high is not None and len(value) > arrays.high):
            return False
        if arrays.unique is not None and len(distinct(value)) < len(value):
            return False
        if not all(self.holds(self.of(arrays.at(index)), each) for index, each in enumerate(value)):
            return False
        for contained in arrays.contained:
            count = sum(self.holds(self.of(contained.what), each) for each in value)
            if count < contained.low or (contained.high is not None and count > contained.high):
                return False
        return True

    def _is_object(self, objects: Objects, value: dict[str, Any]) -> bool:
        if len(value) < objects.low or (objects.high is not None and len(value) > objects.high):
            return False
        if not all(name in value for name in objects.required):
            return False
        for named, what in objects.beyond:
            if not any(name not in named and self.holds(self.of(what), each) for name, each in value.items()):
                return False
        names = self.of(objects.names)
        return all(
            self.holds(names, name) and self.holds(self.of(self.member(objects, name)), each)
            for name, each in value.items()
        )


def _other_than(values: Sequence[Any], pointer: str) -> Iterator[Alternative]:
    """Yield all values but some."""
    keys = {key_of(value) for value in values}
    excluded = tuple(Excluded(value, pointer) for value in values)
    for alternative in EVERYTHING:
        if isinstance(alternative, Values):
            if left := tuple(each for each in alternative.values if key_of(each) not in keys):
                yield Values(left)
            continue
        kind: Any = {Numbers: int | float, Strings: str, Arrays: list, Objects: dict}[type(alternative)]
        own = tuple(each for each in excluded if isinstance(each.value, kind) and not isinstance(each.value, bool))
        yield replace(alternative, excluded=own)


# Keywords that do not speak of one type.
_ANY_TYPE = ANNOTATIONS | {
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("enum", "const", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems"),
    *("unevaluatedProperties", "$anchor", "$defs", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "definitions"),
}
