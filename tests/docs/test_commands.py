"""Every command that a document writes is one that the programs' own parsers take (`checking.py`), run here or not."""

import pytest

from tests.docs.blocks import DOCUMENTS, Step, inline_commands, steps
from tests.docs.checking import refusal

COMMANDS = [
    *(step for document in DOCUMENTS for step in steps(document) if step.language == "bash"),
    *(
        step
        for document in DOCUMENTS
        for step in inline_commands(document)
        if not step.words[0].endswith("/") and not set("|[") & set(step.text) and "..." not in step.text
    ),
]
# What is said of a command that is only named, without all of its arguments, or that names a file of the reader's.
NAMED_ONLY = (
    "the following arguments are required",
    "expected at least one argument",
    "expected one argument",
    "cannot be read: No such file or directory",
)


def ids(step: Step) -> str:
    return f"{step.document}: {step.text[:60]}"


@pytest.mark.parametrize("step", COMMANDS, ids=ids)
def test_a_command_is_taken(step: Step) -> None:
    said = refusal(step.words)
    assert not said or any(reason in said for reason in (NAMED_ONLY if step.language == "" else NAMED_ONLY[-1:])), said


@pytest.mark.parametrize(
    "text",
    [
        "lmdeploy serve api_server m --sesion-len 5",
        "lmdeploy lite auto_awq m --w-bitz 4",
        "python tools/evaluate.py m --question 3",
        "python tools/profile_throughput.py --no-such-flag",
        "make nothing",
        "make serve PRT=8",
        "pip install 'lmdeploy-triton[nothing]'",
        "pip install lmdeploy",
        "cmake -S . -DTURBOMIND_NOTHING=ON",
    ],
)
def test_an_invented_option_is_noticed(text: str) -> None:
    assert refusal(Step("", "", 0, text).words)
