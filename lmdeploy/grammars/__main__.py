"""A process that compiles response formats for an engine, which has started it and talks to it over a socket.

`translated` writes a format as a text that xgrammar reads; `program_of` makes the grammar a program. The engine
(``backend_cpp/engine/grammar/process_compiler.cc``) says how messages look, and ends a process that takes too long.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from select import poll
from typing import Any

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's affair

from lmdeploy.grammars import Translation, translated  # noqa: E402 - takes a moment
from lmdeploy.grammars.program import program_of  # noqa: E402
from lmdeploy.grammars.texts import InvalidFormatError  # noqa: E402

_SOCKET = 3
_PRIORITY = 10
_MEMORY = 1 << 30  # alongside what the process has


def _grammars() -> Any:
    """Return the grammars of xgrammar's own library, whose package imports torch."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi imports it where it is there
    import tvm_ffi

    if (package := find_spec("xgrammar")) is None or package.origin is None:
        raise ImportError("xgrammar is not installed")
    ctypes.CDLL(str(Path(package.origin).with_name("libxgrammar_bindings.so")), ctypes.RTLD_GLOBAL)

    @tvm_ffi.register_object("xgrammar.tvm_ffi_binding.Grammar")
    class Grammar(tvm_ffi.Object):
        pass

    return Grammar


def _program(grammars: Any, given: Translation) -> bytes:
    """Return the program of a format; raise xgrammar's errors."""
    if given.kind == "grammar":
        grammar = grammars.from_ebnf(given.text, "root")
    elif given.kind == "structural_tag":
        grammar = grammars.from_structural_tag(given.text)
    else:
        grammar = grammars.from_lark(given.text, None, [], [])
    return program_of(grammar.serialize_json(), lambda pattern: grammars.from_regex(pattern, False).serialize_json())


def _answer(grammars: Any, response_format: bytes) -> tuple[str, bytes]:
    """Return the type and the payload of the answer to a format."""
    try:
        given = translated(response_format.decode(errors="replace"))
        try:
            return "T" if given.kind == "structural_tag" else "P", _program(grammars, given)
        except UnicodeDecodeError as error:  # of a message of xgrammar's that quotes half a character
            message = error.object.decode(errors="replace")
        except (RuntimeError, TypeError, ValueError) as error:
            message = str(error)
            if "bad_alloc" in message:
                raise MemoryError from None
        message = given.explain(message)
    except InvalidFormatError as error:
        message = str(error)
    except MemoryError:
        return "M", f"response_format: it takes more than {_MEMORY >> 20} MiB of memory".encode()
    return "R", f"response_format: {message}".encode(errors="replace")


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
        grammars = _grammars()
        kind, payload = _answer(grammars, b'{"type": "json_object"}')  # the first is the slowest
    except (ImportError, OSError) as error:
        kind, payload = "F", f"response_format: {error}".encode()
    if kind != "P":
        send("F", b"response_format is not supported here" + payload.removeprefix(b"response_format"))
        return
    _limit()
    send("L", b"")
    while kind != "M":
        [size] = struct.unpack("<I", received(4))
        kind, payload = _answer(grammars, received(size))
        send(kind, payload)


if __name__ == "__main__":
    main()
