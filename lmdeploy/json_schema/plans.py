"""From sets of values to what the grammar engine (xgrammar) is given of them, with what it cannot keep to refused.

What is made here may be narrower than a set, where a set is wider than a grammar can say: members come in one order,
numbers within bounds have six decimals, names and strings with a pattern have no escaped characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import comb, perm
from typing import Any, TypeGuard

from lmdeploy.json_schema import numbers
from lmdeploy.json_schema.charsets import EVERY, PLAIN_ASCII, intersection
from lmdeploy.json_schema.errors import SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.expressions import expression_of
from lmdeploy.json_schema.formats import short_form
from lmdeploy.json_schema.keywords import term
from lmdeploy.json_schema.languages import (
    ANYTHING,
    NOTHING,
    Chars,
    Language,
    Repeat,
    TooAlikeError,
    alphabet,
    are_apart,
    bounded,
    choice,
    combined,
    matches,
    repeat,
    shortened,
    strings,
    text,
    widths,
)
from lmdeploy.json_schema.patterns import PatternError
from lmdeploy.json_schema.sets import (
    TRUE,
    Alternative,
    Arrays,
    Conjunction,
    Contained,
    Numbers,
    Objects,
    Strings,
    Values,
    conjoined,
    least,
)
from lmdeploy.json_schema.values import distinct

MAX_FINITE = 64  # strings of a language that is written as a list, and names that are
MAX_EXCLUDED = 400  # characters of names that further members must not have
MAX_ARRAYS = 512  # of different items, written as a list
MAX_CONTAINED = 3  # keywords `contains` about one array
MAX_POSITIONS = 8  # of the items that `contains` is about
MAX_PLACEMENTS = 64  # of them; beyond, what may come next takes the engine too long to find
MAX_LARGE_PLACEMENTS = 16  # the same, of arrays and objects
COMPILED_LENGTH = 128
"""Up to here a bound of a length is quicker as an expression; beyond it, xgrammar counts (measured with 0.2.8)."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A schema without further schemas, as it is given to the engine."""

    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array; `rest` None: nothing comes after the first items."""

    prefix: tuple[Conjunction, ...]
    rest: Conjunction | None
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """Members by the expression that their names match; None: anything. Names may come twice."""

    names: str | None
    value: Conjunction


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """An object: its members by name and whether they have to be there, and further ones."""

    members: tuple[tuple[str, Conjunction, bool], ...]
    groups: tuple[Group, ...]
    low: int
    high: int | None
    pointer: str


Plan = Leaf | ArrayPlan | ObjectPlan


class Planner:
    """Makes plans of what an expansion finds."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion

    def of(self, alternative: Alternative) -> Iterator[Plan]:
        """Yield what a set is given to the engine as, in parts."""
        match alternative:
            case Values(values):
                yield Leaf({"enum": list(values)})
            case Numbers():
                yield from map(Leaf, numbers.schemas_of(alternative))
            case Strings():
                yield from map(Leaf, self._string(alternative))
            case Arrays():
                yield from self._array(alternative)
            case Objects():
                yield from self._object(alternative)

    # ---- strings ----

    def _string(self, given: Strings) -> Iterator[dict[str, Any]]:
        if not given.languages and not given.excluded and max(given.low, given.high or 0) > COMPILED_LENGTH:
            schema = {"type": "string", "minLength": given.low}
            yield schema if given.high is None else schema | {"maxLength": given.high}
            return
        language = self._language(given)
        if language is None:
            yield {"type": "string"}
            return
        pointer = given.languages[0][1] if given.languages else given.pointer
        expression = self._expression(language, pointer)
        if expression is None and (finite := strings(language, MAX_FINITE)) is not None:
            yield from [{"enum": finite}] if finite else []
        elif expression is None:
            raise SchemaError(pointer, "needs characters that JSON escapes, which is not enforced")
        else:
            yield {"type": "string", "pattern": expression}

    def _language(self, given: Strings) -> Language | None:
        """Return a language of some of these strings; None: they may be anything."""
        low, high = given.low, given.high
        languages = {language: pointer for language, pointer in given.languages if language != ANYTHING}
        for language in list(languages):  # what is about lengths alone is a bound
            others = [other for other in languages if other is not language]
            if others and _bounds_length(language, others):
                low = max(low, language.low)
                high = language.high if high is None else min(high, language.high or high)
                del languages[language]
        if len(languages) > 1:
            for language in languages:  # what several have in common, where one of them is a list
                if (finite := strings(language, MAX_FINITE)) is not None:
                    return choice(text(each) for each in finite if self._expansion.holds((given,), each))
            languages = {self._combined(languages, [], given): given.pointer}
        names = [each.value for each in given.excluded]
        if languages:
            [language] = languages
        elif names:
            language, names = self._combined([], map(text, names), given), []
        elif low == 0 and high is None:
            return None
        else:
            return repeat(Chars(EVERY), low, high)
        limited = bounded(language, low, high)
        if limited is None:
            language = short_form(language)
            limited = bounded(language, low, high)
        if limited is None and high is not None:
            limited = shortened(language, high)
        if limited is None or widths(limited)[0] < low:
            raise SchemaError(given.pointer, "is not enforced alongside this pattern, format or exclusion")
        if any(matches(limited, name, self._expansion.budget, given.pointer) for name in names):
            limited = self._combined([limited], map(text, names), given)
        return limited

    @staticmethod
    def _combined(wanted: Iterable[Language], unwanted: Iterable[Language], given: Strings) -> Language:
        """Return strings of all wanted languages and of no unwanted one."""
        try:
            return combined([*wanted], [*unwanted], EVERY)
        except TooAlikeError:
            pointers = [*(pointer for _, pointer in given.languages), *(each.pointer for each in given.excluded)]
            raise SchemaError(pointers[-1], "is not enforced alongside another pattern, format or exclusion") from None

    # ---- arrays ----

    def _array(self, given: Arrays) -> Iterator[Plan]:
        if given == Arrays():
            yield Leaf({"type": "array"})
            return
        low, high = given.low, given.high
        if given.prefix and not given.is_open and low <= len(given.prefix):
            high = least(high, len(given.prefix))
        everywhere = [{*given.at(index)} for index in range(len(given.prefix) + 1)]
        contained = []
        for each in given.contained:
            if all({*each.what} <= item for item in everywhere):
                low, high = max(low, each.low), least(high, each.high)
            else:
                contained.append(each)
        if given.unique is not None and (high is None or high > 1):
            yield from self._listed(given, low, high, given.unique)
        elif given.excluded:
            yield from self._listed(given, low, high, given.excluded[0].pointer)
        elif len(contained) > MAX_CONTAINED:
            raise SchemaError(contained[-1].pointer, f"is not enforced alongside {MAX_CONTAINED} other contains")
        else:
            is_large = any(isinstance(each, Arrays | Objects) for each in self._expansion.of(given.rest))
            most = MAX_LARGE_PLACEMENTS if is_large else MAX_PLACEMENTS
            placements = int(most ** (1 / max(1, len(contained))))
            yield from self._containing(given, contained, low, high, placements)

    def _containing(
        self, given: Arrays, contained: Sequence[Contained], low: int, high: int | None, placements: int
    ) -> Iterator[Plan]:
        """Yield arrays by where the items are that have to be contained: among the first ones."""
        if not contained:
            prefix = given.prefix if high is None else given.prefix[:high]
            yield ArrayPlan(prefix, given.rest if high is None or high > len(prefix) else None, low, high)
            return
        first, *further = contained
        [(place, is_met)] = first.what
        # Where the number is bounded above, all others must not be as the ones that are counted.
        other = TRUE if first.high is None else term(place, not is_met)
        positions = MAX_POSITIONS if high is None else min(MAX_POSITIONS, high)
        counts = range(first.low, (first.low if first.high is None else min(first.high, positions)) + 1)
        while positions > first.low and sum(comb(positions, count) for count in counts) > placements:
            positions -= 1
        for count in counts:
            for chosen in combinations(range(positions), count):
                needed = max(chosen, default=-1) + 1
                prefix = tuple(
                    conjoined((given.at(index), first.what if index in chosen else other))
                    for index in range(max(needed, len(given.prefix)))
                )
                each = replace(given, prefix=prefix, rest=conjoined((given.rest, other)))
                yield from self._containing(each, further, max(low, needed), high, placements)

    def _listed(self, given: Arrays, low: int, high: int | None, pointer: str) -> Iterator[Plan]:
        """Yield a list of all arrays, where the items are from a list."""
        items: list[Any] = []
        for conjunction in (*given.prefix, given.rest):
            for alternative in self._expansion.of(conjunction):
                if not isinstance(alternative, Values):
                    raise SchemaError(pointer, "is enforced where items are from an enum alone, and few")
                items += alternative.values
        items = distinct(items)
        high = len(items) if high is None else min(high, len(items))
        found: list[list[Any]] = []
        count = 0
        for length in range(low, high + 1):
            count += perm(len(items), length)
            if count > MAX_ARRAYS:
                raise SchemaError(pointer, f"is not enforced where there are more than {MAX_ARRAYS} such arrays")
        for length in range(low, high + 1):
            for chosen in permutations(items, length):
                self._expansion.budget.spend(1 + length, pointer)
                if self._expansion.holds((given,), list(chosen)):
                    found.append(list(chosen))
        if found:
            yield Leaf({"enum": found})

    # ---- objects ----

    def _object(self, given: Objects) -> Iterator[Plan]:
        if given == Objects():
            yield Leaf({"type": "object"})
            return
        if given.excluded:
            raise SchemaError(given.excluded[0].pointer, "is not enforced where other objects are allowed")
        names = self._expansion.of(given.names)
        declared: dict[str, Conjunction] = {}
        never: list[str] = []
        for name in given.declared():
            conjunction = self._expansion.member(given, name)
            self._expansion.budget.spend(1, given.least_pointer)
            if self._expansion.is_empty(conjunction) or not self._expansion.holds(names, name):
                never.append(name)
            else:
                declared[name] = conjunction
        if any(name in never for name in given.required):
            return
        is_open = not any(rules.lists for rules in given.rules) or given.low > len(declared)
        is_open = is_open or any(rules.others is not None or rules.patterns for rules in given.rules)
        groups: list[Group] = []
        for language, value in self._groups(given, [*declared, *never]) if is_open else ():
            if self._expansion.is_empty(value):
                continue
            if language is not None and (finite := strings(language, MAX_FINITE)) is not None:
                declared |= {name: value for name in finite if name not in never and name not in declared}
            elif language is None:
                groups.append(Group(None, value))
            elif (expression := self._expression(language, "/patternProperties")) is not None:
                groups.append(Group(expression, value))
        members = tuple((name, value, name in given.required) for name, value in declared.items())
        yield ObjectPlan(members, tuple(groups), given.low, given.high, given.least_pointer)

    def _groups(self, given: Objects, names: Sequence[str]) -> Iterator[tuple[Language | None, Conjunction]]:
        """Yield the members that are not spoken of by name, none of which has one of some names."""
        patterns = list({language: None for rules in given.rules for language, _ in rules.patterns})
        others = [*map(text, names)] if sum(map(len, names)) <= MAX_EXCLUDED else [ANYTHING]
        for language in patterns:
            self._expansion.budget.spend(4 * len(patterns), given.least_pointer)
            value = conjoined(part for rules in given.rules for part in self._of_pattern(rules, language))
            for own in self._names(given, language):
                yield self._without(own, others), value
        if any(rules.others is not None for rules in given.rules) or not patterns:
            parts = [TRUE if rules.others is None else rules.others for rules in given.rules]
            for own in self._names(given, None):
                yield self._without(own, [*patterns, *others]), conjoined(parts)

    def _without(self, language: Language | None, others: Sequence[Language]) -> Language | None:
        """Return the names of a language, of plain characters, that are of no other one; `NOTHING`: too hard to say."""
        if language is not None:
            others = [each for each in others if not are_apart(each, language)]
        if not others:
            return language
        try:
            return combined([] if language is None else [language], others, PLAIN_ASCII)
        except TooAlikeError:
            return NOTHING

    @staticmethod
    def _of_pattern(rules: Any, language: Language) -> Iterator[Conjunction]:
        """Yield all that a schema may say about members whose names are of a language."""
        is_own = any(own == language for own, _ in rules.patterns)
        yield from (value for own, value in rules.patterns if own == language or not are_apart(own, language))
        if not is_own and rules.others is not None:
            yield rules.others

    def _names(self, given: Objects, language: Language | None) -> Iterator[Language | None]:
        """Yield the names of a language that ``propertyNames`` allows."""
        if given.names == TRUE:
            yield language
            return
        asked = Strings(languages=() if language is None else ((language, given.names[0][0].pointer),))
        for alternative in self._expansion.both((asked,), self._expansion.of(given.names), given.names[0][0].pointer):
            if isinstance(alternative, Values):
                yield choice(text(each) for each in alternative.values if isinstance(each, str))
            elif isinstance(alternative, Strings):
                yield self._language(alternative)

    @staticmethod
    def _expression(language: Language, pointer: str) -> str | None:
        try:
            return expression_of(language)
        except PatternError as error:
            raise SchemaError(pointer, str(error)) from None


def _bounds_length(language: Language, others: Iterable[Language]) -> TypeGuard[Repeat]:
    """Return whether a language is of all strings of some lengths, of the characters that the others are made of."""
    if not isinstance(language, Repeat) or not isinstance(language.body, Chars):
        return False
    ranges = language.body.ranges
    return all(alphabet(other) == intersection(alphabet(other), ranges) for other in others)
