"""Numbers as the grammar engine is given them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from lmdeploy.json_schema.errors import SchemaError
from lmdeploy.json_schema.sets import Numbers
from lmdeploy.json_schema.values import LARGEST, exact, is_number

MAX_MULTIPLES = 1000  # that are written as a list
_MAX_FACTOR = 1024  # that xgrammar finds multiples of
_GRID = 10**6  # xgrammar writes six decimals of a number that has bounds
_MAX_FINE = 10**9  # up to where a double distinguishes that grid
_MAX_BOUND = 10**15


def schemas_of(given: Numbers) -> Iterator[dict[str, Any]]:
    """Yield schemas of these numbers: of the integers up to 2^53, or of decimals as the engine writes them."""
    for part in _apart(given):
        if part.whole is False:
            raise SchemaError(part.pointer, "numbers that are no integers are not enforced")
        yield from _multiples(part) if part.whole or part.factors else _decimals(part)


def _apart(given: Numbers) -> Iterator[Numbers]:
    """Yield what is between the numbers that are excluded."""
    rest: Numbers | None = given
    for cut in sorted({exact(each.value) for each in given.excluded if is_number(each.value)}):
        if rest is None or not rest.holds(cut):
            continue
        if (below := rest.with_(Numbers(high=cut, opens_high=True))) is not None:
            yield below
        rest = rest.with_(Numbers(low=cut, opens_low=True))
    if rest is not None:
        yield rest


def _multiples(given: Numbers) -> Iterator[dict[str, Any]]:
    step = Fraction(1) if given.whole else given.factors[0][0]
    for factor, pointer in given.factors:
        if factor.denominator & (factor.denominator - 1):  # whoever divides doubles would find remainders
            raise SchemaError(
                pointer, f"multiples of {float(factor):g} are not enforced, of integers and halves they are"
            )
        step = Fraction(lcm(step.numerator * factor.denominator, factor.numerator * step.denominator)) / (
            step.denominator * factor.denominator
        )
    low, high = given.low, given.high
    if step == 1:
        schema = {"type": "integer"}
        first = None if low is None else _within(floor(low) + 1 if given.opens_low else ceil(low), given)
        last = None if high is None else _within(ceil(high) - 1 if given.opens_high else floor(high), given)
        if first is None or last is None or first <= last:
            bounds = {"minimum": first, "maximum": last}
            yield schema | {name: bound for name, bound in bounds.items() if bound is not None}
        return
    pointer = given.factors[0][1]
    if low is None and high is None and step.denominator == 1 and step <= _MAX_FACTOR:
        yield {"type": "integer", "multipleOf": int(step)}
        return
    if low is None or high is None:
        raise SchemaError(pointer, f"is enforced with both bounds, or with none for integers up to {_MAX_FACTOR}")
    begin, end = ceil(low / step), floor(high / step)
    if end - begin >= MAX_MULTIPLES:
        raise SchemaError(pointer, f"is not enforced where there are more than {MAX_MULTIPLES} multiples")
    multiples = [step * number for number in range(begin, end + 1)]
    if values := [_plain(each) for each in multiples if given.holds(each)]:
        yield {"enum": values}


def _within(bound: int, given: Numbers) -> int:
    """Return a bound of integers, within 2^53 either way."""
    if (given.low is not None and given.low > LARGEST) or (given.high is not None and given.high < -LARGEST):
        raise SchemaError(given.pointer, "integers beyond 2^53 are not enforced")
    return max(-LARGEST, min(bound, LARGEST))


def _decimals(given: Numbers) -> Iterator[dict[str, Any]]:
    """Yield numbers by bounds on the engine's grid, within the ones that are given."""
    low = None if given.low is None else _on_grid(given.low, given.opens_low, given)
    high = None if given.high is None else -_on_grid(-given.high, given.opens_high, given)
    if low is None or high is None or low <= high:
        limits = {"minimum": low, "maximum": high}
        yield {"type": "number"} | {name: _plain(limit) for name, limit in limits.items() if limit is not None}
        return
    bounds = ((given.low, given.opens_low), (given.high, given.opens_high))
    if not (closed := [bound for bound, opens in bounds if bound is not None and not opens]):
        raise SchemaError(given.pointer, "bounds with no number of six decimals in between are not enforced")
    yield {"enum": [_plain(closed[0])]}


def _on_grid(low: Fraction, opens: bool, given: Numbers) -> Fraction:
    """Return the least number of the grid that is within a lower bound."""
    grid = _GRID if abs(low) < _MAX_FINE else 1
    found = Fraction(floor(low * grid) + 1 if opens else ceil(low * grid), grid)
    if found > _MAX_BOUND:
        raise SchemaError(given.pointer, "numbers beyond 10^15 alone are not enforced")
    return max(found, Fraction(-_MAX_BOUND))


def _plain(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)
