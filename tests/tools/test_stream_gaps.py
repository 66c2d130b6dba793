"""What `tools/profile_streams.py` makes of the times at which chunks came."""

import pytest

from tools.bench.over_http import _note
from tools.bench.stats import Record
from tools.profile_streams import Gaps


def test_gaps_count_from_when_every_stream_has_begun() -> None:
    early = Record(0.0, [(1.0, 1), (2.0, 1), (2.5, 3), (3.0, 1)])
    late = Record(0.0, [(2.0, 1), (2.1, 1)])
    gaps = Gaps.of(2, "in process", [early, late])
    assert gaps.median == pytest.approx(0.5)  # of 0.5, 0.5 and 0.1
    assert gaps.p99 == pytest.approx(0.5)
    assert gaps.tokens_per_chunk == pytest.approx(7 / 5)


def test_the_tokens_of_each_event_are_counted() -> None:
    record = Record(0.0)
    for now, text, count in ((1.0, "a", 1), (2.0, "bcd", 4), (3.0, "", 5), (4.0, "e", 6)):
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        _note(record, {"choices": [{"text": text}], "usage": usage}, now)
    assert record.arrivals == [(1.0, 1), (2.0, 4), (4.0, 1)]
