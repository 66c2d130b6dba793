"""Regular languages as trees: what patterns, formats and bounds of lengths allow strings to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.charsets import Ranges
from lmdeploy.json_schema.errors import Budget

_SHARES = (128, 64, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)  # how long parts may be, where a bound is shared by several
_MAX_SIZE = 512  # of what a bound turns a language into
_STEP = 1 / 4  # of a budget, for a part of a language at one place of a string
_MAX_STEPS = 12_000  # sets of characters, and beginnings of languages, that a combination looks at
_COMBINING = 1 / 12  # of a budget, for one of them
_DEEPEST_NAME = 40  # characters by which names are distinguished


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concatenation:
    """One part after another."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some."""

    options: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Something again and again; `high` None: any number of times."""

    body: Language
    low: int
    high: int | None


Language = Chars | Concatenation | Choice | Repeat

EMPTY = Concatenation(())
"""The empty string."""

NOTHING = Choice(())
"""No string at all."""

ANYTHING = Repeat(Chars(charsets.EVERY), 0, None)
"""Every string."""


def concatenation(parts: Iterable[Language]) -> Language:
    """Return the language of strings that are a string of each part."""
    flat: list[Language] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat += _parts(part)
    return flat[0] if len(flat) == 1 else Concatenation(tuple(flat))


def choice(options: Iterable[Language]) -> Language:
    """Return the language of strings that are of any of these."""
    flat = {part: None for option in options for part in (option.options if isinstance(option, Choice) else (option,))}
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def repeat(body: Language, low: int, high: int | None) -> Language:
    """Return the language of strings that are this many strings of `body`."""
    if high == 0 or body == EMPTY or (body == NOTHING and low == 0):
        return EMPTY
    if body == NOTHING or (low, high) == (1, 1):
        return body
    if has_empty(body):  # any number of times may be written as none at all
        low = 0
        if isinstance(body, Choice):
            body = choice(option for option in body.options if option != EMPTY)
    return Repeat(body, low, high)


def text(characters: str) -> Language:
    """Return the language of one string."""
    return concatenation(Chars(charsets.of(char)) for char in characters)


def restricted(language: Language, ranges: Ranges) -> Language:
    """Return the strings that are made of these characters alone."""
    match language:
        case Chars(own):
            left = charsets.intersection(own, ranges)
            return Chars(left) if left else NOTHING
        case Concatenation(parts):
            return concatenation([restricted(part, ranges) for part in parts])
        case Choice(options):
            return choice([restricted(option, ranges) for option in options])
        case Repeat(body, low, high):
            return repeat(restricted(body, ranges), low, high)


class TooAlikeError(ValueError):
    """Options of a choice begin alike for too long."""


def _heads(language: Language) -> Iterator[tuple[Chars | None, Language]]:
    """Yield ways to split a language into the characters that it begins with and what follows; None: as a whole."""
    match language:
        case Chars():
            yield language, EMPTY
        case Concatenation(parts):
            for index, part in enumerate(parts):
                for head, tail in _heads(part):
                    if head is not None:
                        yield head, _joined(tail, parts[index + 1 :])
                if not has_empty(part):
                    return
            yield None, EMPTY
        case Repeat(body, low, high):
            more = repeat(body, max(low - 1, 0), None if high is None else high - 1)
            may_be_empty = low == 0
            for head, tail in _heads(body):
                if head is None:
                    may_be_empty = True
                else:
                    yield head, concatenation([tail, more])
            if may_be_empty:
                yield None, EMPTY
        case Choice(options):
            for option in options:
                yield from _heads(option)


def _joined(first: Language, rest: tuple[Language, ...]) -> Language:
    parts = (*_parts(first), *rest)
    return parts[0] if len(parts) == 1 else Concatenation(parts)


def _parts(language: Language) -> tuple[Language, ...]:
    return language.parts if isinstance(language, Concatenation) else (language,)


def has_empty(language: Language) -> bool:
    """Return whether the empty string is of the language."""
    match language:
        case Chars():
            return False
        case Concatenation(parts):
            return all(map(has_empty, parts))
        case Choice(options):
            return any(map(has_empty, options))
        case Repeat(body, low, _):
            return low == 0 or has_empty(body)


def widths(language: Language) -> tuple[int, int | None]:
    """Return the lengths of its shortest and longest string; None: there is no longest."""
    match language:
        case Chars():
            return 1, 1
        case Concatenation(parts):
            found = [widths(part) for part in parts]
            highs = [high for _, high in found]
            return sum(low for low, _ in found), None if None in highs else sum(high or 0 for high in highs)
        case Choice(options):
            found = [widths(option) for option in options]
            highs = [high for _, high in found]
            min_len = min((low for low, _ in found), default=0)
            return min_len, None if None in highs else max((high or 0 for high in highs), default=0)
        case Repeat(body, low, high):
            min_len, max_len = widths(body)
            return min_len * low, None if high is None or max_len is None else max_len * high


def expanded_size(language: Language) -> int:
    """Return how many characters and classes it takes with its repetitions written out."""
    match language:
        case Chars():
            return 1
        case Concatenation(parts) | Choice(parts):
            return sum(map(expanded_size, parts))
        case Repeat(body, low, high):
            return expanded_size(body) * max(low, high or 0, 1)


def bounded(language: Language, low: int, high: int | None) -> Language | None:
    """Return its strings of ``low`` to ``high`` characters; None: that would take too many alternatives."""
    min_len, max_len = widths(language)
    if (high is not None and min_len > high) or (max_len is not None and max_len < low):
        return NOTHING
    if min_len >= low and (high is None or (max_len is not None and max_len <= high)):
        return language
    match language:
        case Choice(options):
            limited = [bounded(option, low, high) for option in options]
            return None if None in limited else choice(option for option in limited if option is not None)
        case Repeat(body, fewest, times):
            width, widest = widths(body)
            if width != widest:
                return None
            fewest = max(fewest, -(-low // width))
            highs = [bound for bound in (times, None if high is None else high // width) if bound is not None]
            return repeat(body, fewest, min(highs, default=None)) if fewest <= min(highs, default=fewest) else NOTHING
        case Concatenation(parts):
            return _bounded_parts(parts, low, high)
    return None


def shortened(language: Language, high: int) -> Language | None:
    """Return strings of at most `high` characters, in which nothing is repeated often; None: none are known."""
    for share in _SHARES:
        found = _capped(language, share)
        max_width = widths(found)[1]
        if max_width is not None and max_width <= high and expanded_size(found) <= _MAX_SIZE:
            return found
    return None


def _capped(language: Language, share: int) -> Language:
    """Return the strings in which nothing is repeated more than this many times, unless it has to be."""
    match language:
        case Chars():
            return language
        case Concatenation(parts):
            return concatenation([_capped(part, share) for part in parts])
        case Choice(options):
            return choice([_capped(option, share) for option in options])
        case Repeat(body, low, high):
            return repeat(_capped(body, share), low, max(low, share if high is None else min(high, share)))


def _bounded_parts(parts: Sequence[Language], low: int, high: int | None) -> Language | None:
    found = [widths(part) for part in parts]
    loose = [index for index, (min_len, max_len) in enumerate(found) if min_len != max_len]
    if len(loose) > 1:
        return None
    [only] = loose
    fixed = sum(min_len for min_len, max_len in found if min_len == max_len)
    limited = bounded(parts[only], max(low - fixed, 0), None if high is None else high - fixed)
    return None if limited is None else concatenation([*parts[:only], limited, *parts[only + 1 :]])


def matches(language: Language, string: str, budget: Budget | None = None, pointer: str = "") -> bool:
    """Return whether a string is of the language, at the cost of finding out for the keyword at `pointer`."""
    return len(string) in _ends(language, string, {0}, budget or Budget(1 << 40), pointer)


def _ends(language: Language, string: str, starts: set[int], budget: Budget, pointer: str) -> set[int]:
    """Return where strings of the language end that begin at one of `starts`."""
    if not starts:
        return starts
    budget.spend((1 + len(starts)) * _STEP, pointer)
    match language:
        case Chars(ranges):
            return {at + 1 for at in starts if at < len(string) and charsets.holds(ranges, string[at])}
        case Concatenation(parts):
            for part in parts:
                starts = _ends(part, string, starts, budget, pointer)
            return starts
        case Choice(options):
            return set().union(*(_ends(option, string, starts, budget, pointer) for option in options))
        case Repeat(body, low, high):
            for _ in range(min(low, len(string) + 1)):
                starts = _ends(body, string, starts, budget, pointer)
            found, times = set(starts), low
            while starts and (high is None or times < high):
                starts, times = _ends(body, string, starts, budget, pointer) - found, times + 1
                found |= starts
            return found


def strings(language: Language, max_count: int) -> list[str] | None:
    """Return all strings of the language; None: there are more than `max_count`, or as many ways to them."""
    found: dict[str, None] = {}
    waiting = [("", language)]
    while waiting:
        begun, rest = waiting.pop(0)
        for head, tail in _heads(rest):
            if head is None:
                found[begun] = None
            elif charsets.size(head.ranges) > max_count:
                return None
            else:
                points = (code for low, high in head.ranges for code in range(low, high + 1))
                waiting += [(begun + chr(code), tail) for code in points]
        if len(found) + len(waiting) > max_count:
            return None
    return list(found)


def are_disjoint(one: Language, other: Language, budget: Budget) -> bool:
    """Return whether no string is of both; False also where finding out takes too many steps."""
    try:
        return not any(
            _END in ways
            for ways in _Combination([one, other], [], charsets.EVERY, budget, "/patternProperties").equations()
        )
    except TooAlikeError:
        return False


def combined(
    included: Sequence[Language], excluded: Sequence[Language], ranges: Ranges, budget: Budget, pointer: str
) -> Language:
    """Return the strings of some characters that are of all wanted languages, and of no unwanted one.

    Of strings that have many characters in common with unwanted ones, it leaves some out. Raises `TooAlikeError` where
    it would be large. The cost is that of the keyword at `pointer`.
    """
    words = [[char.ranges for char in _parts(one) if isinstance(char, Chars)] for one in excluded]
    are_words = all(len(word) == len(_parts(one)) for word, one in zip(words, excluded, strict=True))
    if included or not are_words or any(charsets.size(char) > 1 for word in words for char in word):
        return _Combination(included, excluded, ranges, budget, pointer).language()
    budget.spend(sum(map(len, words)) * _COMBINING, pointer)
    if expanded_size(found := _all_but(words, ranges)) > _MAX_SIZE:
        raise TooAlikeError("is too large")
    return found


def _all_but(words: Iterable[Sequence[Ranges]], ranges: Ranges, depth: int = 0) -> Language:
    if depth == _DEEPEST_NAME:
        return NOTHING
    following: dict[Ranges, list[Sequence[Ranges]]] = {}
    for word in filter(None, words):
        following.setdefault(word[0], []).append(word[1:])
    options: list[Language] = [EMPTY] if all(words) else []
    if others := charsets.intersection(charsets.complement(charsets.union(*following)), ranges):
        options.append(concatenation([Chars(others), Repeat(Chars(ranges), 0, None)]))
    for first, rests in following.items():
        if charsets.intersection(first, ranges):
            options.append(concatenation([Chars(first), _all_but(rests, ranges, depth + 1)]))
    return choice(options)


_Rests = tuple[int, ...]  # numbers of languages, of which a string may be one
_State = tuple[_Rests, ...]  # of each wanted language, and last of all that are unwanted
_END = -1  # in the place of a state's number


@dataclass(slots=True)
class _Combination:
    """An automaton of what is left of several languages, character by character (Brzozowski's derivatives)."""

    included: Sequence[Language]
    excluded: Sequence[Language]
    ranges: Ranges  # of the characters that strings are made of
    budget: Budget
    pointer: str  # of the keyword that pays
    left: int = _MAX_STEPS
    numbers: dict[Language, int] = field(default_factory=dict)  # by first sight: each process hashes otherwise

    def _number(self, language: Language) -> int:
        return self.numbers.setdefault(language, len(self.numbers))

    def _languages(self, rests: _Rests) -> list[Language]:
        every = [*self.numbers]
        return [every[number] for number in rests]

    def _spend(self, steps: int) -> None:
        self.budget.spend(steps * _COMBINING, self.pointer)
        self.left -= steps
        if self.left < 0:
            raise TooAlikeError("has too many alternatives that begin alike")

    def language(self) -> Language:
        """Return the language of the automaton: equations of states, solved by substitution, the last one first."""
        equations = self.equations()
        for number in reversed(range(len(equations))):
            ways = equations[number]
            while (other := max(ways, default=_END)) > number:
                first = ways.pop(other)
                for after, rest in equations[other].items():
                    ways[after] = choice([*([ways[after]] if after in ways else []), concatenation([first, rest])])
            if number in ways:
                loop = repeat(ways.pop(number), 0, None)
                equations[number] = ways = {after: concatenation([loop, way]) for after, way in ways.items()}
            self._spend(size := sum(map(expanded_size, ways.values())))
            if size > _MAX_SIZE:
                raise TooAlikeError("is too large")
        return equations[0].get(_END, NOTHING)

    def equations(self) -> list[dict[int, Language]]:
        """Return, for each state, what leads from it to other states and to the end."""
        start: _State = *((self._number(one),) for one in self.included), tuple(map(self._number, self.excluded))
        numbers, depths = {start: 0}, [0]
        found: list[dict[int, Language]] = []
        for state in (states := [start]):
            depth = depths[len(found)]
            if (left := self._done(state, depth)) is not None:
                found.append({} if left == NOTHING else {_END: left})
                continue
            following: dict[int, list[Ranges]] = {}
            for block, after in self._steps(state):
                if after not in numbers:
                    numbers[after] = len(numbers)
                    states.append(after)
                    depths.append(depth + 1)
                following.setdefault(numbers[after], []).append(block)
            found.append({number: Chars(charsets.union(*blocks)) for number, blocks in following.items()})
            *wanted, unwanted = (any(map(has_empty, self._languages(rests))) for rests in state)
            if all(wanted) and not unwanted:
                found[-1][_END] = EMPTY
        return found

    def _done(self, state: _State, depth: int) -> Language | None:
        """Return the strings that are left where one language says them; None: several do."""
        *included, excluded = map(self._languages, state)
        if not all(included) or any(map(self._is_all, excluded)):
            return NOTHING
        bounds = [rests for rests in included if not any(map(self._is_all, rests))]
        if not excluded and len(bounds) <= 1:
            return choice(restricted(rest, self.ranges) for rest in (bounds[0] if bounds else [ANYTHING]))
        return NOTHING if not bounds and depth == _DEEPEST_NAME else None

    def _is_all(self, language: Language) -> bool:
        return (
            isinstance(language, Repeat)
            and isinstance(language.body, Chars)
            and (language.low, language.high) == (0, None)
            and charsets.intersection(language.body.ranges, self.ranges) == self.ranges
        )

    def _steps(self, state: _State) -> Iterator[tuple[Ranges, _State]]:
        """Yield sets of characters that lead to the same state, and the state."""
        heads = [
            [(head.ranges, tail) for rest in self._languages(rests) for head, tail in _heads(rest) if head is not None]
            for rests in state
        ]
        weight = sum(1 + (len(ranges) + len(_parts(tail))) // 8 for head in heads for ranges, tail in head)
        numbered = [[(ranges, self._number(tail)) for ranges, tail in head] for head in heads]
        self._spend(weight)
        blocks = [self.ranges]
        for ranges in {ranges for head in heads for ranges, _ in head}:
            others = charsets.complement(ranges)
            blocks = [
                part for block in blocks for share in (ranges, others) if (part := charsets.intersection(block, share))
            ]
            self._spend(len(blocks))
        self._spend(len(blocks) * weight)
        for block in blocks:
            reached = (
                sorted({rest for ranges, rest in head if charsets.intersection(block, ranges)}) for head in numbered
            )
            yield block, tuple(map(tuple, reached))
