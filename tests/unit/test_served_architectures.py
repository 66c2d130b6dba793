"""References of architectures in `lmdeploy list` are those of the tests' own tables."""

import json

from lmdeploy.turbomind.served_architectures import TESTED, served_architectures
from tests.support import tested_table


def test_the_table_is_that_of_the_tests() -> None:
    """Otherwise run ``python -m tests.support.tested_table``."""
    assert json.loads(TESTED.read_text(encoding="utf-8")) == tested_table.tested_lines()


def test_every_architecture_is_compared_with_something() -> None:
    assert [row.architecture for row in served_architectures() if not row.tested] == []
