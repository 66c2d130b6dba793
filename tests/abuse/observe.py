"""Resources of a server's processes, sampled from `/proc`, and its measurements from `/metrics`."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

_PAGE = 4096
_METRICS = {
    "turbomind_cache_blocks_used": "blocks",
    "turbomind_requests_running": "running",
    "turbomind_requests_waiting": "waiting",
    "turbomind_sessions": "sessions",
    "lmdeploy_gateway_requests_open": "open",
}


_COMMANDS = {
    "lmdeploy.vl.decoder_process": "image decoder",
    "lmdeploy.templates.rendering": "template renderer",
    "api_server": "launcher and gateway",
    "gradio": "chat page",
    "proxy": "proxy",
    "ray": "launcher of Ray",
}


@dataclass
class Sample:
    """One look.

    Attributes
    ----------
    seconds
        Since the first one.
    memory
        MiB that are resident and no other process's, by the processes' names.
    files
        Open file descriptors, by the same.
    measurements
        Of `/metrics`; empty while nobody answers it.
    """

    seconds: float
    memory: dict[str, float] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    measurements: dict[str, float] = field(default_factory=dict)


class Observer:
    """Looks at a server.

    Parameters
    ----------
    pid
        Of the launcher, whose descendants are looked at too; None: only `/metrics` is read.
    url
        Of the gateway.
    """

    def __init__(self, pid: int | None, url: str) -> None:
        self._pid = pid
        self._url = url
        self._begin = time.monotonic()

    def sample(self) -> Sample:
        """Return a sample."""
        sample = Sample(time.monotonic() - self._begin)
        for pid in descendants(self._pid) if self._pid is not None else ():
            with contextlib.suppress(OSError, ValueError):  # it ends at this moment
                process = Path("/proc", str(pid))
                name = name_of(process)
                resident, shared = map(int, (process / "statm").read_text().split()[1:3])
                sample.memory[name] = sample.memory.get(name, 0.0) + (resident - shared) * _PAGE / 2**20
                sample.files[name] = sample.files.get(name, 0) + len(list((process / "fd").iterdir()))
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/metrics", timeout=5) as response:
            for line in response.read().decode().splitlines():
                name = line.split("{")[0].split(" ")[0]
                if name in _METRICS:
                    sample.measurements[_METRICS[name]] = float(line.rsplit(" ", 1)[1])
        return sample


def descendants(pid: int) -> list[int]:
    """Return a process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        with contextlib.suppress(OSError):
            files = Path(f"/proc/{found[-1]}/task").glob("*/children")
            waiting += [int(word) for file in files for word in file.read_text().split()]
    return found


def name_of(process: Path) -> str:
    """Return the name of a process of ours in reports."""
    words = (process / "cmdline").read_text(errors="replace").split("\0")
    line = " ".join(words)
    if "triton_python_backend_stub" in words[0]:
        return f"model {Path(words[1]).parent.parent.name}"
    if "openai_gateway.process.worker" in words:
        return "gateway worker"
    for word, name in _COMMANDS.items():
        if word in words:
            return name
    return "tritonserver" if "--model-repository" in line else Path(words[0] or "ended").name
