"""Sends attacks to servers for as long as is asked for, and reports what came of it."""

from __future__ import annotations

import asyncio
import http.client
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx

from tests.abuse.attacks import Attack, received_by, statuses_in
from tests.abuse.bodies import BODIES, JSON, MODEL
from tests.abuse.callers import Caller, read_corpus
from tests.abuse.servers import KEY, OTHER_KEY, Servers, Target
from tests.abuse.shots import Shot
from tests.abuse.traffic import Traffic
from tests.support.http_host import Host
from tests.support.metrics import metrics_of
from tests.support.processes import children
from tools.bench.stats import percentile

SENDERS = 6  # attacks that are sent at a time
ALONE, TOGETHER = "no attack", "all attacks together"
MAX_ALIKE = 50  # attacks of one name that are sent alone
CALLERS = 4  # who use the API properly meanwhile
WARM_SECONDS = 8.0  # of ordinary use before memory is looked at
CACHED_GRAMMARS = 64  # backend_cpp/engine/grammar/process_compiler.h
KEPT_SESSIONS = 100  # webui/guard/sessions.py
WARM_REQUESTS = 200  # that may be served, on each server
UNAVAILABLE = 503
MAX_GROWTH = 64.0  # MiB
MAX_SLOWDOWN = 2.0  # times as long as alone may another caller's short text take (p99),
UNNOTICED_SECONDS = 0.25  # unless that is less than this,
MAX_SECONDS = 2.0  # and never longer than this
ALONE_SECONDS = 5.0  # of the measurement without attacks
FIRST_SECONDS = 90.0  # of a long campaign: memory that is taken when it is first used is taken then
_BETWEEN_SECONDS = 35.0  # in which freed memory goes back
_IDLE_SECONDS = 60.0  # until when memory has come back
_BETWEEN_LOOKS = 0.05
_MAX_PROMPT_TOKENS = 200  # tokens
_COMMANDS = {  # by a word of the command line
    "lmdeploy.vl.decoder_process": "image decoder",
    "lmdeploy.templates.rendering": "template renderer",
    "api_server": "launcher and gateway",
    "gradio": "chat page",
    "proxy": "proxy",
    "ray": "launcher of Ray",
}


@dataclass
class Report:
    """Result of a campaign.

    ``tried``: requests by server. ``without_right``: what was served though it must not be; what reached another
    server; what came of a file. ``errors``: responses of 5xx but 503, with the attack. ``silent``: attacks that got no
    response. ``unanswered``: proper requests without an end. ``left``: requests that the engine still runs or keeps
    waiting after all have ended. ``health``: seconds that ``/health`` took, by server. ``texts``: seconds that a short
    text of a caller with another key took, by server and attack; `ALONE` is none, and `TOGETHER` all of them in random
    order. ``rejected``: such requests without a text. ``peak``: MiB that each process had at most, by name. ``cold``:
    MiB of each process of the server with everything on, after ordinary use alone. ``before``, ``after``: the same
    after the first `FIRST_SECONDS` of a long campaign, and after all of it.
    """

    tried: Counter[str] = field(default_factory=Counter)
    without_right: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    silent: int = 0
    unanswered: int = 0
    left: int = 0
    health: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=dict)
    cold: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def growth(self) -> float:
        """MiB of all processes of the server with everything on."""
        return sum(self.after.values()) - sum(self.before.values())

    def failures(self) -> list[str]:
        """Return the findings."""
        found = [f"served without right: {finding}" for finding in self.without_right]
        found += [f"5xx: {finding}" for finding in self.errors]
        found += [f"another key's short text: {finding}" for finding in self.rejected]
        if self.unanswered:
            found.append(f"{self.unanswered} proper requests had no end")
        if self.left:
            found.append(f"{self.left} requests were left in the engine")
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth:.0f} MiB, at most {MAX_GROWTH:.0f} are allowed")
        return found

    def stalls(self) -> list[str]:
        """Return the attacks beside which a short text of another key took too long."""
        found = []
        for server, by_attack in self.texts.items():
            alone = percentile(by_attack[ALONE], 99)
            for attack, times in by_attack.items():
                slow = percentile(times, 99) > max(MAX_SLOWDOWN * alone, UNNOTICED_SECONDS)
                if attack != ALONE and (slow or max(times) > MAX_SECONDS):
                    took = f"p99 {percentile(times, 99):.2f} s, max {max(times):.2f} s, p99 alone {alone:.2f} s"
                    found.append(f"another key's short text beside {attack!r} on the {server}: {took}")
        return found

    def text(self) -> str:
        """Return it for people."""
        tried = ", ".join(f"{name} {count}" for name, count in sorted(self.tried.items()))
        health = ", ".join(
            f"{name} p50 {percentile(times, 50) * 1000:.1f} p99 {percentile(times, 99) * 1000:.1f} "
            f"max {max(times) * 1000:.0f}"
            for name, times in sorted(self.health.items())
        )
        lines = [
            f"{self.seconds:.0f} s, requests tried: {sum(self.tried.values())} ({tried}); no response: {self.silent}",
            f"served without right: {len(self.without_right)}",
            f"5xx that are not 503: {len(self.errors)}",
            f"proper requests without an end: {self.unanswered}",
            f"/health, ms: {health}",
            "peak memory, MiB: " + _listed(self.peak),
            f"memory after ordinary use, MiB: {sum(self.cold.values()):.0f}",
            f"memory, MiB: {sum(self.before.values()):.0f} before, {sum(self.after.values()):.0f} after "
            f"({self.growth:+.1f}: {_listed({n: self.after.get(n, 0) - self.before.get(n, 0) for n in self.after})})",
        ]
        for server, by_attack in sorted(self.texts.items()):
            lines.append(f"another key's short text on the {server}, ms: p50, p99, max")
            worst = sorted(by_attack.items(), key=lambda entry: (entry[0] != ALONE, -max(entry[1])))
            lines += [f"  {' '.join(f'{ms:8.1f}' for ms in _milliseconds(times))}  {attack}" for attack, times in worst]
        return "\n".join([*lines, *(f"  {finding}" for finding in dict.fromkeys(self.failures() + self.stalls()))])


