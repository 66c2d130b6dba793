"""How tests are run: who may run twice, and what a run takes from the shell that starts it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

TWICE = """
import signal
from pathlib import Path

import pytest

def first_time(name):
    file = Path(__file__).with_name(name)
    is_first = not file.exists()
    file.touch()
    return is_first

@pytest.mark.e2e
def test_of_a_server():
    assert not first_time("server")

def test_of_a_function():
    assert not first_time("function")

def test_sigint():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def test_only_tests_of_whole_servers_run_twice_and_are_named_and_sigint_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "test_twice.py").write_text(TWICE)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "1"]
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--confcutdir", str(ROOT)]
    # As a shell starts a command in the background: with SIGINT ignored.
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    plugins = ["-p", "tests.conftest"]
    command = [*shell, *pytest_command, *options, *plugins, str(tmp_path / "test_twice.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "1 failed, 2 passed, 1 rerun" in done.stdout, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("FLAKY")] == [
        next(line for line in done.stdout.splitlines() if "FLAKY" in line and "test_of_a_server" in line)
    ]
