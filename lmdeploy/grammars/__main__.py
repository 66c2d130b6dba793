"""A process that compiles response formats for an engine, which has started it and talks to it over a socket.

``turbomind_grammar.so`` (``backend_cpp/grammar/main.cc``) reads orders and limits the process; for each format it calls
`translated`.
"""

import ctypes
import json
import signal
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's affair

from lmdeploy.grammars import RefusedFormatError, Translation, translated  # noqa: E402 - takes a moment

_LIBRARY = Path(__file__).parents[1] / "turbomind_grammar.so"
_TRANSLATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_EXPLAIN = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


class Callbacks:
    """Functions for the library; returned texts stay in memory until the next call. None: there is no memory left."""

    def __init__(self) -> None:
        self._last = Translation(None)
        self._kept = ctypes.create_string_buffer(0)

    def translate(self, text: int, size: int) -> int | None:
        """Return the address of a JSON object with the format for xgrammar, or with the reason of a refusal."""
        try:
            self._last = translated(ctypes.string_at(text, size).decode(errors="replace"))
            return self._address_of(json.dumps({"format": self._last.read}))
        except RefusedFormatError as error:
            return self._address_of(json.dumps({"refusal": str(error)}))
        except MemoryError:
            return None

    def explain(self, message: bytes) -> int:
        """Return the address of a message about the user's format."""
        return self._address_of(self._last.explain(message.decode(errors="replace")))

    def _address_of(self, text: str) -> int:
        self._kept = ctypes.create_string_buffer(text.encode(errors="replace"))
        return ctypes.addressof(self._kept)


def main() -> None:
    """Compile formats until the engine closes its socket."""
    library = ctypes.CDLL(str(_LIBRARY))
    calls = Callbacks()
    library.turbomind_grammar_run(_TRANSLATE(calls.translate), _EXPLAIN(calls.explain))


if __name__ == "__main__":
    main()