def _milliseconds(times: Sequence[float]) -> tuple[float, float, float]:
    return percentile(times, 50) * 1000, percentile(times, 99) * 1000, max(times) * 1000


def run(
    servers: Servers,
    attacks: Sequence[Shot],
    trap: Host,
    seconds: float,
    seed: int = 1,
    *,
    attack_seconds: float = 0.0,
    measures: bool = True,
) -> Report:
    """Send attacks, while others use the servers properly.

    ``attacks``: sent in random order: each once, and again until the time is over. ``trap``: a server that none may
    reach. ``seconds``: at least so long; 0: each attack once. ``attack_seconds``: at least so long first comes each
    attack alone, beside short texts of another key; 0: not at all. ``measures``: whether time and memory are to be
    compared with those before: minutes, as caches are filled first.
    """
    report = Report()
    gateway = servers.gateway
    pids = sorted({gateway.pid, *(target.pid for target in servers.targets)})
    caller = Caller(gateway.url, MODEL, KEY)
    if measures:
        asyncio.run(Traffic(caller, [], seed, _MAX_PROMPT_TOKENS).run(CALLERS, WARM_SECONDS))
        _warm(attacks, servers, seed)
        for target in servers.targets:
            with _asking_texts(target, servers, report, ALONE):
                time.sleep(ALONE_SECONDS)
    _reset_peaks(pids)
    report.cold = report.before = memory_of([gateway.pid])
    if measures and seconds > 0:
        _attack(FIRST_SECONDS, attacks, servers, report, caller, seed + 1)
        time.sleep(_BETWEEN_SECONDS)
        report.before = memory_of([gateway.pid])
    begin = time.monotonic()
    if attack_seconds > 0:
        _attack_one_by_one(attack_seconds, attacks, servers, report)
    _attack(seconds, attacks, servers, report, caller, seed)
    report.seconds = time.monotonic() - begin
    report.without_right += [f"the trap was reached: {visit}" for visit in trap.visits]
    report.unanswered = sum(outcome.end == "unanswered" for outcome in caller.outcomes)
    report.errors += [
        f"proper: {outcome.name}: {outcome.detail}" for outcome in caller.outcomes if outcome.end == "failed"
    ]
    report.left = _left(gateway.url)
    if measures:
        report.after = _stable(gateway.pid, sum(report.before.values()) + MAX_GROWTH)
    return report


