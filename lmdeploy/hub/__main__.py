"""``python -m lmdeploy.hub``: pull a model in a process of its own, which can be ended; each step is a line of JSON.

The last line is ``{"status": "success"}``, or ``{"error": ...}`` with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys

from lmdeploy.hub import HubError
from lmdeploy.hub.names import hub_name
from lmdeploy.hub.pull import Progress, pull
from lmdeploy.paths import pulled_records


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Pull a model; each step is a line of JSON.")
    parser.add_argument("name", help="owner/name, or owner/name:WHICH")
    parser.add_argument("--max-bytes", type=int, help="the most that all pulled models may have together")
    args = parser.parse_args()
    name = hub_name(args.name)
    try:
        if name is None:
            raise HubError("expected owner/name, or owner/name:WHICH")
        pull(pulled_records(), name, report=_print, max_bytes=args.max_bytes)
    except HubError as error:
        print(json.dumps({"error": f"{args.name}: {error}"}), flush=True)
        return 1
    return 0


def _print(progress: Progress) -> None:
    line: dict[str, str | int] = {"status": progress.status}
    if progress.digest:
        line |= {"digest": progress.digest, "total": progress.total, "completed": progress.completed}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
