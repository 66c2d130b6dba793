"""The real server of tests/e2e, for clients that need one, and a table of the clients that ran.

A test of a client carries ``Package(...).mark``. It is skipped where the package is not installed, and fails there with
``--every-client``, which is what ``make clients`` passes.
"""

from typing import Any

import pytest

from tests.clients.installed import Package
from tests.e2e.conftest import gateway, triton_server

__all__ = ["gateway", "triton_server"]

EVERY_CLIENT = "--every-client"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(EVERY_CLIENT, action="store_true", help="tests of clients that are not installed fail")


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may start the client
def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("client")
    if mark is None:
        return
    package: Package = mark.args[0]
    item.user_properties.append(("client", (package.name, package.registry, package.version)))
    if package.version is None:
        missing = f"{package.name} is not installed; run: make clients"
        if item.config.getoption(EVERY_CLIENT, default=False):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a row per client: its name, registry and version, and how its tests ended."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if (
                outcome
                and isinstance(report, pytest.TestReport)
                and (client := dict(report.user_properties).get("client"))
            ):
                name, registry, version = client
                outcomes.setdefault((name, registry, version or "-"), []).append(outcome)
    if not outcomes:
        return
    terminalreporter.section("clients")
    rows = [
        (*client, ", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends))))
        for client, ends in sorted(outcomes.items())
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        terminalreporter.write_line("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)))
