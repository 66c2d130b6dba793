"""What a model thinks, distinguished from what it answers, in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lmdeploy.serve.client import GenerateChunk
from lmdeploy.templates.thinking import Thinking, ThinkingMarks
from openai_gateway.reasoning_grammar import after_reasoning
from openai_gateway.text_marks import beginning_at_end


class ReasoningDelta(NamedTuple):
    """A piece of the reasoning, and one of the answer after it."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Splits an answer. However it is cut, the parts add up to the same; blanks around the reasoning are left out.

    Reasoning are at the beginning alone: marks in the answer are text.

    Parameters
    ----------
    marks : ThinkingMarks
        The model's.
    begins_inside : bool
        The prompt ended with the opening mark.

    Attributes
    ----------
    token_count : int
        Tokens of the reasoning and their marks, of the engine's chunks that were read: exact where each has one token.
    """

    def __init__(self, marks: ThinkingMarks, *, begins_inside: bool) -> None:
        self._marks = marks
        self._begins_inside = begins_inside
        self._text = ""  # not given yet
        self._advance = self._at_start
        self._has_reported = False  # reasoning
        self._generated = 0  # tokens so far
        self._begun = self._ended = False  # the reasoning
        self.token_count = 0

    def feed(self, text: str) -> ReasoningDelta:
        """Take more of the answer."""
        return self._counted(text, is_over=False)

    def feed_chunks(self, chunks: Iterable[GenerateChunk]) -> ReasoningDelta:
        """Take what the engine said next."""
        reported = []
        for chunk in chunks:
            self._generated = chunk.generate_token_len
            reported.append(self._counted(chunk.text, is_over=False))
        return _sum(reported)

    def finish(self) -> ReasoningDelta:
        """Return what the end of the answer decides."""
        return self._counted("", is_over=True)

    def whole(self, text: str) -> ReasoningDelta:
        """Return reasoning and answer of a whole text."""
        return _sum([self.feed(text), self.finish()])

    def whole_of(self, chunks: Iterable[GenerateChunk]) -> ReasoningDelta:
        """Return reasoning and answer of all that the engine said."""
        return _sum([self.feed_chunks(chunks), self.finish()])

    def _counted(self, text: str, is_over: bool) -> ReasoningDelta:
        has_ended = self._ended
        self._text += text
        reported = self._advance(is_over)
        if self._begun and not has_ended:
            self.token_count = self._generated
        return reported

    def _at_start(self, is_over: bool) -> ReasoningDelta:
        stripped = self._text.lstrip()
        openings = (self._marks.begin, *self._marks.before_answer_alone)
        if not is_over and any(len(stripped) < len(mark) and mark.startswith(stripped) for mark in openings):
            return ReasoningDelta()
        if stripped.startswith(self._marks.begin):
            self._text = stripped.removeprefix(self._marks.begin)
            self._advance = self._in_reasoning
        elif header := next((mark for mark in openings if stripped.startswith(mark)), ""):
            self._text = stripped.removeprefix(header)
            self._advance = self._in_answer
        else:
            self._advance = self._in_reasoning if self._begins_inside else self._in_answer
        return self._advance(is_over)

    def _in_reasoning(self, is_over: bool) -> ReasoningDelta:
        self._begun = True
        if not self._has_reported:
            self._text = self._text.lstrip()
        marks = (self._marks.end, *self._marks.also_ends_before)
        ends = [(place, mark) for mark in marks if (place := self._text.find(mark)) >= 0]
        if ends:
            place, _ = min(ends)
            reasoning, rest = self._text[:place], self._text[place:]
            self._text, self._ended = rest.removeprefix(self._marks.end), True
            self._advance = self._before_answer
            return ReasoningDelta(reasoning.rstrip(), self._advance(is_over).content)
        kept = 0 if is_over else max(beginning_at_end(self._text, mark) for mark in marks)
        reported = self._text[: len(self._text) - kept].rstrip()
        self._text = self._text[len(reported) :]
        self._has_reported = self._has_reported or bool(reported)
        return ReasoningDelta(reported)

    def _before_answer(self, is_over: bool) -> ReasoningDelta:
        self._text = self._text.lstrip()
        header = self._marks.before_answer
        if not is_over and (not self._text or (len(self._text) < len(header) and header.startswith(self._text))):
            return ReasoningDelta()
        if header and self._text.startswith(header):
            self._text = self._text.removeprefix(header)
        self._advance = self._in_answer
        return self._advance(is_over)

    def _in_answer(self, is_over: bool) -> ReasoningDelta:
        footer = self._marks.after_answer
        if not footer:
            reported, self._text = self._text, ""
            return ReasoningDelta(content=reported)
        if is_over:
            reported, self._text = self._text, ""
            ended = reported.rstrip().removesuffix(footer)
            return ReasoningDelta(content=ended.rstrip() if ended != reported.rstrip() else reported)
        # What may be the mark after the answer waits, with the blanks around it.
        kept = self._text.rstrip()
        kept = kept[: len(kept) - (len(footer) if kept.endswith(footer) else beginning_at_end(kept, footer))].rstrip()
        self._text = self._text[len(kept) :]
        return ReasoningDelta(content=kept)


class InlineReasoning(ReasoningParser):
    """Leaves reasoning in the content, after the opening mark that the prompt ended with.

    MiniMax M2 is given its reasoning back as it wrote it, so vLLM's ``minimax_m2_append_think`` does this.
    """

    def _at_start(self, is_over: bool) -> ReasoningDelta:
        if not self._text and not is_over:
            return ReasoningDelta()
        if self._begins_inside:
            self._text = self._marks.begin + self._text
        self._advance = self._in_answer
        return self._advance(is_over)


def reasoning_parser(
    thinking: Thinking | None, template_options: Mapping[str, Any], messages: Sequence[Mapping[str, Any]] = ()
) -> ReasoningParser | None:
    """Return a parser for a response to a prompt that was made with these variables; None: it has no reasoning."""
    if thinking is None:
        return None
    begins_inside = thinking.begins_inside(template_options, after_tool=ends_with_result(messages))
    parser = InlineReasoning if thinking.in_content else ReasoningParser
    return parser(thinking.marks, begins_inside=begins_inside)


def ends_with_result(messages: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether a conversation ends with what a tool returned."""
    return messages is not None and len(messages) > 0 and messages[-1].get("role") == "tool"


