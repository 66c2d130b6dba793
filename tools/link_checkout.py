"""Make this checkout importable in the running interpreter's environment, and put the ``lmdeploy`` command next to it.

What ``pip install --editable`` would do, without a build: a ``.pth`` file names the checkout, and a script calls
``lmdeploy.cli.main``.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """#!{python}
import sys

from lmdeploy.cli.main import main

sys.exit(main())
"""


def main() -> None:
    """Write both files."""
    if sys.prefix == sys.base_prefix:
        raise SystemExit("link_checkout.py must run inside a virtual environment, e.g. .venv/bin/python")
    (Path(sysconfig.get_path("purelib")) / "lmdeploy-checkout.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    command = Path(sysconfig.get_path("scripts")) / "lmdeploy"
    command.write_text(SCRIPT.format(python=sys.executable), encoding="utf-8")
    command.chmod(0o755)


if __name__ == "__main__":
    main()
