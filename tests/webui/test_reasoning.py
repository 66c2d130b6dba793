"""Reasoning in the text of a response."""

import pytest

from webui.reasoning import ReasoningSplitter


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>\nHm, 1 < 2.</think>\n\nYes <think>", ("\nHm, 1 < 2.", "Yes <think>")),
        ("Plain </think>", ("", "Plain </think>")),
        ("<thin", ("", "<thin")),
        ("<think>cut off </thi", ("cut off </thi", "")),
        ("<think></think>", ("", "")),
    ],
)
def test_reasoning_is_separate_wherever_the_text_is_cut(text: str, parts: tuple[str, str]) -> None:
    for cut in range(len(text) + 1):
        splitter = ReasoningSplitter()
        reported = [splitter.feed(text[:cut]), splitter.feed(text[cut:], is_over=True)]
        assert ("".join(t for t, _ in reported), "".join(t for _, t in reported)) == parts
