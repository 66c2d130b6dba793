"""Runs a page as its reader does: all commands in one shell, all Python in one interpreter, in their order.

``python -m tests.docs.page docs/guides/proxy.md`` does so in a new folder, from which the checkout's files can be named
as in the checkout. A command that serves stays in the background, from when it is ready until the next block that
serves, or the end of the page; then it is interrupted as Ctrl-C does. Ports are those written: a network of its own,
where the kernel gives one, keeps them apart from other programs'.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from tests.docs.blocks import ROOT, Step, steps
from tests.support.processes import session_members

_SERVES = re.compile(r"^(?:\S*/)?(?:lmdeploy serve (?:api_server|gateway|gradio|proxy|ray)|make serve)\b")
_PORTS = {"proxy": 8000, "gradio": 6006}
_START = 180  # seconds a server has on a busy machine
_END = 30  # seconds that are waited for what make has left: where nobody reaps orphans, a group never ends
_TYPED = "Hello\n\nexit\n\n"  # a message, and that it is over
_INTERRUPTED = (0, 2, 130)  # 2: make


def isolation() -> list[str]:
    """Return the words before a command that give it a network and processes of its own, where the kernel does.

    All of its processes end with it.
    """
    words = ["unshare", "--map-root-user", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    try:
        allowed = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return [*words, "bash", "-c", 'ip link set lo up; exec "$0" "$@"'] if allowed else []


def environment() -> dict[str, str]:
    """Return the environment of a reader's shell: our programs first, and nothing of pytest or make."""
    left_out = ("PYTEST", "MAKE", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}


class Shell:
    """A bash, what it serves in the background, and the interpreter: this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        status, its_end = os.pipe()
        self._status, self._end = os.fdopen(status), its_end
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, stdin=subprocess.PIPE, pass_fds=[its_end], text=True
        )
        self._say("set -m")  # background commands take Ctrl-C
        self._say(f'make() {{ command make -C {ROOT} "$@"; }}')  # whose build names its own folder
        self._served: dict[int, Step] = {}  # by process group
        self._space: dict[str, object] = {"__name__": "__main__"}
        self._number = 0

    def run(self, step: Step) -> None:
        """Run a step to its end, or until it is ready to serve."""
        if step.language.startswith("file "):
            (self.folder / step.language.removeprefix("file ")).write_text(step.text, encoding="utf-8")
            return
        if step.language == "python":
            exec(compile(step.text, f"{step.document}, block {step.block}", "exec"), self._space)
            return
        self._number += 1
        script = self.folder / f".step-{self._number}"
        script.write_text(f"{step.text}\n", encoding="utf-8")
        if not _SERVES.search(step.text):
            assert (status := self._run_line(f'. {script} < .typed; echo "$?"')) == 0, f"it ends with {status}"
            return
        if any(served.block != step.block for served in self._served.values()):
            self.interrupt()
        group = self._run_line(f'(. {script}) < /dev/null & echo "$!"')
        port = re.search(r"(?:--server-port|\bPORT)[= ](\d+)", step.text)
        kind = step.words[2] if "lmdeploy serve" in step.text else ""
        url = (
            f"{'https' if '--ssl' in step.text else 'http'}://localhost:{port[1] if port else _PORTS.get(kind, 23333)}"
        )
        path = "/" if kind == "gradio" else "/health"
        answered = f"until curl -ko /dev/null {url}{path}; do kill -0 {group} && sleep 0.1 || break; done"
        self._run_line(f'timeout {_START} bash -c "{answered}" 2> /dev/null; echo "$?"')
        assert self._run_line(f'kill -0 {group} 2> /dev/null; echo "$?"') == 0, "it ended"
        self._served[group] = step

    def interrupt(self) -> None:
        """Press Ctrl-C where something serves, the last one first."""
        while self._served:
            group, step = self._served.popitem()
            began = time.monotonic()
            status = self._run_line(f'kill -INT -- -{group}; wait {group}; echo "$?"')
            # make 4.3 may end before what it has started: "wait: No child processes".
            ended = f"while kill -0 -- -{group}; do sleep 0.1; done"
            self._run_line(f'timeout {_END} bash -c "{ended}" 2> /dev/null; echo "$?"')
            print(f"\n=== {time.monotonic() - began:.1f} s to stop: {step.text}", flush=True)
            assert status in _INTERRUPTED, f"interrupted, this ended with {status}: {step.text}"

    def close(self) -> None:
        """End everything that is left."""
        for group in self._served:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._bash.kill()
        self._bash.wait()

    def _say(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()

    def _run_line(self, line: str) -> int:
        """Run a line that ends with a number."""
        assert line.count('echo "$') == 1
        self._say(re.sub(r'(echo "\$[?!]")$', rf"\1 >&{self._end}", line))
        return int(self._status.readline())


def run(document: Path, folder: Path) -> int:
    """Run a page in a folder, print how long each step took or why it was left out, and return how many failed."""
    failed = 0
    for entry in ROOT.iterdir():
        if not (folder / entry.name).exists():
            (folder / entry.name).symlink_to(entry)
    (folder / ".typed").write_text(_TYPED, encoding="utf-8")
    (folder / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nnoproxy = "*"\n', encoding="utf-8")
    os.environ["CURL_HOME"] = str(folder)
    os.chdir(folder)
    sys.path.insert(0, "")
    shell = Shell(folder)
    try:
        for step in steps(document):
            print(f"\n>>> {step.text}", flush=True)
            if step.not_run:
                print(f"=== not run: {step.not_run}", flush=True)
                continue
            began, outcome = time.monotonic(), ""
            try:
                shell.run(step)
            except Exception as error:
                failed += 1
                outcome = f" FAILED: {type(error).__name__}: {error}"
            print(f"\n=== {time.monotonic() - began:.1f} s{outcome}", flush=True)
        shell.interrupt()
    finally:
        shell.close()
    return failed


def run_isolated(document: Path, output: IO[str] | None = None, timeout: float | None = None) -> int:
    """Run a page in a process, a network and a folder of its own; return its status, 0 where all steps succeeded."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        words = [*isolation(), sys.executable, "-u", "-m", "tests.docs.page", str(document), folder]
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(timeout)
        finally:
            for left in session_members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    page, *folders = map(Path, sys.argv[1:])
    sys.exit(bool(run(page, folders[0])) if folders else run_isolated(page.resolve()))
