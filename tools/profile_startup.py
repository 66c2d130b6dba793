"""Measure how long ``lmdeploy serve api_server`` takes from its process's start to ``GET /health`` 200.

Each start gets free ports. The first one of a model may convert it and warms the page cache: it is not counted. With
the time is what each process had spent on processors by then.
"""

import argparse
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.serve.ports import free_ports
from tools.bench import arguments as flags

_POLL = 0.01  # seconds
_LIMIT = 120.0


def started(model: str, options: list[str]) -> tuple[float, dict[str, float]]:
    """Start a server and stop it; return the seconds until it was healthy, and each process's processor seconds."""
    api, http, grpc, metrics, page = map(str, free_ports(5))
    command = [sys.executable, "-m", "lmdeploy", "serve", "api_server", *filter(None, [model]), "--server-port", api]
    command += ["--triton-http-port", http, "--triton-grpc-port", grpc, "--triton-metrics-port", metrics]
    command += ["--webui-port", page, *options]
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while not _is_healthy(api):
                if server.poll() is not None or time.monotonic() - begin > _LIMIT:
                    raise SystemExit(f"the server did not start: {' '.join(command)}")
                time.sleep(_POLL)
            return time.monotonic() - begin, _processor_seconds(server.pid)
        finally:
            server.terminate()


def _is_healthy(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _processor_seconds(root: int) -> dict[str, float]:
    """Return user and system time of a process and all below it, by name."""
    spent: dict[str, float] = {}
    waiting = [root]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            waiting += [int(child) for task in process.glob("task/*/children") for child in task.read_text().split()]
        except OSError:  # it has ended
            continue
        name = Path(arguments[0].decode()).name
        spent[f"{name} {process.name}"] = (int(fields[11]) + int(fields[12])) / 100
    return spent


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="", help="default: the default model")
    parser.add_argument("--repeat", type=flags.positive, default=5, help="starts that count (default: %(default)s)")
    parser.add_argument("--webui", action="store_true", help="with the chat page, as make serve does")
    given = parser.parse_args()
    options = ["--webui"] if given.webui else []
    started(given.model, options)
    times = []
    for _ in range(given.repeat):
        seconds, spent = started(given.model, options)
        times.append(seconds)
        shares = ", ".join(f"{name} {share:.2f}" for name, share in spent.items())
        print(f"{seconds:6.2f} s  (processors: {sum(spent.values()):.2f} s; {shares})", flush=True)
    print(f"median {statistics.median(times):.2f} s of {given.repeat}")


if __name__ == "__main__":
    flags.run(main)
