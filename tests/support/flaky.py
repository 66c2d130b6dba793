"""Second runs: of tests that need a whole server, and in `.ci/run` of every test. Whoever needs one is reported."""

from collections.abc import Iterable
from pathlib import Path

import pytest

MARK = "e2e"
RERUNS = 1
_FOLDER = Path(__file__).parents[1] / "e2e"
_SERVER = "triton_server"  # a fixture


def allow_reruns(items: Iterable[pytest.Item]) -> None:
    """Let a test that needs a whole server run again when it fails; another one may with ``--reruns`` alone.

    Those are the tests that are marked so, that use the session's tritonserver, or that are in ``tests/e2e``.
    """
    for item in items:
        needs_server = item.path.is_relative_to(_FOLDER) or _SERVER in getattr(item, "fixturenames", ())
        if needs_server or item.get_closest_marker(MARK):
            item.add_marker(MARK)
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


def begin_afresh(item: pytest.Item) -> None:
    """Tear down all fixtures of a test that failed and runs again: it may have left a server dead."""
    failed = any(getattr(item, "_test_failed_statuses", {}).values())  # of pytest-rerunfailures
    if failed and (item.get_closest_marker(MARK) or item.config.getoption("reruns")):
        item.session._setupstate.teardown_exact(None)


def report_flaky(reporter: pytest.TerminalReporter) -> None:
    """Name the tests that passed on a second run only, with the end of what the first said."""
    again = {report.nodeid: report.longreprtext for report in reporter.getreports("rerun")}
    passed = {report.nodeid for report in reporter.getreports("passed") if report.when == "call"}
    if flaky := sorted(again.keys() & passed):
        reporter.section("flaky tests, which passed on their second run", yellow=True)
        for name in flaky:
            reporter.line(f"FLAKY {name}\n{again[name][-2000:]}")
