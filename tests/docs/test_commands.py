"""Every command that a document writes is one that the programs' own parsers take (`checking.py`), run here or not."""

from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, Step, inline_commands, name_of, steps
from tests.docs.checking import rejection

# Reasons for a command that is only named, without all of its arguments, or that names a file of the reader's.
NAMED_ONLY = (
    "the following arguments are required",
    "expected at least one argument",
    "expected one argument",
    "cannot be read: No such file or directory",
)


def is_whole(step: Step) -> bool:
    """Tell whether what stands in a line of text is a command, and no pattern of several."""
    return not step.words[0].endswith("/") and not set("|[") & set(step.text) and "..." not in step.text


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_are_taken(document: Path) -> None:
    written = [step for step in steps(document) if step.language == "bash"]
    rejected = {}
    for step in [*written, *filter(is_whole, inline_commands(document))]:
        why = rejection(step.words)
        if why and not any(reason in why for reason in (NAMED_ONLY if step.language == "" else NAMED_ONLY[-1:])):
            rejected[step.text] = why
    assert not rejected


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
    assert rejection(Step("", "", 0, text).words)
