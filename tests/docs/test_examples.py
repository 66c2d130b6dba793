"""The guides' Python, and their `curl`, run as they stand, from top to bottom of a page.

`http://localhost:23333` is a real server with the default model, `http://localhost:8000` a proxy; models that are
loaded are tiny ones under the guides' names. Of other documents the Python is only compiled; what is not whole there is
fenced as `py`.
"""

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import DOCUMENTS, GUIDES, blocks, commands

SERVER, PROXY = "http://localhost:23333", "http://localhost:8000"
NOT_RUN = {"vision.md"}  # its curl asks a server of another model; tests/e2e/test_pictures.py has one

pytestmark = pytest.mark.slow


def named(document: Path) -> str:
    return document.name


def addressed(text: str, gateway: str, proxy: str) -> str:
    return text.replace(SERVER, gateway).replace(PROXY, proxy)


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if blocks(guide, "python")], ids=named)
def test_a_guide_s_python_runs(
    guide: Path, gateway: str, proxy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    space: dict[str, Any] = {"__name__": "guide"}
    try:
        for number, block in enumerate(blocks(guide, "python"), 1):
            code = compile(addressed(block, gateway, proxy), f"{guide.name}, example {number}", "exec")
            exec(code, space)
    finally:
        if (pipe := space.get("pipe")) is not None:
            pipe.close()


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide.name not in NOT_RUN], ids=named)
def test_a_guide_s_curl_is_answered(guide: Path, gateway: str, proxy: str) -> None:
    asked = [command for command in commands(guide, "bash") if command.words[0] == "curl"]
    for command in asked:
        words = [addressed(word, gateway, proxy) for word in command.words]
        done = subprocess.run([*words, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one not in GUIDES], ids=named)
def test_python_of_other_documents_compiles(document: Path) -> None:
    for number, block in enumerate(blocks(document, "python"), 1):
        compile(block, f"{document.name}, example {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
