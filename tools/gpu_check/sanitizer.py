"""Runs a command under a tool of ``compute-sanitizer``: ``python -m tools.gpu_check.sanitizer memcheck COMMAND...``."""

import shutil
import subprocess
import sys

from tools.gpu_check.stages import LEFT_OUT


def main() -> None:
    """Run the command line; where there is no compute-sanitizer, say so."""
    tool, *command = sys.argv[1:]
    program = shutil.which("compute-sanitizer")
    if program is None:
        print(f"{LEFT_OUT}: there is no compute-sanitizer")
        return
    options = ["--tool", tool, "--error-exitcode", "99", "--target-processes", "all", "--print-limit", "20"]
    sys.exit(subprocess.run([program, *options, *command], check=False).returncode)


if __name__ == "__main__":
    main()