def _warm(attacks: Sequence[Shot], servers: Servers, seed: int) -> None:
    """Use the servers properly until all is imported and started, and bounded caches hold what they hold at most.

    These are the compiled grammars, and the sessions of browsers that may come back to the chat page.
    """
    for number in range(CACHED_GRAMMARS):
        schema = {"type": "object", "properties": {f"field_{number}": {"type": "string"}}}
        requested = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        message = {"role": "user", "content": "a"}
        body = {"model": MODEL, "messages": [message], "max_tokens": 1, "response_format": requested}
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{servers.gateway.url}/v1/chat/completions"
        httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60).raise_for_status()
    for name in ("empty messages", "lists for messages"):  # start what parses long bodies
        httpx.post(url, content=BODIES[name].make(), headers=headers | JSON, trust_env=False, timeout=60)
    for target in servers.targets:
        served = [shot for shot in attacks if shot.target == target and shot.may_be_served]
        sample = random.Random(seed).sample(served, min(WARM_REQUESTS, len(served)))
        kept = [shot for shot in served if shot.name == "a long conversation"]
        for shot in [*sample, *kept[:KEPT_SESSIONS]]:
            received_by(target.port, shot.make())


def _proper(caller: Caller, seed: int, stop: threading.Event) -> None:
    hostile = read_corpus()
    while not stop.is_set():
        seed += 1
        asyncio.run(Traffic(caller, hostile, seed, _MAX_PROMPT_TOKENS).run(CALLERS, 2.0))


def _attack(
    seconds: float, attacks: Sequence[Shot], servers: Servers, report: Report, caller: Caller, seed: int
) -> None:
    """Send each attack once, and continue until the time is over, while others use the servers properly."""
    pids = sorted({servers.gateway.pid, *(target.pid for target in servers.targets)})
    stop = threading.Event()
    with ExitStack() as open_:
        open_.enter_context(_probing(servers.targets, report))
        open_.enter_context(_watching_peaks(pids, report))
        for target in servers.targets:
            open_.enter_context(_asking_texts(target, servers, report, TOGETHER))
        alongside = open_.enter_context(ThreadPoolExecutor(1))
        proper = alongside.submit(_proper, caller, seed, stop)
        try:
            _send(attacks, seconds, servers, report, seed)
        finally:
            stop.set()
        proper.result()


def _attack_one_by_one(seconds: float, attacks: Sequence[Shot], servers: Servers, report: Report) -> None:
    """Send each attack again and again, and no other, beside short texts of another key."""
    by_name: dict[tuple[Target, str], list[Shot]] = {}
    for shot in attacks:
        by_name.setdefault((shot.target, shot.name), []).append(shot)
    for (target, name), shots in by_name.items():
        shots = [replace(shot, make=partial(_same, shot.make())) for shot in shots[:MAX_ALIKE]]  # made before
        with _asking_texts(target, servers, report, name):
            _send(shots, seconds, servers, report, senders=1 if shots[0].is_flood else SENDERS)


def _same(attack: Attack) -> Attack:
    return attack


def _send(
    attacks: Sequence[Shot], seconds: float, servers: Servers, report: Report, seed: int = 1, senders: int = SENDERS
) -> None:
    lock = threading.Lock()
    pending = _in_turn(attacks, time.monotonic() + seconds, random.Random(seed))
    with ThreadPoolExecutor(senders) as pool:
        for sent in [pool.submit(_send_all, pending, lock, servers, report) for _ in range(senders)]:
            sent.result()


def _in_turn(attacks: Sequence[Shot], end: float, generator: random.Random) -> Iterator[Shot]:
    yield from generator.sample(attacks, len(attacks))
    while time.monotonic() < end:
        yield generator.choice(attacks)


def _send_all(pending: Iterator[Shot], lock: threading.Lock, servers: Servers, report: Report) -> None:
    while True:
        with lock:
            shot = next(pending, None)
        if shot is None:
            return
        attack = shot.make()
        for received in received_by(shot.target.port, attack):
            statuses = statuses_in(received)
            where = f"{shot.target.name}: {shot.name}"
            with lock:
                report.tried[shot.target.name] += 1
                report.silent += not statuses
                if servers.canary.read_bytes() in received or b"root:x:0:0" in received:
                    report.without_right.append(f"{where}: a file")
                if not shot.may_be_served and any(200 <= status < 300 for status in statuses):
                    report.without_right.append(f"{where}: {statuses}")
                bad = [status for status in statuses if status >= 500 and status != UNAVAILABLE]
                if bad:
                    report.errors.append(f"{where}: {bad}: {received[-300:]!r}")


