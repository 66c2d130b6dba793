"""The documentation is a site: every page has its place, every link its target (`make docs`)."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)
    # A page that is new: name it under `nav` in mkdocs.yml.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    for page in pages:
        html = (tmp_path / "site" / page).read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?:", html) == []
