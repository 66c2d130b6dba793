"""Every command that a document writes is one that the programs take.

Commands of all documents are parsed by the programs' own parsers (`checking.py`). Those of the guides that cost little
are run too: `curl` against a server (`test_examples.py`), the others here. Programs of others are named in SHOWN.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, GUIDES, ROOT, Command, commands, inline_commands
from tests.docs.checking import program, refusal

# Programs of others. curl is run by test_examples.py.
SHOWN = {"curl", "gdb", "lm_eval", "build/engine_tests"}
OWN = ("lmdeploy", "python", "make", "cmake", "pip")


def ids(command: Command) -> str:
    return f"{command.document}: {command.text[:60]}"


IN_GUIDES = [command for guide in GUIDES for command in commands(guide, "bash")]
ELSEWHERE = [
    command
    for document in DOCUMENTS
    for command in [*(commands(document, "", "bash") if document not in GUIDES else []), *inline_commands(document)]
    if not command.text.split()[0].endswith("/") and program(command.text.split()[0]) in OWN
    if not set("|[") & set(command.text) and "..." not in command.text
]
# What is said of a command that is only named, without all of its arguments, or that names a file of the reader's.
NAMED_ONLY = (
    "the following arguments are required",
    "expected at least one argument",
    "expected one argument",
    "cannot be read: No such file or directory",
)


def test_there_are_commands() -> None:
    assert len(IN_GUIDES) > 40
    assert len(ELSEWHERE) > 40
    assert {command.words[0] for command in IN_GUIDES} & SHOWN == SHOWN


@pytest.mark.parametrize("command", IN_GUIDES, ids=ids)
def test_a_guide_s_command_is_taken(command: Command) -> None:
    said = refusal(command.words)
    assert said == "" or (said is None and command.words[0] in SHOWN), said


@pytest.mark.parametrize("command", ELSEWHERE, ids=ids)
def test_a_command_of_another_document_is_taken(command: Command) -> None:
    said = refusal(command.words)
    assert said == "" or any(reason in said for reason in NAMED_ONLY), said


@pytest.mark.parametrize(
    "text",
    [
        "lmdeploy serve api_server m --sesion-len 5",
        "lmdeploy lite auto_awq m --w-bitz 4",
        "python tools/passkey.py m --round 3x",
        "python tools/profile_throughput.py --no-such-flag",
        "make nothing",
        "make serve PRT=8",
        "pip install 'lmdeploy-triton[nothing]'",
        "pip install lmdeploy",
        "cmake -S . -DTURBOMIND_NOTHING=ON",
    ],
)
def test_an_invented_option_is_noticed(text: str) -> None:
    assert refusal(Command("", text).words)


# Beginnings of what is run on a tiny model, in order and in one folder: seconds each.
RUN = (
    *("lmdeploy list", "lmdeploy check_env", "lmdeploy plan", "lmdeploy lite", "lmdeploy chat", "lmdeploy convert"),
    *("python tools/profile_generation.py", "python tools/profile_throughput.py"),
)
NOT_HERE = ("--compare", "--backend pytorch")  # other engines; half a minute
RUN_HERE = [
    command
    for command in IN_GUIDES
    if command.text.startswith(RUN) and not any(option in command.text for option in NOT_HERE)
]


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_HERE, ids=ids)
def test_a_guide_s_command_runs(command: Command, folder: Path) -> None:
    first, *others = command.words
    words = [sys.executable, "-m", first, *others]
    if first == "python":
        words = [sys.executable, str(ROOT / others[0]), *others[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200, input="Hello\n\nexit\n\n")
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_c_plus_plus_tests_take_a_word() -> None:
    program_file = ROOT / "build" / "engine_tests"
    if not program_file.exists() or shutil.which(str(program_file)) is None:
        pytest.skip("the C++ tests are not built; run: make build-tests")
    done = subprocess.run([program_file, "block"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0
    assert "0 passed" not in done.stdout
