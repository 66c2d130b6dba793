"""CONTRIBUTING.md's recipes name the files that their examples are made of: all of them, and no others."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = ("backend_cpp", "lmdeploy", "model_repository", "openai_gateway", "python_backend", "webui")
# A recipe ends in: Files of `word`: and a list, of which each line begins with a path.
LIST = re.compile(r"^Files of `([^`]+)`[^\n]*:\n\n((?:- [^\n]+\n|  [^\n]+\n)+)", re.MULTILINE)
PATH = re.compile(r"^- `([^`]+)`", re.MULTILINE)
SUFFIXES = {".py", ".h", ".cc", ".cu", ".cuh", ".pbtxt", ".json"}
NOT_PRODUCT = ("backend_cpp/tests/", "backend_cpp/testing/")


@cache
def recipes() -> dict[str, list[str]]:
    """Return the files that each recipe lists, by the word that its example is found by."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {match[1]: PATH.findall(match[2]) for match in LIST.finditer(text)}


def holds(path: Path, word: str) -> bool:
    """Return whether a file's name or text has the word, in capitals where it has them, or is about its enumerator."""
    flags = re.IGNORECASE if word.islower() else 0
    enumerator = "k" + "".join(part.capitalize() for part in word.split("_"))
    pattern = rf"(?<![A-Za-z0-9_])(?:{re.escape(word)}|{enumerator})(?![A-Za-z0-9_])"
    return bool(re.search(pattern, f"{path.stem} {path.read_text(encoding='utf-8')}", flags))


def test_every_recipe_ends_in_its_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    titles = re.findall(r"^### (.+)", text, re.MULTILINE)
    assert len(titles) == len(recipes()) >= 4
    assert all(recipes().values())


@pytest.mark.parametrize(("word", "most"), [("is_chunked", 8), ("lightning", 10)])
def test_a_mixer_touches_few_files(word: str, most: int) -> None:
    """The first has paged memory, the second a state."""
    product = [name for name in recipes()[word] if name.startswith(PRODUCT) and not name.startswith(NOT_PRODUCT)]
    assert 1 <= len(product) <= most


@pytest.mark.parametrize("word", recipes())
def test_listed_files_are_there_and_about_the_example(word: str) -> None:
    files = recipes()[word]
    assert len(set(files)) == len(files)
    assert [name for name in files if not (ROOT / name).is_file() or not holds(ROOT / name, word)] == []


@pytest.mark.parametrize("word", recipes())
def test_no_file_of_the_product_that_is_about_the_example_is_left_out(word: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and holds(path, word)
    }
    found = {name for name in found if not name.startswith(NOT_PRODUCT)}
    assert found - set(recipes()[word]) == set()
