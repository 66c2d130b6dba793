"""Plans: sets of values as a grammar can say them; what it cannot is refused.

What is made here may be narrower than a set, where a set is wider than a grammar can say: further members and items
come only where the schema speaks of them, numbers within bounds have six decimals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import comb, prod
from typing import Any

from lmdeploy.json_schema.charsets import EVERY, PLAIN_ASCII
from lmdeploy.json_schema.errors import SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.formats import short_form
from lmdeploy.json_schema.keywords import term
from lmdeploy.json_schema.languages import (
    ANYTHING,
    NOTHING,
    Chars,
    Language,
    TooAlikeError,
    are_disjoint,
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
from lmdeploy.json_schema.numbers import Decimals, decimals_of
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
    tightest,
)
from lmdeploy.json_schema.values import distinct

MAX_FINITE = 64  # strings of a language that is written as a list, and names that are
MAX_EXCLUDED = 400  # characters of names that further members must not have
MAX_COMBINED = 16  # characters of strings of a pattern, up to which a bound of their length leaves all that fit
MAX_DISTINCT = 128  # items of which each may come once
MAX_COUNTED = 512  # states of an array whose items `contains` counts


@dataclass(frozen=True, slots=True)
class Kind:
    """All values of a type."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    """Strings of a language."""

    language: Language
    pointer: str


@dataclass(frozen=True, slots=True)
class State:
    """A continuation of some items: an item, by its schemas or its value, and the number of the state after it."""

    may_end: bool
    steps: tuple[tuple[Conjunction | Values, int], ...]


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array; `rest` None: nothing comes after the first items. With states, these say what may come."""

    prefix: tuple[Conjunction, ...]
    rest: Conjunction | None
    low: int
    high: int | None
    states: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Members by the language of their names; None: anything. Names may come twice."""

    names: Language | None
    value: Conjunction


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """An object: its members by name and whether they have to be there, and further ones."""

    members: tuple[tuple[str, Conjunction, bool], ...]
    groups: tuple[Group, ...]
    low: int
    high: int | None
    pointer: str


Plan = Values | Kind | Text | Decimals | ArrayPlan | ObjectPlan


class Planner:
    """Makes plans of what an expansion finds."""

    def __init__(self, expansion: Expansion, *, has_additional: bool = False) -> None:
        self._expansion = expansion
        self._has_additional = has_additional

    def of(self, alternative: Alternative) -> Iterator[Plan]:
        """Yield what a set is given to the engine as, in parts."""
        match alternative:
            case Values():
                yield alternative
            case Numbers():
                yield decimals_of(alternative) or Kind("integer" if alternative.whole else "number")
            case Strings():
                language = self._language(alternative)
                pointer = alternative.languages[0][1] if alternative.languages else alternative.pointer
                if language != NOTHING:
                    yield Kind("string") if language is None else Text(language, pointer)
            case Arrays():
                yield from self._array(alternative)
            case Objects():
                yield from self._object(alternative)

    # ---- strings ----

    def _language(self, given: Strings) -> Language | None:
        """Return a language of some of these strings; None: they may be anything."""
        low, high = given.low, given.high
        languages = {language: pointer for language, pointer in given.languages if language != ANYTHING}
        if len(languages) > 1:
            languages = {self._combined(languages, [], given): given.pointer}
        names = [name for name, _ in given.excluded]
        within = repeat(Chars(EVERY), low, high)
        if languages:
            [language] = languages
        elif names:
            language, names = self._combined([], map(text, names), given), []
        elif low == 0 and high is None:
            return None
        else:
            return within
        limited = bounded(language, low, high)
        if limited is None:
            language = short_form(language)
            limited = bounded(language, low, high)
        if limited is None and high is not None:
            with suppress(SchemaError):
                limited = self._combined([language, within], [], given) if high <= MAX_COMBINED else None
            limited = limited or shortened(language, high)
        if limited is None or widths(limited)[0] < low:
            limited = self._combined([language, within], [], given)
        if any(matches(limited, name, self._expansion.budget, given.pointer) for name in names):
            limited = self._combined([limited], map(text, names), given)
        return limited

    def _combined(self, included: Iterable[Language], excluded: Iterable[Language], given: Strings) -> Language:
        """Return the strings of all included languages and of no excluded one."""
        pointer = (*given.languages, *given.excluded)[-1][1]
        try:
            return combined([*included], [*excluded], EVERY, self._expansion.budget, pointer)
        except TooAlikeError:
            raise SchemaError(pointer, "is not enforced alongside another pattern, format or exclusion") from None

    # ---- arrays ----

    def _array(self, given: Arrays) -> Iterator[Plan]:
        if given == Arrays():
            yield Kind("array")
            return
        low, high = given.low, given.high
        if given.prefix and not (given.is_open or self._has_additional) and low <= len(given.prefix):
            high = tightest(high, len(given.prefix))
        everywhere = [{*given.at(index)} for index in range(len(given.prefix) + 1)]
        contained = []
        for needed in given.contained:
            if all({*needed.what} <= item for item in everywhere):
                low, high = max(low, needed.low), tightest(high, needed.high)
            else:
                contained.append(needed)
        if given.unique is not None and (high is None or high > 1):
            yield ArrayPlan((), None, low, high, self._distinct(given, contained, low, high, given.unique))
        else:
            prefix = given.prefix if high is None else given.prefix[:high]
            rest = given.rest if high is None or high > len(prefix) else None
            yield ArrayPlan(prefix, rest, low, high, self._counted(given, contained, low, high))

    def _counted(self, given: Arrays, contained: Sequence[Contained], low: int, high: int | None) -> tuple[State, ...]:
        """Return the states of an array by how many items it has, and how many of each kind that is contained."""
        if not contained:
            return ()
        ends = [max(len(given.prefix), low if high is None else high)]
        ends += [item.low if item.high is None else item.high for item in contained]
        if prod(end + 1 for end in ends) > MAX_COUNTED:
            raise SchemaError(contained[-1].pointer, f"takes more than {MAX_COUNTED} combinations of counts of items")
        numbers = {counts: number for number, counts in enumerate(product(*(range(end + 1) for end in ends)))}
        states = []
        for length, *counts in numbers:
            is_full = length == high
            may_end = length >= low and all(count >= item.low for count, item in zip(counts, contained, strict=True))
            kinds = [] if is_full else product(*map(_kinds, contained, counts))
            steps = []
            for kind in kinds:
                after = (min(length + 1, ends[0]), *(count for _, count in kind))
                steps.append((conjoined((given.at(length), *(what for what, _ in kind))), numbers[after]))
            states.append(State(may_end, tuple(steps)))
        return tuple(states)

    def _distinct(
        self, given: Arrays, contained: Sequence[Contained], low: int, high: int | None, pointer: str
    ) -> tuple[State, ...]:
        """Return the states of an array whose items differ, by its length and the items that may still come.

        Items come in any order while there are few sets of them, otherwise in that of their enum.
        """
        items = self._items(given, high, pointer)
        if len(items) > MAX_DISTINCT:
            raise SchemaError(pointer, f"is enforced for up to {MAX_DISTINCT} items that may come, got {len(items)}")
        high = tightest(high, len(items))
        has_any_order = sum(comb(len(items), length) for length in range(high + 1)) <= MAX_COUNTED
        if contained and not has_any_order:
            raise SchemaError(contained[-1].pointer, f"takes more than {MAX_COUNTED} sets of different items")
        counted = high if has_any_order or high < len(items) else max(low, len(given.prefix))
        allowed = [self._within(given.at(index), items) for index in range(len(given.prefix) + 1)]
        kinds = [(item, self._within(item.what, items)) for item in contained]
        every = range(len(items))
        waiting: list[tuple[int, frozenset[int] | range]] = [(0, frozenset(every) if has_any_order else every)]
        numbers = {waiting[0]: 0}
        states = []
        for length, left in waiting:  # which grows while it is read
            steps = []
            for item in sorted(allowed[min(length, len(given.prefix))] & {*left}) if length < high else ():
                self._expansion.budget.spend(1 / 4, pointer)
                rest = left - {item} if isinstance(left, frozenset) else range(item + 1, len(items))
                after = (min(length + 1, counted), rest)
                if after not in numbers:
                    numbers[after] = len(waiting)
                    waiting.append(after)
                steps.append((Values((items[item],)), numbers[after]))
            counts = [(kind, len(within - {*left})) for kind, within in kinds]
            is_met = all(count >= kind.low and (kind.high is None or count <= kind.high) for kind, count in counts)
            states.append(State(length >= low and is_met, tuple(steps)))
        return tuple(states)

    def _within(self, conjunction: Conjunction, items: Sequence[Any]) -> set[int]:
        """Return the indices of the items that satisfy a conjunction."""
        union = self._expansion.of(conjunction)
        return {index for index, item in enumerate(items) if self._expansion.holds(union, item)}

    def _items(self, given: Arrays, high: int | None, pointer: str) -> list[Any]:
        """Return all items of arrays whose items are from lists."""
        items: list[Any] = []
        for conjunction in (*given.prefix, given.rest)[:high]:
            for alternative in self._expansion.of(conjunction):
                if not isinstance(alternative, Values):
                    raise SchemaError(pointer, "is enforced where items are from an enum alone")
                items += alternative.values
        return distinct(items)

    # ---- objects ----

    def _object(self, given: Objects) -> Iterator[Plan]:
        if given == Objects():
            yield Kind("object")
            return
        names = self._expansion.of(given.names)
        declared: dict[str, Conjunction] = {}
        never: list[str] = []
        for name in given.declared():
            conjunction = self._expansion.member(given, name)
            self._expansion.budget.spend(1, given.pointer)
            if self._expansion.is_empty(conjunction) or not self._expansion.holds(names, name):
                never.append(name)
            else:
                declared[name] = conjunction
        if any(name in never for name in given.required):
            return
        is_open = self._has_additional or not any(rules.lists for rules in given.rules) or given.low > len(declared)
        is_open = is_open or any(rules.others is not None or rules.patterns for rules in given.rules)
        groups: list[Group] = []
        for language, value in self._groups(given, [*declared, *never]) if is_open else ():
            if self._expansion.is_empty(value):
                continue
            if language is not None and (finite := strings(language, MAX_FINITE)) is not None:
                declared |= {name: value for name in finite if name not in never and name not in declared}
            elif language is None:
                groups.append(Group(None, value))
            elif language != NOTHING:
                groups.append(Group(language, value))
        for known, what in given.beyond:
            if groups and declared.keys() <= known:
                raise SchemaError(what[0][0].pointer, "its opposite is not enforced where any other member may come")
        for chosen in product(*([name for name in declared if name not in names] for names, _ in given.beyond)):
            self._expansion.budget.spend(1, given.pointer)
            values = dict(declared)
            for name, (_, what) in zip(chosen, given.beyond, strict=True):
                values[name] = conjoined((values[name], what))
            needed = {*given.required, *chosen}
            members = tuple((name, value, name in needed) for name, value in values.items())
            yield ObjectPlan(members, tuple(groups), given.low, given.high, given.pointer)

    def _groups(self, given: Objects, names: Sequence[str]) -> Iterator[tuple[Language | None, Conjunction]]:
        """Yield the members that are not spoken of by name, none of which has one of some names."""
        patterns = list({language: None for rules in given.rules for language, _ in rules.patterns})
        others = [*map(text, names)] if sum(map(len, names)) <= MAX_EXCLUDED else [ANYTHING]
        for language in patterns:
            self._expansion.budget.spend(4 * len(patterns), given.pointer)
            near = [
                other
                for other in patterns
                if other != language and not are_disjoint(other, language, self._expansion.budget)
            ]
            value = conjoined(part for rules in given.rules for part in _of_patterns(rules, language, near))
            alone = conjoined(part for rules in given.rules for part in _of_patterns(rules, language, []))
            for own in self._names(given, language):
                yield self._without(own, others), value
                if alone != value:
                    yield self._without(own, [*others, *near]), alone
        if self._has_additional or any(rules.others is not None for rules in given.rules) or not patterns:
            parts = [TRUE if rules.others is None else rules.others for rules in given.rules]
            for own in self._names(given, None):
                yield self._without(own, [*patterns, *others]), conjoined(parts)

    def _near(self, language: Language, others: Sequence[Language]) -> Sequence[Language]:
        """Return the languages that may have names of a language."""
        return [other for other in others if not are_disjoint(other, language, self._expansion.budget)]

    def _without(self, language: Language | None, others: Sequence[Language]) -> Language | None:
        """Return the names of a language, of plain characters, that are of no other one; `NOTHING`: too hard to say."""
        others = others if language is None else self._near(language, others)
        if not others:
            return language
        try:
            return combined([] if language is None else [language], others, PLAIN_ASCII, self._expansion.budget, "")
        except TooAlikeError:
            return NOTHING

    def _names(self, given: Objects, language: Language | None) -> Iterator[Language | None]:
        """Yield the names of a language that ``propertyNames`` allows."""
        if given.names == TRUE:
            yield language
            return
        requested = Strings(languages=() if language is None else ((language, given.names[0][0].pointer),))
        for alternative in self._expansion.both(
            (requested,), self._expansion.of(given.names), given.names[0][0].pointer
        ):
            if isinstance(alternative, Values):
                yield choice(text(value) for value in alternative.values if isinstance(value, str))
            elif isinstance(alternative, Strings):
                yield self._language(alternative)


def _of_patterns(rules: Any, language: Language, near: Sequence[Language]) -> Iterator[Conjunction]:
    """Yield all that a schema may say about members whose names are of a language, and maybe of some others."""
    yield from (value for own, value in rules.patterns if own == language or own in near)
    if rules.others is not None and not any(own == language for own, _ in rules.patterns):
        yield rules.others


def _kinds(contained: Contained, count: int) -> Iterator[tuple[Conjunction, int]]:
    """Yield what the next item may be, and how many are contained after it."""
    [(node, is_met)] = contained.what
    if contained.high is not None:  # all others must not be as those that are counted
        yield term(node, not is_met), count
    else:
        yield TRUE, count
    if count < (contained.low if contained.high is None else contained.high):
        yield contained.what, count + 1
