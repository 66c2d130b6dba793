"""The documents name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("backend_cpp", "lmdeploy", "model_repository", "openai_gateway", "python_backend", "tests", "tools", "webui")
FILE_NAME = re.compile(r"`([\w./-]+\.(?:py|cc|h|pbtxt))`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def test_architecture_names_files_that_exist() -> None:
    files = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    named = FILE_NAME.findall((ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize(
    "document", ["README.md", *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
)
def test_links_lead_to_files_that_exist(document: str) -> None:
    path = ROOT / document
    links = LINK.findall(path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []
