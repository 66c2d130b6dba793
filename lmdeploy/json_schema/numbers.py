"""Numbers as rules of a grammar: automata over the digits of decimals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.sets import Numbers
from lmdeploy.json_schema.values import LARGEST, exact, is_number

_INTEGER_DIGITS = 19  # 64 bits
_LONGEST = 40  # digits of a bound
_SIGNIFICANT = 15  # digits of other numbers, all of which doubles tell apart
_PLACES = 6  # after the point, where no bound and no factor has more
_MOST_STATES = 4096
_STATE = 1 / 4  # of a budget


@dataclass(frozen=True, slots=True)
class Decimals:
    """Decimals of some places after the point; all other numbers here count units of the last place."""

    low: int
    high: int
    places: int
    step: int  # whose multiples they are
    has_fraction: bool  # they are no integers
    excluded: frozenset[int]
    pointer: str  # of the keyword to blame

    @property
    def are_integers_of_doubles(self) -> bool:
        """Whether they are integers that are the same with a point."""
        return self.places == 0 and self.low >= -LARGEST and self.high <= LARGEST

    def rule(self, add: Callable[[str], str], budget: Budget) -> str:
        """Return the body of their rule, empty where there are none; `add` adds a rule and returns its name."""
        if self.low == -self.high and not self.excluded:
            return (above := _Digits(self, add, budget).whole()) and f'"-"? {above}'
        excluded = frozenset(-each for each in self.excluded)
        negative = replace(self, low=max(-self.high, 1), high=-self.low, excluded=excluded)
        above, below = (_Digits(each, add, budget).whole() for each in (self, negative))
        return " | ".join(filter(None, (above, below and f'"-" {below}')))


class _Digits:
    """Writes the numbers that are not negative."""

    def __init__(self, numbers: Decimals, add: Callable[[str], str], budget: Budget) -> None:
        self._numbers = numbers
        self._add = add
        self._budget = budget
        self._known: dict[tuple[int, ...], str] = {}

    def whole(self) -> str:
        """Return the name of the rule; empty: there are no such numbers."""
        longest = len(str(max(self._numbers.high, 0) // 10**self._numbers.places))
        options = [
            option for length in range(1, longest + 1) for option in self._options(0, length, range(length > 1, 10))
        ]
        return self._add(" | ".join(options)) if options else ""

    def _after(self, prefix: int, left: int) -> str:
        """Return the name of the rule of what follows some digits; empty: nothing does.

        `left` digits are to come before the point; below 0, as many digits are already behind it.
        """
        of = self._numbers
        width = 10 ** (of.places + left)
        least, most = prefix * width, (prefix + 1) * width - 1
        if least > of.high or most < of.low:
            return ""
        is_free = of.low <= least and most <= of.high and not any(least <= each <= most for each in of.excluded)
        has_fraction = least % 10**of.places > 0
        key = (left, least % of.step, has_fraction) if is_free else (left, prefix)
        if key not in self._known:
            self._budget.spend(_STATE, of.pointer)
            options = self._options(prefix, left, range(10) if of.places + left else range(0))
            fits = is_free or (of.low <= least <= of.high and least not in of.excluded)
            if left <= 0 and fits and least % of.step == 0 and (has_fraction or not of.has_fraction):
                options.append('""')
            self._known[key] = self._add(" | ".join(options)) if options else ""
        return self._known[key]

    def _options(self, prefix: int, left: int, digits: range) -> list[str]:
        after: dict[str, str] = {}
        for digit in digits:
            if rule := self._after(prefix * 10 + digit, left - 1):
                after[rule] = after.get(rule, "") + str(digit)
        point = '"." ' if left == 0 else ""
        return [f"{point}[{same}] {rule}" for rule, same in after.items()]


def decimals_of(given: Numbers) -> Decimals | None:
    """Return some of these numbers; None: they may be any numbers, or any integers."""
    step = Fraction(1) if given.whole else Fraction(0)
    for factor, _ in given.factors:
        unit = step.denominator * factor.denominator
        step = Fraction(lcm(int(step * unit), int(factor * unit)), unit) if step else factor
    if given == Numbers(whole=given.whole or None):
        return None
    pointer = given.factors[0][1] if given.factors else given.pointer
    limits = [abs(each[0]) for each in (given.low, given.high) if each is not None]
    before = max((len(str(floor(each))) for each in limits), default=1)
    if given.whole:
        places, digits = 0, max(_INTEGER_DIGITS, before)
        if digits > _LONGEST:
            digits = _INTEGER_DIGITS
    else:
        places = max((_places(each) for each in limits), default=0)
        places = _places(step) if step else min(max(places, _PLACES), max(_SIGNIFICANT - before, 0))
        digits = max(_SIGNIFICANT - places, 1)
    unit = 10**places
    if (step * unit).denominator != 1 or digits < 1 or places > _SIGNIFICANT:
        raise SchemaError(pointer, f"multiples of {float(step):g} are not enforced")
    size = int(step * unit) or 1
    if size > 1 and (given.low is None or given.high is None):  # as many digits as their automaton has room for
        odd = size // gcd(size, 10**digits)
        digits = min(digits, max(_MOST_STATES // odd, len(str(size)) + 2))
    most = 10 ** (digits + places) - 1
    low = -most if given.low is None else _least(given.low[0] * unit, given.low[1])
    high = most if given.high is None else -_least(-given.high[0] * unit, given.high[1])
    if low > most or high < -most:
        raise SchemaError(pointer, f"numbers of more than {digits} digits are not enforced")
    excluded = (exact(each.value) * unit for each in given.excluded if is_number(each.value))
    left_out = frozenset(int(each) for each in excluded if each.denominator == 1)
    return Decimals(max(low, -most), min(high, most), places, size, given.whole is False, left_out, pointer)


def _least(bound: Fraction, opens: int) -> int:
    """Return the least integer within a lower bound."""
    return floor(bound) + 1 if opens else ceil(bound)


def _places(number: Fraction) -> int:
    """Return how many places a decimal has after its point; more than are enforced: it is none, or has more."""
    every = range(_SIGNIFICANT + 1)
    return next((places for places in every if (number * 10**places).denominator == 1), len(every))
