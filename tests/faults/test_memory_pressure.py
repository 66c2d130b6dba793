"""A tritonserver that gets no more memory, by RLIMIT_AS: what the kernel kills is in test_killed_processes.py."""

import contextlib
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.faults.callers import complete, expect_no_leaks, is_answered
from tests.support.commands import ApiServer, api_server
from tests.support.servers import START
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.e2e


def address_space(pid: int) -> int:
    """Return the bytes of a process's address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def is_served(server: ApiServer) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return complete(server).status_code == 200
    return False


def test_requests_without_memory_end_with_an_error_and_later_ones_are_served(model: Path) -> None:
    with api_server(str(model), "--cache-max-entry-count", "2048") as server:
        server.wait_ready()
        assert is_answered(server)
        pid = server.triton_pid()
        limits = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (address_space(pid), limits[1]))
        long = [{"role": "user", "content": "word " * 600}]
        with ThreadPoolExecutor(8) as callers:
            statuses = set(callers.map(lambda _: complete(server, messages=long).status_code, range(8)))
        assert statuses <= {200, 500, 503}
        assert statuses != {200}
        with contextlib.suppress(ProcessLookupError):  # it may have ended, and another one have begun
            resource.prlimit(pid, resource.RLIMIT_AS, limits)
        # A request that meets a server which ends, or ended calls, fails as those without memory do.
        eventually_sync(lambda: is_served(server), timeout=START)
        expect_no_leaks(server)
        assert server.end(signal.SIGTERM) == 143, server.output
