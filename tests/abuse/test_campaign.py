"""The servers, as users start them and with everything on, under a sample of all attacks: what `make abuse` runs."""

from __future__ import annotations

from pathlib import Path

from tests.abuse.attacks import trap
from tests.abuse.campaign import ALONE, Report, run
from tests.abuse.servers import everything
from tests.abuse.shots import drawn, shots

MAX_ATTACKS = 8  # attacks on each server


def test_nothing_is_served_without_right_nothing_fails(tmp_path: Path) -> None:
    with trap() as other, everything(tmp_path, ("gateway", "page", "proxy")) as servers:
        attacks = drawn(list(shots(servers, other.address)), MAX_ATTACKS, seed=1)
        report = run(servers, attacks, other, 0, measures=False)  # of time and memory `make abuse` decides
    assert report.failures() == [], report.text()
    assert set(report.tried) == {"gateway", "page", "proxy"}
    assert min(report.tried.values()) >= MAX_ATTACKS
    assert set(report.health) == set(report.tried)
    assert {"tritonserver", "launcher and gateway", "chat page", "proxy"} <= set(report.peak)


def test_a_report_names_what_must_not_be() -> None:
    assert Report().failures() == []
    bad = Report(without_right=["x"], errors=["y"], unanswered=2, left=1, before={"a": 1.0}, after={"a": 100.0})
    assert len(bad.failures()) == 5
    bad.health = {"gateway": [0.001, 0.002]}
    bad.texts = {
        "gateway": {ALONE: [0.01] * 99, "quick": [0.2] * 99, "slow": [0.3] * 99, "a stall": [0.01] * 999 + [3]}
    }
    assert [stall.partition(" on the")[0].rpartition(" beside ")[2] for stall in bad.stalls()] == [
        "'slow'",
        "'a stall'",
    ]
    assert "served without right: 1" in bad.text()
    assert "memory grew by 99 MiB" in bad.text()
