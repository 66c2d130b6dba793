"""The script that checks a GPU machine, as far as it goes without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.sh"


def test_what_is_missing_is_named_before_anything_is_built(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, tmp_path / "out"],
        env=os.environ | {"PYTHON": str(bare)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "missing: the Python module torch" in done.stdout
    report = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert [(stage["stage"], stage["outcome"]) for stage in report["stages"]] == [("needs", "FAILED: exit status 1")]
    assert report["targets"] is None
