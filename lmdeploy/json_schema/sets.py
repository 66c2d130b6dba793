"""Sets of JSON values of one type, which schemas are unions of, and what two of them have in common.

What items and members have to be is a conjunction: places of schemas, each with whether it has to be met or must not
be. It is looked at only when it matters (`expansion`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lmdeploy.json_schema.languages import Language
from lmdeploy.json_schema.nodes import Node

Term = tuple[Node, bool]
Conjunction = tuple[Term, ...]
"""Schemas to be met (True) or not to be met, by their places' numbers; none: anything."""

TRUE: Conjunction = ()


def conjoined(conjunctions: Iterable[Conjunction]) -> Conjunction:
    """Return the conjunction of all of these."""
    given = [conjunction for conjunction in conjunctions if conjunction]
    if len(given) <= 1 or all(terms == given[0] for terms in given):
        return given[0] if given else TRUE
    return tuple(sorted({term for terms in given for term in terms}, key=lambda term: (term[0].index, term[1])))


@dataclass(frozen=True, slots=True)
class Values:
    """Some values, of any type."""

    values: tuple[Any, ...]


Bound = tuple[Fraction, int]
"""A number, and 0, 1 or -1: a bound that belongs to the set, or lies above or below its number. They have an order."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers within bounds."""

    low: Bound | None = None
    high: Bound | None = None
    whole: bool | None = None  # they have to be integers (True), or must not be (False)
    pointer: str = field(default="", compare=False)  # of a keyword that is to blame where this is not enforced
    factors: tuple[tuple[Fraction, str], ...] = ()  # that they are multiples of, with the keyword of each

    def holds(self, number: Fraction) -> bool:
        """Return whether a number is within the bounds, and whole if it has to be."""
        return (
            (self.low is None or self.low <= (number, 0))
            and (self.high is None or self.high >= (number, 0))
            and (self.whole is None or self.whole == (number.denominator == 1))
            and all((number / factor).denominator == 1 for factor, _ in self.factors)
        )


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of some lengths, in some languages, but for some; languages and strings come with their keywords."""

    low: int = 0
    high: int | None = None
    pointer: str = field(default="", compare=False)  # of the keyword that bounds the length
    languages: tuple[tuple[Language, str], ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Contained:
    """How many items have to be as a schema says."""

    what: Conjunction
    low: int
    high: int | None
    pointer: str
    evaluates: bool = False  # ``unevaluatedItems`` leaves alone what is contained


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of some first items and any number of others."""

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = TRUE
    is_open: bool = False  # a schema speaks of the others, so that they come even after a prefix
    evaluated: int | None = 0  # items that ``unevaluatedItems`` leaves alone; None: all
    low: int = 0
    high: int | None = None
    pointer: str = field(default="", compare=False)  # of a keyword that bounds the number of items
    unique: str | None = None  # the keyword that wants them to differ
    contained: tuple[Contained, ...] = ()

    def at(self, index: int) -> Conjunction:
        """Return the conjunction for an item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """One schema's rules about the members of an object."""

    properties: dict[str, Conjunction] = field(default_factory=dict)
    patterns: tuple[tuple[Language, Conjunction], ...] = ()
    others: Conjunction | None = None  # of what is named by neither; None: the schema does not speak of them
    evaluates: bool = True  # ``unevaluatedProperties`` leaves alone what is named here
    lists: bool = False  # further members come only where the schema speaks of them


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects whose members are as all of ``rules`` say."""

    rules: tuple[Rules, ...] = ()
    required: tuple[str, ...] = ()
    names: Conjunction = TRUE
    beyond: tuple[tuple[frozenset[str], Conjunction], ...] = ()  # a member of another name than these is of a schema
    low: int = 0
    high: int | None = None
    pointer: str = field(default="", compare=False)  # of a keyword that bounds the number of members

    def declared(self) -> Iterator[str]:
        """Yield the names that are spoken of, in the order of the schemas."""
        yield from dict.fromkeys([*(name for rules in self.rules for name in rules.properties), *self.required])


Typed = Numbers | Strings | Arrays | Objects
Alternative = Values | Typed
Union = tuple[Alternative, ...]
"""Union of alternatives."""


def unevaluating(alternative: Alternative) -> Alternative:
    """Return the same set, found by a schema whose annotations do not count."""
    match alternative:
        case Arrays():
            contained = tuple(replace(needed, evaluates=False) for needed in alternative.contained)
            return replace(alternative, evaluated=0, contained=contained)
        case Objects():
            return replace(alternative, rules=tuple(replace(rules, evaluates=False) for rules in alternative.rules))
    return alternative


def tightest(one: Any, other: Any) -> Any:
    """Return the smaller of two bounds; None: there is none."""
    return one if other is None else other if one is None else min(one, other)


def _all_of(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return one + tuple(item for item in other if item not in one)


_COMMON: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("beyond", "contained", "excluded", "factors", "languages", "required", "rules"), _all_of),
    **dict.fromkeys(("is_open", "pointer", "unique"), lambda one, other: one or other),
    **dict.fromkeys(("names", "rest"), lambda one, other: conjoined((one, other))),
    "low": lambda one, other: one if other is None else other if one is None else max(one, other),
    "high": tightest,
    "whole": lambda one, other: other if one is None else one,
    "evaluated": lambda one, other: None if None in (one, other) else max(one, other),
    "prefix": lambda one, _: one,
}
"""Of what two sets have in common, a field by theirs."""


def common(one: Typed, other: Typed) -> Typed | None:
    """Return the intersection of two sets of the same type; None: empty."""
    parts = {name: _COMMON[name](getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__}
    if None not in (parts["low"], parts["high"]) and parts["low"] > parts["high"]:
        return None
    if isinstance(one, Numbers) and isinstance(other, Numbers) and {one.whole, other.whole} == {True, False}:
        return None
    if isinstance(one, Arrays) and isinstance(other, Arrays):
        count = max(len(one.prefix), len(other.prefix))
        parts["prefix"] = tuple(conjoined((one.at(index), other.at(index))) for index in range(count))
    return type(one)(**parts)