@contextmanager
def _probing(targets: Sequence[Target], report: Report) -> Iterator[None]:
    """Ask each server for its health again and again."""
    with _repeating(*(lambda target=target: _probe_health(target, report) for target in targets)):  # type: ignore[misc]
        yield


@contextmanager
def _asking_texts(target: Target, servers: Servers, report: Report, attack: str) -> Iterator[None]:
    """Ask a server for a short text again and again, with a key of its own; the gateway, for the chat page."""
    requested = servers.gateway if target.name == "page" else target
    times = report.texts.setdefault(target.name, {}).setdefault(attack, [])

    command = [sys.executable, "-m", "tests.abuse.probe", str(requested.port), OTHER_KEY, MODEL]
    with tempfile.TemporaryFile("w+") as printed:
        probe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=printed)
        try:
            yield
        finally:
            probe.communicate()
        printed.seek(0)
        for line in printed:
            status, seconds = line.split()
            times.append(float(seconds))
            if status != "200":
                report.rejected.append(f"beside {attack!r} on the {target.name}: {status}")


def _probe_health(target: Target, report: Report) -> None:
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=30)
    try:
        connection.request("GET", target.health)
        response = connection.getresponse()
        response.read()
        if response.status >= 500 and response.status != UNAVAILABLE:
            report.errors.append(f"{target.name}: {target.health}: {response.status}")
    except OSError as error:
        report.errors.append(f"{target.name}: {target.health}: {error!r}")
    finally:
        connection.close()
    report.health.setdefault(target.name, []).append(time.monotonic() - begin)


@contextmanager
def _watching_peaks(pids: Sequence[int], report: Report) -> Iterator[None]:
    def observe() -> None:
        peaks: Counter[str] = Counter()
        for pid in _all_below(pids):
            with suppress(OSError, ValueError):
                peaks[_name_of(pid)] += _value(Path(f"/proc/{pid}/status"), "VmHWM")
        for name, peak in peaks.items():
            report.peak[name] = max(report.peak.get(name, 0.0), peak)

    with _repeating(observe):
        yield


@contextmanager
def _repeating(*observers: Callable[[], None]) -> Iterator[None]:
    """Call functions again and again, each in its own thread."""
    stop = threading.Event()

    def repeat(observe: Callable[[], None]) -> None:
        while not stop.is_set():
            observe()
            stop.wait(_BETWEEN_LOOKS)

    threads = [threading.Thread(target=repeat, args=(observe,)) for observe in observers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def memory_of(pids: Sequence[int]) -> dict[str, float]:
    """Return the MiB of anonymous memory of processes and all below them, by name; what forks share counts once."""
    found: Counter[str] = Counter()
    for pid in _all_below(pids):
        with suppress(OSError, ValueError):
            found[_name_of(pid)] += _value(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon")
    return dict(found)


def _stable(pid: int, requested: float) -> dict[str, float]:
    """Return the memory of a server once it is back, or has had the time for it."""
    end = time.monotonic() + _IDLE_SECONDS
    while True:
        memory = memory_of([pid])
        if sum(memory.values()) <= requested or time.monotonic() > end:
            return memory
        time.sleep(1)


def _left(url: str) -> int:
    """Return how many requests the engine has once it is idle, or has had the time for it."""
    end = time.monotonic() + _IDLE_SECONDS
    while True:
        page = metrics_of(httpx.get(f"{url}/metrics", trust_env=False, timeout=60).text)
        left = int(sum(page.one(f"turbomind_requests_{state}") for state in ("running", "waiting")))
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)


def _reset_peaks(pids: Sequence[int]) -> None:
    for pid in _all_below(pids):
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _all_below(pids: Sequence[int]) -> list[int]:
    """Return processes and all below them."""
    found, waiting = [], list(pids)
    while waiting:
        found.append(waiting.pop())
        waiting += children(found[-1])
    return found


def _name_of(pid: int) -> str:
    """Return the name of a process of ours in reports."""
    process = Path(f"/proc/{pid}")
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


def _value(file: Path, name: str) -> float:
    """Return a value of a file of ``/proc`` in MiB."""
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(name)


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in sorted(values.items()))
