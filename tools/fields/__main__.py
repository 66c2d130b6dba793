"""``python -m tools.fields``: write every file that is made from the tables again; ``--check``: only compare."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

from tools.fields import cli, cpp, docs, http, pbtxt, spec

ROOT = Path(__file__).resolve().parents[2]
WRITERS: dict[str, Callable[[str], str]] = {
    "model_repository/turbomind/config.pbtxt": pbtxt.engine,
    "model_repository/ensemble/config.pbtxt": pbtxt.ensemble,
    "model_repository/ensemble_vision/config.pbtxt": pbtxt.ensemble,
    "backend_cpp/engine/fields/generation_fields.h": cpp.generation_fields,
    "backend_cpp/engine/fields/engine_settings_fields.h": cpp.engine_settings,
    "backend_cpp/model/spec/model_spec_fields.h": spec.structs,
    "docs/reference/settings.md": docs.settings,
    "docs/reference/cli.md": cli.command_line,
    "docs/reference/http-api/fields.md": http.request_fields,
}


def stale(write: bool) -> list[str]:
    """Return how files differ from what the tables say, and mend them if wanted."""
    differences: list[str] = []
    for name, writer in WRITERS.items():
        path = ROOT / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = writer(old)
        if new == old:
            continue
        differences += difflib.unified_diff(old.splitlines(), new.splitlines(), name, f"{name} (from the tables)")
        if write:
            path.write_text(new, encoding="utf-8")
    return differences


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.fields", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file differs")
    arguments = parser.parse_args()
    differences = stale(write=not arguments.check)
    print("\n".join(differences) if differences else "the tables and what is made from them agree")
    return 1 if differences and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
