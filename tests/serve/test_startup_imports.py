"""A server of a model with a ``tokenizer.json`` starts without the libraries that take seconds to import."""

import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy.turbomind.engine_dir import resolve

HEAVY = ("torch", "transformers", "huggingface_hub", "sentencepiece", "gradio", "pandas", "scipy")

IN_TRITON = """
import json, sys
from tests.support.fake_pb_utils import Request, loaded_model
path = sys.argv[1]
with loaded_model("postprocessing", model_path=path), loaded_model("vision", model_path=path):
    pass
with loaded_model("preprocessing", model_path=path) as model:
    [response] = model.execute([Request(messages=json.dumps([{"role": "user", "content": "Hi"}]))])
    assert response.error is None and response.array("INPUT_ID").size > 3, response
"""

BEFORE_TRITON = """
import sys
from lmdeploy.cli import api_server
from lmdeploy.cli.main import make_parser
from lmdeploy.turbomind.engine_dir import resolve
make_parser().parse_args(["serve", "api_server", sys.argv[1]])
resolve(sys.argv[1])
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Return which of the heavy libraries a program has imported when it ends."""
    shown = f"{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", shown, *arguments], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("code", [IN_TRITON, BEFORE_TRITON], ids=["in Triton", "around Triton"])
def test_a_served_tokenizer_json_needs_no_transformers(code: str, default_model_dir: Path) -> None:
    resolve("")  # as the first start leaves it
    assert imported(code, str(default_model_dir)) == set()


def test_the_check_sees_an_import() -> None:
    assert imported("import sys, transformers") >= {"transformers"}
