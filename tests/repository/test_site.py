"""The documentation is a site: every page has its place, every link its target, every named file exists."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("backend_cpp", "lmdeploy", "model_repository", "openai_gateway", "python_backend", "tests", "tools", "webui")
FILE_NAME = re.compile(r"`([\w./-]+\.(?:py|cc|h|pbtxt))`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    # Not --quiet: warnings that are not written do not count as such either.
    paths = ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    # A page that is new: name it under `nav` in mkdocs.yml.
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    for page in pages:
        html = (tmp_path / "site" / page).read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", html) == []


def test_files_that_are_named_and_linked_exist() -> None:
    files = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    named = FILE_NAME.findall((ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []
    linked = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in linked if not (ROOT / link).exists()] == []
