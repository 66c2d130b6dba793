"""Asks a server for a short text again and again, until there is no more input: ``tests.abuse.probe PORT KEY MODEL``.

In a process of its own, as whoever attacks is busy. For each request it prints the status, 0 where there was no
response, and the seconds.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time

_PATH = "/v1/chat/completions"
_BETWEEN = 0.05  # seconds


def main() -> None:
    """Ask until asked to stop."""
    port, key, model = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 8})
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    is_over = False
    while not is_over:
        begin, status = time.monotonic(), 0
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", _PATH, body, headers)
            response = connection.getresponse()
            response.read()
            status = response.status
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        print(status, time.monotonic() - begin, flush=True)
        is_over = bool(select.select([sys.stdin], [], [], _BETWEEN)[0])


if __name__ == "__main__":
    main()
