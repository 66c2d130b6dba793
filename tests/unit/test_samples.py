"""Samples of cases that are much alike."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples import covering, one_in


def test_one_in_some_cases_has_each_kind_and_begins_each_elsewhere() -> None:
    cases = list(product("abc", range(6)))
    assert list(one_in(3, cases, lambda case: case[0])) == [
        *(("a", 0), ("a", 3)), *(("b", 0), ("b", 2), ("b", 5)), *(("c", 0), ("c", 1), ("c", 4))
    ]  # fmt: skip


@given(st.lists(st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.integers(0, 3), "c": st.booleans()})))
def test_every_value_of_every_parameter_occurs_in_the_sample(cases: list[dict[str, int]]) -> None:
    chosen = covering(cases)
    assert chosen == sorted(set(chosen))
    assert {pair for number in chosen for pair in cases[number].items()} == {p for case in cases for p in case.items()}
