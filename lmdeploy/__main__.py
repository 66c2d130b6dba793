"""``python -m lmdeploy``."""

import sys

from lmdeploy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
