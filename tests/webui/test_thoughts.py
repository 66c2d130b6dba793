"""Thoughts in the text of an answer."""

import pytest

from webui.thoughts import ThoughtSplitter


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
def test_thoughts_are_told_apart_wherever_the_text_is_cut(text: str, parts: tuple[str, str]) -> None:
    for cut in range(len(text) + 1):
        splitter = ThoughtSplitter()
        told = [splitter.feed(text[:cut]), splitter.feed(text[cut:], is_over=True)]
        assert ("".join(t for t, _ in told), "".join(t for _, t in told)) == parts
