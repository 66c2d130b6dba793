"""``python -m tools.fields``: write every file that is made from the tables again; ``--check``: only compare.

``--headers`` writes the C++ structs alone, which no commit has: CMake calls it, with the standard library alone.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.fields import cpp, spec

ROOT = Path(__file__).resolve().parents[2]
HEADERS: dict[str, Callable[[str], str]] = {
    "backend_cpp/kernels/sampling_fields.h": cpp.sampling_fields,
    "backend_cpp/engine/fields/generation_fields.h": cpp.generation_fields,
    "backend_cpp/engine/fields/engine_settings_fields.h": cpp.engine_settings,
    "backend_cpp/model/spec/model_spec_fields.h": spec.structs,
}


def tracked() -> dict[str, Callable[[str], str]]:
    """Return the writers of the files that commits have, by name."""
    from tools.fields import cli, docs, http, pbtxt

    return {
        "model_repository/turbomind/config.pbtxt": pbtxt.engine,
        "model_repository/ensemble/config.pbtxt": pbtxt.ensemble,
        "model_repository/ensemble_vision/config.pbtxt": pbtxt.ensemble,
        "docs/reference/settings.md": docs.settings,
        "docs/reference/cli.md": cli.command_line,
        "docs/reference/http-api/fields.md": http.request_fields,
    }


def stale(writers: Mapping[str, Callable[[str], str]], write: bool) -> list[str]:
    """Return how files differ from what the tables say, and mend them if wanted."""
    differences: list[str] = []
    for name, writer in writers.items():
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
    parser.add_argument("--headers", action="store_true", help="write the C++ structs alone")
    arguments = parser.parse_args()
    if arguments.headers:
        stale(HEADERS, write=True)
        return 0
    differences = stale(tracked(), write=not arguments.check)
    print("\n".join(differences) if differences else "the tables and what is made from them agree")
    return 1 if differences and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
