"""What a model thinks, told apart from what it answers, in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lmdeploy.templates.thinking import Thinking, ThinkingMarks


class Told(NamedTuple):
    """A piece of the thoughts, and one of the answer behind it."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Splits an answer. However it is cut, the parts add up to the same; blanks around the thoughts are left out.

    Thoughts stand at the beginning alone: marks in the answer are text.

    Parameters
    ----------
    marks : ThinkingMarks
        The model's.
    begins_inside : bool
        The prompt ended with the opening mark.
    """

    def __init__(self, marks: ThinkingMarks, *, begins_inside: bool) -> None:
        self._marks = marks
        self._begins_inside = begins_inside
        self._text = ""  # not told yet
        self._advance = self._at_start
        self._has_told = False  # thoughts

    def feed(self, text: str) -> Told:
        """Take more of the answer."""
        self._text += text
        return self._advance(is_over=False)

    def finish(self) -> Told:
        """Return what the end of the answer decides."""
        return self._advance(is_over=True)

    def whole(self, text: str) -> Told:
        """Return thoughts and answer of a whole text."""
        first, last = self.feed(text), self.finish()
        return Told(first.reasoning + last.reasoning, first.content + last.content)

    def _at_start(self, is_over: bool) -> Told:
        stripped = self._text.lstrip()
        openings = (self._marks.begin, *self._marks.before_answer_alone)
        if not is_over and any(len(stripped) < len(mark) and mark.startswith(stripped) for mark in openings):
            return Told()
        if stripped.startswith(self._marks.begin):
            self._text = stripped.removeprefix(self._marks.begin)
            self._advance = self._in_thoughts
        elif header := next((mark for mark in openings if stripped.startswith(mark)), ""):
            self._text = stripped.removeprefix(header)
            self._advance = self._in_answer
        else:
            self._advance = self._in_thoughts if self._begins_inside else self._in_answer
        return self._advance(is_over)

    def _in_thoughts(self, is_over: bool) -> Told:
        if not self._has_told:
            self._text = self._text.lstrip()
        thoughts, end, rest = self._text.partition(self._marks.end)
        if end:
            self._text = rest
            self._advance = self._before_answer
            return Told(thoughts.rstrip(), self._advance(is_over).content)
        kept = 0 if is_over else _beginning_at_end(self._text, self._marks.end)
        told = self._text[: len(self._text) - kept].rstrip()
        self._text = self._text[len(told) :]
        self._has_told = self._has_told or bool(told)
        return Told(told)

    def _before_answer(self, is_over: bool) -> Told:
        self._text = self._text.lstrip()
        header = self._marks.before_answer
        if not is_over and (not self._text or (len(self._text) < len(header) and header.startswith(self._text))):
            return Told()
        if header and self._text.startswith(header):
            self._text = self._text.removeprefix(header)
        self._advance = self._in_answer
        return self._advance(is_over)

    def _in_answer(self, is_over: bool) -> Told:
        told, self._text = self._text, ""
        return Told(content=told)


def reasoning_parser(thinking: Thinking | None, template_options: Mapping[str, Any]) -> ReasoningParser | None:
    """Return a parser for an answer to a prompt that was made with these variables; None: it has no thoughts."""
    if thinking is None:
        return None
    return ReasoningParser(thinking.marks, begins_inside=thinking.begins_inside(template_options))


def asked_for_marks(thinking: Thinking | None, skip_special_tokens: bool | None) -> bool | None:
    """Return ``skip_special_tokens`` such that the marks come, where a request leaves it open."""
    if thinking is not None and thinking.marks.are_special and skip_special_tokens is None:
        return False
    return skip_special_tokens


def _beginning_at_end(text: str, mark: str) -> int:
    """Return how many characters at the end may be the mark's beginning."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
