"""``python -m lmdeploy.turbomind.heads TARGET METHOD MODEL`` prints the engine directory of a head."""

import sys
from pathlib import Path

from lmdeploy.turbomind.engine_dir import print_directory
from lmdeploy.turbomind.heads.directory import find_head

if __name__ == "__main__":
    target, method, model = sys.argv[1:]
    sys.exit(print_directory(lambda: find_head(Path(target), method, model)))
