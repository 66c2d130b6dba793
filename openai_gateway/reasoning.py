"""What a model thinks, told apart from what it answers, in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lmdeploy.serve.client import GenerateChunk
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

    Attributes
    ----------
    token_count : int
        Tokens of the thoughts and their marks, of the engine's chunks that were read: exact where each has one token.
    """

    def __init__(self, marks: ThinkingMarks, *, begins_inside: bool) -> None:
        self._marks = marks
        self._begins_inside = begins_inside
        self._text = ""  # not told yet
        self._advance = self._at_start
        self._has_told = False  # thoughts
        self._generated = 0  # tokens so far
        self._begun = self._ended = False  # the thoughts
        self.token_count = 0

    def feed(self, text: str) -> Told:
        """Take more of the answer."""
        return self._counted(text, is_over=False)

    def feed_chunks(self, chunks: Iterable[GenerateChunk]) -> Told:
        """Take what the engine said next."""
        told = []
        for chunk in chunks:
            self._generated = chunk.generate_token_len
            told.append(self._counted(chunk.text, is_over=False))
        return _sum(told)

    def finish(self) -> Told:
        """Return what the end of the answer decides."""
        return self._counted("", is_over=True)

    def whole(self, text: str) -> Told:
        """Return thoughts and answer of a whole text."""
        return _sum([self.feed(text), self.finish()])

    def whole_of(self, chunks: Iterable[GenerateChunk]) -> Told:
        """Return thoughts and answer of all that the engine said."""
        return _sum([self.feed_chunks(chunks), self.finish()])

    def _counted(self, text: str, is_over: bool) -> Told:
        has_ended = self._ended
        self._text += text
        told = self._advance(is_over)
        if self._begun and not has_ended:
            self.token_count = self._generated
        return told

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
        self._begun = True
        if not self._has_told:
            self._text = self._text.lstrip()
        thoughts, end, rest = self._text.partition(self._marks.end)
        if end:
            self._text, self._ended = rest, True
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


def asked_for_thoughts(
    thinking: Thinking | None, inputs: Mapping[str, Any], *, budget: int | None = None, counts_tokens: bool = True
) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` such that thoughts can be found, and their tokens counted and bounded.

    Parameters
    ----------
    thinking
        Of the model; None: the answer has no thoughts.
    inputs
        The other fields.
    budget
        Tokens that thoughts may take; None, or where it is not known how to end them: any number.
    counts_tokens
        Whether it is told how many they took.
    """
    if thinking is None:
        return {}
    needs_marks = thinking.marks.are_special and inputs["skip_special_tokens"] is None
    fields: dict[str, Any] = {"skip_special_tokens": False} if needs_marks else {}
    if counts_tokens:
        fields["stream"] = True  # a whole answer does not say how many tokens a part has
    if budget is not None and thinking.end_ids:
        begins_inside = thinking.begins_inside(inputs.get("template_options") or {})
        fields |= {
            "thinking_budget": budget,
            "thinking_begin": None if begins_inside else thinking.marks.begin,
            "thinking_end": thinking.marks.end,
            "thinking_end_ids": thinking.end_ids,
            "response_format": None,  # of calls that the model may choose to make
        }
    return fields


def _sum(parts: Iterable[Told]) -> Told:
    reasoning, content = zip(*parts, strict=True)
    return Told("".join(reasoning), "".join(content))


def _beginning_at_end(text: str, mark: str) -> int:
    """Return how many characters at the end may be the mark's beginning."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
