"""Every target of `make help` can be made: what is quick is made, and the recipes of the others name what there is.

The recipe of a target that is not started is read as `make -n` prints it: a shell parses it, and every program, module,
script and requirements file in it exists. `make serve` is started in tests/e2e/test_every_command.py.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NOT_STARTED = {
    "test": "runs these tests",
    "test-all": "runs these tests",
    "check": "runs these tests",
    "lint": "is what `make check` runs before these tests",
    "sanitize": "compiles and tests for several minutes",
    "mutations": "takes half an hour",
    "fuzz": "installs clang, and fuzzes for a minute a target",
    "abuse": "attacks for several minutes; a sample is tests/abuse/test_campaign.py",
    "bench": "measures for 5 minutes on a machine that has to be idle",
    "bench-peers": "measures for 10 minutes on a machine that has to be idle",
    "bench-tools": "asks the model in every tool-call format for several minutes",
    "clients": "installs for some minutes",
    "peers": "installs for some minutes",
    "screenshot": "rewrites images of the documentation",
    "format": "rewrites the sources",
    "load": "needs a server; its locust file runs in tests/tools/test_restful_api.py",
    "lock": "rewrites the requirements",
    "serve": "is started by tests/e2e/test_every_command.py",
}
# torch takes 0.15 s a text in bfloat16 where the processor has no instructions for it.
SMALLER = {"bench-embeddings": ["BENCH_ARGS=--texts 16 --rounds 1"]}
_TARGET = re.compile(r"^  make ([a-z-]+) ", re.MULTILINE)
_MODULE = re.compile(r"bin/python -m ([\w.]+)")
_FILE = re.compile(r"(?<![\w/.$}])(?:tools|requirements|tests)/[\w./-]+\.(?:py|sh|txt)\b")
_PROGRAM = re.compile(r"\.venv/bin/([\w-]+)")


def make(*words: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(["make", *words], cwd=cwd, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


TARGETS = _TARGET.findall(make("help"))


def test_help_lists_targets_and_no_reason_is_about_another() -> None:
    assert len(TARGETS) > 15
    assert NOT_STARTED.keys() <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_a_recipe_is_what_a_shell_reads_and_names_what_there_is(target: str) -> None:
    recipe = make("-n", target)
    parsed = subprocess.run(["bash", "-n"], input=recipe, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    assert not [name for name in _FILE.findall(recipe) if not (ROOT / name).is_file()]
    assert not [name for name in _MODULE.findall(recipe) if importlib.util.find_spec(name) is None]
    assert not [name for name in _PROGRAM.findall(recipe) if not (ROOT / ".venv" / "bin" / name).exists()]
    for name in _FILE.findall(recipe):
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n", ROOT / name], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", [name for name in TARGETS if name not in {*NOT_STARTED, "help", "clean"}])
def test_a_target_that_takes_seconds_is_made(target: str) -> None:
    assert "installing" not in make("-n", target), "the environment is not up to date: run `make dev`"
    make(target, *SMALLER.get(target, ()))


def test_clean_removes_what_was_built_and_keeps_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    built = ("build", "build-address", "lmdeploy/backends", ".mypy_cache", "lmdeploy/__pycache__")
    kept = (".venv", "lmdeploy", "tests", "docs", "openai_gateway", "python_backend", "webui", "tools")
    for name in (*kept, *built):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "lmdeploy" / "main.py").touch()
    make("clean", cwd=tmp_path)
    assert not [name for name in built if (tmp_path / name).exists()]
    assert all((tmp_path / name).is_dir() for name in kept)
    assert (tmp_path / "lmdeploy" / "main.py").is_file()
