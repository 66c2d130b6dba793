"""Each text that `make mutations` replaces is in its file once, so that a mutation is what its name says."""

from collections import Counter

import pytest

from tools.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_the_text_of_a_mutation_is_in_its_file_once(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1, f"update tools/mutations.py: {mutation.file} changed"
    assert mutation.new != mutation.old


def test_every_mutation_has_its_own_name() -> None:
    assert [name for name, count in Counter(each.breaks for each in MUTATIONS).items() if count > 1] == []
