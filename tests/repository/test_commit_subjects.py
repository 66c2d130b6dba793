"""`make lint` checks the subjects of commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.commit_subjects import SINCE, fault, history, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "subject",
    [
        "engine: free window blocks per layer group",
        "proxy, ray: refuse request targets of other hosts",
        "docs/guides: bring the command first",
        "gateway: pass headers through",
        "make: " + "x" * 66,
    ],
)
def test_a_subject_with_an_area_and_an_imperative_passes(subject: str) -> None:
    assert fault(subject) == ""


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("make: " + "x" * 67, "73 characters, at most 72"),
        ("The engine frees blocks", "area: imperative"),
        ("engine:", "area: imperative"),
        ("engine: Free blocks", "expected 'free'"),
        ("engine: frees blocks", "got 'frees'"),
        ("engine: freed blocks", "got 'freed'"),
        ("engine: freeing blocks", "got 'freeing'"),
        ("engine: free blocks.", "full stop"),
    ],
)
def test_another_subject_is_refused_with_the_reason(subject: str, said: str) -> None:
    assert said in fault(subject)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.com"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commits_since_the_rule_are_checked_and_merges_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "commit", "--allow-empty", "-m", "Something before the rule")
    since = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "switch", "--create", "side")
    git(tmp_path, "commit", "--allow-empty", "-m", "engine: free blocks")
    git(tmp_path, "switch", "main")
    git(tmp_path, "merge", "--no-ff", "side", "-m", "Merge the side")
    monkeypatch.chdir(tmp_path)
    assert main(since) == 0
    git(tmp_path, "commit", "--allow-empty", "-m", "Blocks are free")
    assert main(since) == 1
    shown = capsys.readouterr().out
    assert "'Blocks are free': expected" in shown
    assert "2 checked, 1 to reword" in shown
    assert main("0" * 40) == 0, "a shallow clone does not have the history"
    assert "not checked" in capsys.readouterr().out


def test_the_rule_begins_at_a_commit_of_this_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    known = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    if int(known or 0) < 100:
        pytest.skip("this checkout has no history: a shallow clone, or no repository")
    assert history(SINCE) is not None


def test_lint_runs_the_check() -> None:
    recipe = subprocess.run(["make", "-n", "lint"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "-m tools.commit_subjects" in recipe
