"""A process that compiles response formats for an engine, which has started it and talks to it over a socket.

`translated` writes a format as a text that xgrammar reads; ``turbomind_grammar.so`` (``backend_cpp/grammar``) has that
read and makes it a program. The engine (``backend_cpp/engine/grammar/process_compiler.cc``) says how messages look,
and ends a process that takes too long.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from select import poll

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's affair

from lmdeploy.grammars import InvalidFormatError, translated  # noqa: E402 - takes a moment

_SOCKET = 3
_LIBRARY = Path(__file__).parents[1] / "turbomind_grammar.so"
_PRIORITY = 10
_MEMORY = 1 << 30  # alongside what the process has


def _answer(read: Callable[..., int], response_format: bytes) -> tuple[str, bytes]:
    """Return the type and the payload of the answer to a format."""
    size, found = ctypes.c_size_t(), ctypes.c_void_p()
    try:
        given = translated(response_format.decode(errors="replace"))
        text = given.text.encode(errors="replace")
        kind = chr(read(given.kind.encode(), text, len(text), ctypes.byref(found), ctypes.byref(size)))
        payload = ctypes.string_at(found, size.value) if found else b""
        if kind == "R":
            payload = given.explain(payload.decode(errors="replace")).encode(errors="replace")
    except InvalidFormatError as error:
        kind, payload = "R", str(error).encode(errors="replace")
    except MemoryError:
        kind = "M"
    if kind == "M":
        payload = f"it takes more than {_MEMORY >> 20} MiB of memory".encode()
    if kind == "P":
        return "T" if given.kind == "structural_tag" else kind, payload
    return kind, b"response_format: " + payload


def _limit() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _PRIORITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # which maps terabytes
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY,) * 2)


def main() -> None:
    """Compile formats until the engine closes its socket, for whatever reason."""
    Path("/proc/self/comm").write_text("turbomind_grammar")
    os.closerange(_SOCKET + 1, 1 << 20)  # what the engine's process had open
    engine = socket.socket(fileno=_SOCKET)

    def leave() -> None:
        ends = poll()
        ends.register(engine, 0)
        ends.poll()
        os._exit(0)

    def received(size: int) -> bytes:
        data = engine.recv(size, socket.MSG_WAITALL)
        return data if len(data) == size else os._exit(0)

    def send(kind: str, payload: bytes) -> None:
        engine.sendall(struct.pack("<Ic", len(payload), kind.encode()) + payload)

    threading.Thread(target=leave, daemon=True).start()
    try:
        read = ctypes.CDLL(str(_LIBRARY)).turbomind_grammar_read
        read.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        kind, payload = _answer(read, b'{"type": "json_object"}')  # the first is the slowest
    except OSError as error:
        kind, payload = "F", f"response_format: {error}".encode()
    if kind != "P":
        send("F", b"response_format is not supported here" + payload.removeprefix(b"response_format"))
        return
    _limit()
    send("L", b"")
    while kind != "M":
        [size] = struct.unpack("<I", received(4))
        kind, payload = _answer(read, received(size))
        send(kind, payload)


if __name__ == "__main__":
    main()
