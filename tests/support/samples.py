"""Samples of cases that are much alike.

`make test` runs a sample of the cases of a test that is marked ``alike``, such that each value of each parameter
occurs, on each device, or, marked ``alike(max_cases=n)``, at most n of such a sample, and nothing that is marked
``thorough``; `make test-all` (``--all-cases``) runs all of them. A test that goes through its cases itself takes the
fixture ``all_cases``, and a part of them (`one_in`) where that is false.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

OPTION = "--all-cases"
# Parameters with a sample for each value.
SETTINGS = ("device", "cuda")


def covering(cases: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Return numbers of cases in which every value of every parameter occurs; few, and always the same ones.

    Each next case is the one that brings the most values that did not occur yet, of equal ones the first.
    """
    missing = {pair for case in cases for pair in case.items()}
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(missing & set(cases[number].items())), -number))
        chosen.append(best)
        missing -= set(cases[best].items())
    return sorted(chosen)


def spread(sample: Sequence[int], max_cases: int) -> list[int]:
    """Return at most this many of a sample, from all over it."""
    count = min(max_cases, len(sample))
    return [sample[number * len(sample) // count] for number in range(count)]


def one_in(every: int, cases: Iterable[T], kind_of: Callable[[T], Hashable]) -> Iterator[T]:
    """Yield of each kind of cases the first and then every ``every``-th; each kind begins its count one later."""
    seen: Counter[Hashable] = Counter()
    for case in cases:
        kind = kind_of(case)
        number = seen[kind]
        seen[kind] += 1
        if number == 0 or (number + list(seen).index(kind)) % every == 0:
            yield case


def values_of(item: pytest.Item) -> dict[str, Hashable]:
    """Return the value of each parameter of a test, as text."""
    callspec = getattr(item, "callspec", None)
    return {name: repr(value) for name, value in callspec.params.items()} if callspec else {}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out of ``items`` what is not for `make test`, and have it counted as deselected."""
    if config.getoption(OPTION):
        return
    left_out = left_out_alike([item for item in items if item.get_closest_marker("alike")])
    left_out.update(item for item in items if item.get_closest_marker("thorough"))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def left_out_alike(alike: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the items that samples of similar tests leave out."""
    groups: dict[tuple[Hashable, ...], list[pytest.Item]] = {}
    for item in alike:
        values = values_of(item)
        key = (item.nodeid.partition("[")[0], *(values.get(name) for name in SETTINGS))
        groups.setdefault(key, []).append(item)
    left_out: set[pytest.Item] = set()
    for group in groups.values():
        sample = covering([values_of(item) for item in group])
        mark = group[0].get_closest_marker("alike")
        max_cases = len(sample) if mark is None else mark.kwargs.get("max_cases", len(sample))
        kept = set(spread(sample, max_cases))
        left_out.update(item for number, item in enumerate(group) if number not in kept)
    return left_out
