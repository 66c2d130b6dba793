"""Workers of the PyTorch engine, forked from one process that has imported PyTorch and transformers.

Those imports take five seconds of processor time, and the workers of tests little else. The engine starts this file,
which hands its open files to that process and ends as the worker does.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_FILES = 5  # standard ones, the channel and the lifeline
_MAX_REQUEST_BYTES = 1 << 20  # bytes of arguments and environment


@contextlib.contextmanager
def warm_workers() -> Iterator[list[str]]:
    """Yield a command that does what ``python -m lmdeploy.pytorch.worker`` does, without its imports."""
    name = f"lmdeploy-workers-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        words = [sys.executable, "-m", "tests.support.warm_workers", "serve", str(listener.fileno())]
        with subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], cwd=_ROOT) as server:
            yield [sys.executable, "-S", __file__, name]
            assert server.stdin is not None
            server.stdin.close()


def _serve(listener: socket.socket) -> None:
    """Fork a worker for each connection, until the tests end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch workers
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        _import()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(connection)
            os._exit(0)
        connection.close()


def _import() -> None:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # as the worker has it
    for module in ("torch._dynamo", "transformers.modeling_utils", "lmdeploy.pytorch.step_runner"):
        importlib.import_module(module)


def _watch(connection: socket.socket) -> None:
    """Fork the worker, and tell how it ends."""
    message, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, _FILES)
    words, _, environment = message.partition(b"\0\0")
    worker = os.fork()
    if worker == 0:
        connection.close()
        for number, file in enumerate([fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10) for file in files]):
            os.dup2(file, number)
        os.environb.clear()
        for pair in environment.split(b"\0"):
            variable, _, value = pair.partition(b"=")
            os.environb[variable] = value
        from lmdeploy.pytorch.worker import main

        sys.exit(main([word.decode() for word in words.split(b"\0")]))
    _, status = os.waitpid(worker, 0)
    with contextlib.suppress(OSError):  # the engine has gone
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _dispatch(name: str, words: list[str]) -> int:
    """Have a worker forked, and return the status it ends with."""
    environment = b"\0".join(b"=".join(pair) for pair in os.environb.items())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{name}")
        message = b"\0".join(word.encode() for word in words) + b"\0\0" + environment
        socket.send_fds(connection, [message], range(_FILES))
        for file in range(3, _FILES):
            os.close(file)
        return int(connection.recv(16) or 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        status = _dispatch(sys.argv[1], sys.argv[2:])
        if status < 0:
            os.kill(os.getpid(), -status)
        sys.exit(status)
