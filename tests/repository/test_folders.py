"""A folder shows what it holds: few files, but for rows of files that are all of one kind."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = (
    "backend_cpp",
    "deploy",
    "docs",
    "lmdeploy",
    "model_repository",
    "openai_gateway",
    "python_backend",
    "requirements",
    "tests",
    "tools",
    "webui",
)
BUILT = {".pyc", ".so"}
MOST_FILES = 25
# Folders whose files are all of one kind, named after what they are about.
ONE_OF_A_KIND = {
    "lmdeploy/turbomind/families": "a model family each",
    "lmdeploy/templates/families": "the templates of a family each",
    "lmdeploy/vl/families": "a family that sees each",
    "tests/data/templates": "a chat template each",
    "tests/e2e": "what is promised of a whole server each",
    "tests/engine": "what is promised of the running engine each",
    "tests/support": "a helper each",
    "tests/unit": "the promises of a module each",
}


def files_in_folders() -> Counter[str]:
    """Return the number of files of each folder."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return Counter(path.parent.relative_to(ROOT).as_posix() for path in files if path.suffix not in BUILT)


def test_no_folder_holds_more_files_than_one_looks_through() -> None:
    counts = files_in_folders()
    assert len(counts) > 50
    assert {folder for folder, count in counts.items() if count > MOST_FILES} <= ONE_OF_A_KIND.keys()


def test_folders_that_may_be_large_are_there() -> None:
    assert files_in_folders().keys() >= ONE_OF_A_KIND.keys()
