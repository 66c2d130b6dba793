"""When a server is started again, and after what wait; the server is a script."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from lmdeploy.serve.supervisor import RestartPolicy, Supervisor
from tests.support.waiting import eventually_sync


class Scripted:
    """Stands in for a tritonserver; `starts` counts."""

    def __init__(self, *, runs: bool, loses_a_model: bool = False, prepares: bool = True) -> None:
        self.starts = 0
        self.stops: list[float] = []
        self.is_running = runs
        self._loses = loses_a_model
        self._prepares = prepares
        self.probes = 0

    def is_ready(self) -> bool:
        return self.is_running

    def has_lost_a_model(self) -> bool:
        return self._loses

    def prepares_prompts(self, timeout: float) -> bool:
        self.probes += 1
        return self._prepares

    def failure(self, what: str) -> str:
        return f"{what}: as scripted"

    def start(self) -> None:
        self.starts += 1

    def stop(self, grace: float = 15) -> None:
        self.stops.append(grace)


class Waits(threading.Event):
    """Notes for how long somebody wanted to wait, and does not."""

    def __init__(self, max_waits: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._max_waits = max_waits

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) >= self._max_waits:
            self.set()
        return self.is_set()


def supervise(server: Any, policy: RestartPolicy, monkeypatch: pytest.MonkeyPatch, waits: int) -> list[float]:
    waited = Waits(waits)
    supervisor = Supervisor(server, policy)
    monkeypatch.setattr(supervisor, "_stopping", waited)
    supervisor.start()
    eventually_sync(waited.is_set)
    supervisor.stop()
    return waited.seconds


def test_the_first_failure_is_mended_at_once_and_later_ones_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(runs=False)
    waits = supervise(server, RestartPolicy(first_delay=1.0, longest_delay=5.0), monkeypatch, 6)
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert server.starts == 5


def test_a_server_that_ran_for_long_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = supervise(Scripted(runs=False), RestartPolicy(stable_after=-1.0), monkeypatch, 4)
    assert waits == [0.0] * 4


def test_a_server_that_lost_a_model_is_killed_although_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Scripted(runs=True, loses_a_model=True)
    supervise(server, RestartPolicy(poll_interval=0.0, look_interval=0.0), monkeypatch, 3)
    assert server.starts >= 1
    assert server.stops[0] == 0
    assert "a Python model of tritonserver has ended" in caplog.text


def test_a_server_that_is_well_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(runs=True)
    supervise(server, RestartPolicy(poll_interval=0.0, look_interval=0.0), monkeypatch, 50)
    assert server.starts == 0
    assert server.stops == [15]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_ready_server_that_tokenizes_nothing_is_started_again(
    prepares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = Scripted(runs=True, prepares=prepares)
    supervisor = Supervisor(cast("Any", server), RestartPolicy(poll_interval=0, look_interval=0.001, probe_interval=0))
    supervisor.start()
    eventually_sync(lambda: server.starts > 0 if not prepares else server.probes > 100)
    supervisor.stop()
    assert ("has not tokenized a short text" in caplog.text) != prepares
    assert (server.starts > 0) != prepares
