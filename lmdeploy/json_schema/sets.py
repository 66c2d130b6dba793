"""Sets of JSON values of one type, which schemas are unions of, and what two of them have in common.

What items and members have to be is a conjunction: places of schemas, each with whether it has to be met or must not
be. It is looked at only when it matters (`expansion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lmdeploy.json_schema.languages import Language
from lmdeploy.json_schema.places import Place

Term = tuple[Place, bool]
Conjunction = tuple[Term, ...]
"""Schemas to be met (True) or not to be met, by their places' numbers; none: anything."""

TRUE: Conjunction = ()


def conjoined(conjunctions: Iterable[Conjunction]) -> Conjunction:
    """Return the conjunction of all of these."""
    given = [each for each in conjunctions if each]
    if len(given) <= 1 or all(each == given[0] for each in given):
        return given[0] if given else TRUE
    return tuple(sorted({term for each in given for term in each}, key=lambda term: (term[0].index, term[1])))


@dataclass(frozen=True, slots=True)
class Excluded:
    """A value that is not to come, and the keyword that says so."""

    value: Any
    pointer: str


@dataclass(frozen=True, slots=True)
class Values:
    """Some values, of any type."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers within bounds."""

    low: Fraction | None = None
    high: Fraction | None = None
    opens_low: bool = False  # the bound does not belong to the set
    opens_high: bool = False
    whole: bool | None = None  # they have to be integers (True), or must not be (False)
    pointer: str = field(default="", compare=False)  # of a keyword that is to blame where this is not enforced
    factors: tuple[tuple[Fraction, str], ...] = ()  # that they are multiples of, with the keyword of each
    excluded: tuple[Excluded, ...] = ()

    def holds(self, number: Fraction) -> bool:
        """Return whether a number is within the bounds, and whole if it has to be."""
        return (
            (self.low is None or number > self.low or (number == self.low and not self.opens_low))
            and (self.high is None or number < self.high or (number == self.high and not self.opens_high))
            and (self.whole is None or self.whole == (number.denominator == 1))
            and all((number / factor).denominator == 1 for factor, _ in self.factors)
        )

    def with_(self, other: Numbers) -> Numbers | None:
        """Return the intersection; None: empty."""
        low, opens_low = max(
            [(self.low, self.opens_low), (other.low, other.opens_low)],
            key=lambda bound: (bound[0] is not None, bound[0] or 0, bound[1]),
        )
        high, opens_high = min(
            [(self.high, self.opens_high), (other.high, other.opens_high)],
            key=lambda bound: (bound[0] is None, bound[0] or 0, not bound[1]),
        )
        if low is not None and high is not None and (low > high or (low == high and (opens_low or opens_high))):
            return None
        if None not in (self.whole, other.whole) and self.whole != other.whole:
            return None
        return Numbers(
            low,
            high,
            opens_low,
            opens_high,
            other.whole if self.whole is None else self.whole,
            (other.pointer if other.whole is False else "") or self.pointer or other.pointer,
            _all_of(self.factors, other.factors),
            self.excluded + other.excluded,
        )


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of some lengths, in some languages, each of which comes with its keyword."""

    low: int = 0
    high: int | None = None
    languages: tuple[tuple[Language, str], ...] = ()
    pointer: str = field(default="", compare=False)  # of the keyword that bounds the length
    excluded: tuple[Excluded, ...] = ()

    def with_(self, other: Strings) -> Strings | None:
        """Return the intersection; None: empty."""
        low, high = max(self.low, other.low), least(self.high, other.high)
        if high is not None and low > high:
            return None
        languages = _all_of(self.languages, other.languages)
        return Strings(low, high, languages, self.pointer or other.pointer, self.excluded + other.excluded)


@dataclass(frozen=True, slots=True)
class Contained:
    """How many items have to be as a schema says."""

    what: Conjunction
    low: int
    high: int | None
    pointer: str


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of some first items and any number of others."""

    prefix: tuple[Conjunction, ...] = ()
    rest: Conjunction = TRUE
    is_open: bool = False  # a schema speaks of the others, so that they come even after a prefix
    evaluated: int | None = 0  # items that ``unevaluatedItems`` leaves alone; None: all
    low: int = 0
    high: int | None = None
    unique: str | None = None  # the keyword that wants them to differ
    contained: tuple[Contained, ...] = ()
    excluded: tuple[Excluded, ...] = ()

    def at(self, index: int) -> Conjunction:
        """Return the conjunction for an item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def with_(self, other: Arrays) -> Arrays | None:
        """Return the intersection; None: empty."""
        low, high = max(self.low, other.low), least(self.high, other.high)
        if high is not None and low > high:
            return None
        count = max(len(self.prefix), len(other.prefix))
        both_count = None not in (self.evaluated, other.evaluated)
        return Arrays(
            tuple(conjoined((self.at(index), other.at(index))) for index in range(count)),
            conjoined((self.rest, other.rest)),
            self.is_open or other.is_open,
            max(self.evaluated or 0, other.evaluated or 0) if both_count else None,
            low,
            high,
            self.unique or other.unique,
            _all_of(self.contained, other.contained),
            self.excluded + other.excluded,
        )


@dataclass(frozen=True, slots=True)
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
    low: int = 0
    high: int | None = None
    least_pointer: str = field(default="", compare=False)  # of the keyword that `low` is from
    excluded: tuple[Excluded, ...] = ()

    def declared(self) -> Iterator[str]:
        """Yield the names that are spoken of, in the order of the schemas."""
        yield from dict.fromkeys([*(name for rules in self.rules for name in rules.properties), *self.required])

    def with_(self, other: Objects) -> Objects | None:
        """Return the intersection, without excluded members that are required; None: empty."""
        low, high = max(self.low, other.low), least(self.high, other.high)
        if high is not None and low > high:
            return None
        return Objects(
            self.rules + tuple(each for each in other.rules if not any(each is mine for mine in self.rules)),
            tuple(dict.fromkeys(self.required + other.required)),
            conjoined((self.names, other.names)),
            low,
            high,
            other.least_pointer if other.low > self.low else self.least_pointer,
            self.excluded + other.excluded,
        )


Typed = Numbers | Strings | Arrays | Objects
Alternative = Values | Typed
Union = tuple[Alternative, ...]
"""Union of alternatives."""


def unevaluating(alternative: Alternative) -> Alternative:
    """Return the same set, found by a schema whose annotations do not count."""
    match alternative:
        case Arrays():
            return replace(alternative, evaluated=0)
        case Objects():
            return replace(alternative, rules=tuple(replace(each, evaluates=False) for each in alternative.rules))
    return alternative


def _all_of(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return one + tuple(each for each in other if each not in one)


def least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two bounds; None: there is none."""
    return one if other is None else other if one is None else min(one, other)
