"""Numbers as rules of a grammar: automata over the digits of decimals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.sets import Numbers
from lmdeploy.json_schema.values import LARGEST

_INTEGER_DIGITS = 19  # 64 bits
_MAX_DIGITS = 40  # digits of a bound
_SIGNIFICANT = 15  # digits of other numbers, all of which doubles tell apart
_DECIMALS = 6  # after the point, where no bound and no factor has more
_MAX_STATES = 4096
_STATE = 1 / 4  # of a budget


@dataclass(frozen=True, slots=True)
class Decimals:
    """Decimals of some places after the point; all other numbers here count units of the last place."""

    low: int
    high: int
    decimals: int
    step: int  # whose multiples they are
    has_fraction: bool  # they are no integers
    pointer: str  # of the keyword to blame

    @property
    def are_integers_of_doubles(self) -> bool:
        """Whether they are integers that are the same with a point."""
        return self.decimals == 0 and self.low >= -LARGEST and self.high <= LARGEST

    def options(self, add: Callable[[Sequence[str]], str], budget: Budget) -> list[str]:
        """Return the options of their rule; `add` adds a rule with some and returns its name."""
        if self.low == -self.high:
            return [f'"-"? {_Digits(self, add, budget).whole()}']
        negative = replace(self, low=max(-self.high, 1), high=-self.low)
        above, below = (_Digits(bounds, add, budget).whole() for bounds in (self, negative))
        return [above, f'"-" {below}']


class _Digits:
    """Writes the numbers that are not negative."""

    def __init__(self, numbers: Decimals, add: Callable[[Sequence[str]], str], budget: Budget) -> None:
        self._numbers = numbers
        self._add = add
        self._budget = budget
        self._known: dict[tuple[int, ...], str] = {}

    def whole(self) -> str:
        """Return the name of the rule."""
        digits = len(str(max(self._numbers.high, 0) // 10**self._numbers.decimals))
        return self._add(
            [option for length in range(1, digits + 1) for option in self._options(0, length, range(length > 1, 10))]
        )

    def _after(self, prefix: int, left: int) -> str:
        """Return the name of the rule of what follows some digits; empty: nothing does.

        `left` digits are to come before the point; below 0, as many digits are already behind it.
        """
        of = self._numbers
        width = 10 ** (of.decimals + left)
        first, last = prefix * width, (prefix + 1) * width - 1
        if first > of.high or last < of.low:
            return ""
        is_free = of.low <= first and last <= of.high
        has_fraction = first % 10**of.decimals > 0
        key = (left, first % of.step, has_fraction) if is_free else (left, prefix)
        if key not in self._known:
            self._budget.spend(_STATE, of.pointer)
            options = self._options(prefix, left, range(10) if of.decimals + left else range(0))
            fits = of.low <= first <= of.high and first % of.step == 0
            if left <= 0 and fits and (has_fraction or not of.has_fraction):
                options.append('""')
            self._known[key] = self._add(options) if options else ""
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
    limits = [abs(bound[0]) for bound in (given.low, given.high) if bound is not None]
    before = max((len(str(floor(limit))) for limit in limits), default=1)
    if given.whole:
        decimals, digits = 0, max(_INTEGER_DIGITS, before)
        if digits > _MAX_DIGITS:
            digits = _INTEGER_DIGITS
    else:
        decimals = max((_decimals(limit) for limit in limits), default=0)
        decimals = _decimals(step) if step else min(max(decimals, _DECIMALS), max(_SIGNIFICANT - before, 0))
        digits = max(_SIGNIFICANT - decimals, min(before, _MAX_DIGITS))
    unit = 10**decimals
    if (step * unit).denominator != 1 or digits < 1 or decimals > _SIGNIFICANT:
        raise SchemaError(pointer, f"multiples of {float(step):g} are not enforced")
    size = int(step * unit) or 1
    if size > 1 and (given.low is None or given.high is None):  # as many digits as their automaton has room for
        odd = size // gcd(size, 10**digits)
        digits = min(digits, max(_MAX_STATES // odd, len(str(size)) + 2))
    largest = 10 ** (digits + decimals) - 1
    low = -largest if given.low is None else _min_integer(given.low[0] * unit, given.low[1])
    high = largest if given.high is None else -_min_integer(-given.high[0] * unit, given.high[1])
    if low > largest or high < -largest:
        raise SchemaError(pointer, f"numbers of more than {digits} digits are not enforced")
    return Decimals(max(low, -largest), min(high, largest), decimals, size, given.whole is False, pointer)


def _min_integer(bound: Fraction, opens: int) -> int:
    """Return the least integer within a lower bound."""
    return floor(bound) + 1 if opens else ceil(bound)


def _decimals(number: Fraction) -> int:
    """Return how many places a decimal has after its point; more than are enforced: it is none, or has more."""
    every = range(_SIGNIFICANT + 1)
    return next((decimals for decimals in every if (number * 10**decimals).denominator == 1), len(every))
