"""Every fenced command and every Python example of a page runs as written, from top to bottom (`page.py`).

`make test` runs SAMPLE, `make test-all` all pages. What a page's comments leave out is skipped with their reasons, and
parsed (`test_commands.py`) or compiled.
"""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, SAMPLE, blocks, name_of, steps
from tests.docs.page import run_isolated

STEPS = {document: steps(document) for document in DOCUMENTS}
RUN = [document for document, found in STEPS.items() if any(not step.not_run for step in found)]
LEFT_OUT = [document for document, found in STEPS.items() if any(step.not_run for step in found)]
OURS = ("lmdeploy ", "python ", "make ", "pip ", "curl ", ".venv/bin/", "tools/gpu_check.sh", "docker ", "kubectl ")


@pytest.mark.e2e
@pytest.mark.timeout(1300)
@pytest.mark.parametrize(
    "document", [pytest.param(one, marks=() if one in SAMPLE else pytest.mark.thorough, id=name_of(one)) for one in RUN]
)
def test_a_page_runs_as_written(document: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    with printed.open("w", encoding="utf-8") as output:
        status = run_isolated(document, output, timeout=1200)
    assert status == 0, printed.read_text(encoding="utf-8")[-8000:]


@pytest.mark.parametrize("document", LEFT_OUT, ids=name_of)
def test_a_page_says_what_is_not_run(document: Path) -> None:
    left_out = [step for step in STEPS[document] if step.not_run]
    for step in left_out:
        if step.language == "python":
            compile(step.text, step.document, "exec")
    pytest.skip("; ".join(f"`{step.text.splitlines()[0]}` is not run: {step.not_run}" for step in left_out))


def test_commands_stand_in_blocks_that_run() -> None:
    lines = [
        f"{name_of(document)}: {line}"
        for document in DOCUMENTS
        for language in ("", "text", "sh", "console", "shell")
        for block in blocks(document, language)
        for line in block.splitlines()
        if line.startswith(OURS)
    ]
    assert lines == []


PAGE = """
<!-- run: export HELD=1 -->
<!-- not run (absent): it is not there -->
```bash
test "$HELD" = 1
absent
test "a 'b
c'" = "a 'b
c'" \\
  && cat > here <<'END'
false
END
false  # noticed
lmdeploy serve proxy --no-such-option
```

<!-- file: facts.json -->
```json
{"a": 1}
```

```python
import json

found = json.load(open("facts.json"))
```

```python
print("read", found["a"])
```
"""


def test_the_runner_goes_through_a_page_and_notices_what_fails(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    printed = tmp_path / "printed"
    with printed.open("w", encoding="utf-8") as output:
        assert run_isolated(tmp_path / "page.md", output) == 1
    text = printed.read_text(encoding="utf-8")
    assert re.findall(r"FAILED: .*", text) == [
        "FAILED: AssertionError: it ends with 1",
        "FAILED: AssertionError: it ended",
    ]
    assert re.findall(r"not run: .*", text) == ["not run: it is not there"]
    assert "\nread 1\n" in text
