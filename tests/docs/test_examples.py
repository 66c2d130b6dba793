"""The Python of guides and of pages that are like guides, and the guides' `curl`, run from top to bottom of a page.

`http://localhost:23333` is a real server with the default model, `http://localhost:8000` a proxy; models that are
loaded are tiny ones under the guides' names. Of other documents the Python is only compiled; what is not whole there is
fenced as `py`.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.model import MODELS
from tests.docs.blocks import DOCUMENTS, GUIDES, ROOT, blocks, commands

SERVER, PROXY = "http://localhost:23333", "http://localhost:8000"
NOT_RUN = {"vision.md"}  # its curl asks a server of another model; tests/e2e/test_images.py has one
OWN_SERVER = {"retrieval.md"}  # its models: tests/e2e/test_retrieval.py
RUN = [ROOT / "README.md"] + [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "get-started/quickstart",
        "guides/chat-templates",
        "guides/gguf",
        "guides/lora",
        "reference/http-api/responses",
        "reference/python-api",
        "reference/pytorch-engine",
    )
]

pytestmark = pytest.mark.slow


def named(document: Path) -> str:
    return document.relative_to(ROOT).with_suffix("").name


def addressed(text: str, gateway: str, proxy: str, folder: Path) -> str:
    return text.replace(SERVER, gateway).replace(PROXY, proxy).replace('"/adapters/', f'"{folder}/adapters/')


@pytest.mark.parametrize(
    "document", [one for one in (*GUIDES, *RUN) if blocks(one, "python") and one.name not in OWN_SERVER], ids=named
)
def test_python_runs(document: Path, gateway: str, proxy: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(MODELS, "_factories", dict(MODELS._factories))
    space: dict[str, Any] = {"__name__": "example"}
    try:
        for number, block in enumerate(blocks(document, "python"), 1):
            code = compile(addressed(block, gateway, proxy, folder), f"{document.name}, example {number}", "exec")
            exec(code, space)
    finally:
        if (pipe := space.get("pipe")) is not None:
            pipe.close()


ASKED = {
    guide: asked
    for guide in GUIDES
    if (asked := [command for command in commands(guide, "bash") if command.words[0] == "curl"])
    if guide.name not in NOT_RUN
}


@pytest.mark.parametrize("guide", ASKED, ids=named)
def test_a_guide_s_curl_is_answered(guide: Path, gateway: str, proxy: str, folder: Path) -> None:
    for command in ASKED[guide]:
        words = [addressed(word, gateway, proxy, folder) for word in command.words]
        done = subprocess.run([*words, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("document", [one for one in DOCUMENTS if one not in (*GUIDES, *RUN)], ids=named)
def test_python_of_other_documents_compiles(document: Path) -> None:
    for number, block in enumerate(blocks(document, "python"), 1):
        compile(block, f"{document.name}, example {number}", "exec")
