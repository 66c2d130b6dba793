"""Measure what the gateway costs for each streamed token, in front of an engine that is never the limit.

The cost is the processor time of the gateway's processes, so it does not depend on what else shares the machine with
them; tokens/s a core is its inverse.
"""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.ports import free_ports
from tools.bench import arguments as flags
from tools.bench import fake_engine
from tools.bench.progress import progress_bar
from tools.bench.report import table, write_report

_START = 30.0  # seconds
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
)
_BODY = b'{"model":"fake","stream":true,"messages":[{"role":"user","content":"x"}]}'


@dataclass(frozen=True)
class Cost:
    """One measurement."""

    workers: int
    streams: int
    tokens: int
    events: int
    seconds: float
    cpu_seconds: float

    @property
    def microseconds(self) -> float:
        """Processor time a token."""
        return self.cpu_seconds / self.tokens * 1e6


def measure(workers: int, streams: int, tokens: int, rounds: int) -> Cost:
    """Return the cost of `rounds` times `streams` answers of `tokens` tokens each."""
    engine_port, port = free_ports(2)
    root = str(Path(__file__).resolve().parent.parent)
    env = {**os.environ, "PYTHONPATH": root}
    engine_flags = ["--port", str(engine_port), "--tokens", str(tokens)]
    gateway_flags = ["--triton-address", f"127.0.0.1:{engine_port}", "--server-name", "127.0.0.1"]
    gateway_flags += ["--server-port", str(port), "--workers", str(workers)]
    python = sys.executable
    engine = ChildProcess([python, "-m", "tools.bench.fake_engine", *engine_flags], env=env, log=lambda line: None)
    gateway = ChildProcess(
        [python, "-m", "lmdeploy", "serve", "gateway", *gateway_flags], env=env, log=lambda line: None
    )
    try:
        _wait_for(engine, fake_engine.READY)
        _wait_for(gateway, "/v1")
        asyncio.run(_streams(port, streams, 1))  # warm up
        pids = [gateway.pid, *_children(gateway.pid)]
        before, begin = sum(map(_cpu_seconds, pids)), time.perf_counter()
        events = asyncio.run(_streams(port, streams, rounds))
        seconds = time.perf_counter() - begin
        cpu = sum(map(_cpu_seconds, pids)) - before
    finally:
        gateway.stop(grace=5)
        engine.kill()
    return Cost(workers, streams, rounds * streams * tokens, events, seconds, cpu)


async def _streams(port: int, streams: int, rounds: int) -> int:
    """Return the events of `rounds` answers on each of `streams` connections."""

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        events = 0
        for _ in range(rounds):
            writer.write(_REQUEST % (len(_BODY), _BODY))
            response = b""
            while not response.endswith(b"\r\n0\r\n\r\n"):
                piece = await reader.read(1 << 18)
                if not piece:
                    raise RuntimeError(f"the gateway hung up: {response[-200:]!r}")
                events += piece.count(b"data: ")
                response = (response + piece)[-200:]
            if b"[DONE]" not in response:
                raise RuntimeError(f"a response is not whole: {response!r}")
        writer.close()
        return events

    return sum(await asyncio.gather(*(one() for _ in range(streams))))


def _wait_for(child: ChildProcess, text: str) -> None:
    deadline = time.monotonic() + _START
    while not any(text in line for line in child.tail()):
        if child.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError("a process did not start:\n" + "\n".join(child.tail()))
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in lists for word in file.read_text(encoding="utf-8").split()]


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, user and system, all threads (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=flags.positive, nargs="+", default=[1], help="numbers of gateway processes")
    parser.add_argument("--streams", type=flags.positive, nargs="+", default=[1, 16], help="responses at a time")
    parser.add_argument("--tokens", type=flags.positive, default=512, help="a response")
    parser.add_argument("--rounds", type=flags.positive, default=8, help="answers a stream")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file too")
    flags.add_progress(parser)
    arguments = parser.parse_args()
    cases = list(product(arguments.workers, arguments.streams))
    costs = []
    with progress_bar(len(cases), "case", is_shown=not arguments.disable_tqdm) as advance:
        for workers, streams in cases:
            costs.append(measure(workers, streams, arguments.tokens, max(1, arguments.rounds * 16 // streams)))
            advance()
    rows = [
        [
            f"{cost.workers} x {cost.streams}",
            str(cost.tokens),
            f"{cost.tokens / cost.events:.2f}",
            f"{cost.microseconds:.1f}",
            f"{1e6 / cost.microseconds:.0f}",
            f"{cost.tokens / cost.seconds:.0f}",
        ]
        for cost in costs
    ]
    header = ["workers x streams", "tokens", "tokens/event", "us/token", "tokens/s a core", "tokens/s seen"]
    print(table(header, rows))
    write_report(
        arguments.json, "profile_gateway", costs=[asdict(cost) | {"microseconds": cost.microseconds} for cost in costs]
    )


if __name__ == "__main__":
    flags.run(main)
