"""A process that compiles response formats for an engine, which has started it and talks to it over a socket.

``turbomind_grammar.so`` (``backend_cpp/grammar/main.cc``) reads orders and limits the process; for each format it calls
`translated`.
"""

import ctypes
import json
import signal
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's affair

from lmdeploy.grammars import RefusedFormatError, translated  # noqa: E402 - takes a moment

_LIBRARY = Path(__file__).parents[1] / "turbomind_grammar.so"
_RESULT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def main() -> None:
    """Compile formats until the engine closes its socket."""
    kept = ctypes.create_string_buffer(0)

    def translate(text: int, size: int) -> int | None:
        """Return the place of a JSON object of the format for xgrammar, or of why there is none."""
        nonlocal kept
        try:
            result = {"format": translated(ctypes.string_at(text, size).decode())}
        except MemoryError:
            return None
        except RefusedFormatError as error:
            result = {"refusal": str(error)}
        except ValueError as error:  # no JSON, or no UTF-8
            result = {"refusal": f"it is no JSON: {error}"}
        kept = ctypes.create_string_buffer(json.dumps(result).encode())
        return ctypes.addressof(kept)

    ctypes.CDLL(str(_LIBRARY)).turbomind_grammar_run(_RESULT(translate))


if __name__ == "__main__":
    main()
