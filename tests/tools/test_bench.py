"""The numbers that the profile tools report."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.report import table, write_json
from tools.bench.stats import Record, percentile, summarize
from tools.bench.workload import Lengths, dataset_requests, random_requests

times = st.floats(min_value=0, max_value=1e6)


@given(st.lists(times, min_size=2))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 75, 95, 99):
        assert percentile(values, percent) == pytest.approx(expected[percent - 1])


def test_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 50))


def test_latencies_count_every_token_of_a_response() -> None:
    record = Record(started=1.0, arrivals=[(1.5, 1), (1.7, 2), (1.8, 1)])
    assert record.output_len == 4
    assert record.first_token_latency == pytest.approx(0.5)
    assert record.token_latencies() == pytest.approx([0.1, 0.1, 0.1])


def test_summary_divides_by_total_time() -> None:
    records = [Record(0.0, [(1.0, 1), (2.0, 1)], input_len=5), Record(0.0, [(3.0, 1), (4.0, 1)], input_len=7)]
    summary = summarize(records, seconds=4.0)
    assert (summary.input_tokens, summary.output_tokens) == (12, 4)
    assert summary.token_throughput == 1.0
    assert summary.requests_per_minute == 30.0
    assert summary.first_token_latency["mean"] == 2.0
    assert summary.token_latency["p99"] == 1.0


def test_same_seed_gives_the_same_requests() -> None:
    bounds = Lengths(2, 9), Lengths(1, 4)
    requests = random_requests(50, *bounds, seed=3)
    assert requests == random_requests(50, *bounds, seed=3)
    assert requests != random_requests(50, *bounds, seed=4)
    assert {len(request.prompt.split()) for request in requests} == set(range(2, 10))
    assert {request.output_len for request in requests} == set(range(1, 5))


@pytest.mark.parametrize("text", ["0", "5:4", "x", ":3", "-1:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Lengths.parse(text)


def test_dataset_gives_first_questions(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[1:]}]), encoding="utf-8")
    assert [request.prompt for request in dataset_requests(path, 1, Lengths(1, 1), seed=0)] == ["Why?"]
    with pytest.raises(ValueError, match="1 usable conversations, expected at least 2"):
        dataset_requests(path, 2, Lengths(1, 1), seed=0)


def test_table_aligns_numbers_to_the_right() -> None:
    assert table(("run", "tokens/s"), [["a", "1.0"], ["longer", "100.0"]]).splitlines() == [
        "run     tokens/s",
        "------  --------",
        "a            1.0",
        "longer     100.0",
    ]


def test_report_is_json_a_program_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    path = tmp_path / "new" / "report.json"
    summary = summarize([Record(0.0, [(1.0, 1), (2.0, 1)])], seconds=2.0)
    write_json(path, "a tool", {"run": summary}, dtype="float32")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["runs"]["run"]["token_throughput"] == 1.0
    assert report["dtype"] == "float32"
    assert report["machine"]["cpus"] >= 1
    assert report["machine"]["openmp"]["OMP_WAIT_POLICY"] == "passive"
