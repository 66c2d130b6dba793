"""References of architectures in `lmdeploy list` are those of the tests' own tables."""

from lmdeploy.turbomind.served_architectures import served_architectures, tested_architectures
from tests.support import tested_table


def test_the_table_is_that_of_the_tests() -> None:
    assert tested_architectures() == tested_table.tested_lines()


def test_every_architecture_is_compared_with_something() -> None:
    assert [row.architecture for row in served_architectures() if not row.tested] == []