def requests_reasoning(
    thinking: Thinking | None,
    inputs: Mapping[str, Any],
    *,
    is_call: bool = False,
    budget: int | None = None,
    counts_tokens: bool = True,
) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` such that reasoning can be found, and their tokens counted and bounded.

    Parameters
    ----------
    thinking
        Of the model; None: the answer has no reasoning.
    inputs
        The other fields.
    is_call
        The response format among them is that of calls.
    budget
        Tokens that reasoning may take; None, or where it is not known how to end them: any number.
    counts_tokens
        Whether their number is reported.
    """
    if thinking is None:
        return {}
    needs_marks = thinking.marks.are_special and inputs["skip_special_tokens"] is None
    fields: dict[str, Any] = {"skip_special_tokens": False} if needs_marks else {}
    if counts_tokens:
        fields["stream"] = True  # a whole answer does not say how many tokens a part has
    after_tool = ends_with_result(inputs.get("messages"))
    begins_inside = thinking.begins_inside(inputs.get("template_options") or {}, after_tool=after_tool)
    if (wanted := inputs.get("response_format")) is not None:
        fields["response_format"] = after_reasoning(
            wanted, thinking.marks, begins_inside=begins_inside, is_call=is_call, budget=budget
        )
    elif budget is not None and thinking.end_ids:
        fields |= {
            "thinking_budget": budget,
            "thinking_begin": None if begins_inside else thinking.marks.begin,
            "thinking_end": thinking.marks.end,
            "thinking_end_ids": thinking.end_ids,
        }
    return fields


def _sum(parts: Iterable[ReasoningDelta]) -> ReasoningDelta:
    reasoning, content = zip(*parts, strict=True)
    return ReasoningDelta("".join(reasoning), "".join(content))
