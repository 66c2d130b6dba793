"""``python -m lmdeploy.vl.tools.merge_xcomposer2d5_task``: takes its arguments, and says why it merges nothing.

What it would write is an InternLM-XComposer2.5 with a task's low-rank matrices in its weights, which is not served.
"""

import argparse
import sys
from collections.abc import Sequence

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.unsupported import refuse_unsupported

_MODEL = {"architectures": ["InternLMXComposer2ForCausalLM"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1, and on standard error the reason, or 2 for what are no arguments."""
    parser = argparse.ArgumentParser(prog="python -m lmdeploy.vl.tools.merge_xcomposer2d5_task", description=__doc__)
    parser.add_argument("model", help="folder or name of the model")
    parser.add_argument("output", help="folder of the merged model; left as it is")
    parser.add_argument("--task", choices=("web", "write"), required=True)
    parser.parse_args(arguments)
    try:
        refuse_unsupported(_MODEL)
    except UnsupportedModelError as refusal:
        print(f"nothing was merged: {refusal}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
