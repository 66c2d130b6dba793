"""Reasoning parser: separates a model's reasoning from its answer, in text that comes in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from lmdeploy.templates.thinking import ThinkingTags
from openai_gateway.delimiters import beginning_at_end, delimiters_of
from openai_gateway.tools.events import Body, CallBroken, TextFound
from openai_gateway.tools.parser import ToolCallParser


class ReasoningDelta(NamedTuple):
    """A piece of the reasoning, and one of the answer after it."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Splits an answer. However it is cut, the parts add up to the same; blanks around the reasoning are left out.

    Reasoning is at the beginning alone: tags in the answer are text. A call in reasoning that is closed after it is a
    draft, and stays there; in reasoning that is never closed it is a call. So from the tag of a call on all waits.
    """

    def __init__(
        self,
        tags: ThinkingTags,
        *,
        begins_inside: bool,  # the prompt ended with the opening tag
        new_calls: Callable[[], ToolCallParser] | None = None,  # makes a parser of calls; None: there are none
        # Tokens after which the engine ends the reasoning, wherever that is. None: the model alone ends it
        budget: int | None = None,
    ) -> None:
        self._tags = tags
        self._begins_inside = begins_inside
        self._new_calls = new_calls
        self._calls = None if new_calls is None else new_calls()
        self._budget = math.inf if budget is None else budget
        self._tokens = 0
        self._stops = delimiters_of((tags.end, *(() if self._calls is None else self._calls.tags)))
        self._text = ""  # not given yet
        self._read = self._checked = 0  # characters of it that went to the parser; that are no end of the reasoning
        self._call: tuple[Body | None, int] = (None, 0)  # around an end of the reasoning, and how many before it
        self._advance = self._at_start
        self._is_cut = False
        self._has_reported = False  # reasoning
        self._begun = self._ended = False  # the reasoning
        self.token_count = 0  # tokens of the reasoning and its tags: exact where each piece of text has one token
        # Once the response is over: its end from the first call on, in reasoning that was not closed
        self.unclosed = ""

    def feed(self, text: str, tokens: int = 0) -> ReasoningDelta:
        """Take more of the answer, which has so many tokens with it."""
        has_ended = self._ended
        self._text += text
        self._tokens = tokens
        delta = self._advance(False)
        if self._begun and not has_ended:
            self.token_count = tokens
        return delta

    def finish(self, *, is_cut: bool = False) -> ReasoningDelta:
        """Return the remaining events at the end of the answer."""
        self._is_cut = is_cut
        return self._advance(True)

    def whole(self, text: str) -> ReasoningDelta:
        """Return reasoning and answer of a whole text."""
        reasoning, content = zip(self.feed(text), self.finish(), strict=True)
        return ReasoningDelta("".join(reasoning), "".join(content))

    def _at_start(self, is_over: bool) -> ReasoningDelta:
        stripped = self._text.lstrip()
        openings = (self._tags.begin, *self._tags.before_answer_alone)
        if not is_over and any(len(stripped) < len(opening) and opening.startswith(stripped) for opening in openings):
            return ReasoningDelta()
        if stripped.startswith(self._tags.begin):
            self._text = stripped.removeprefix(self._tags.begin)
            self._advance = self._in_reasoning
        elif header := next((opening for opening in openings if stripped.startswith(opening)), ""):
            self._text = stripped.removeprefix(header)
            self._advance = self._in_answer
        else:
            self._advance = self._in_reasoning if self._begins_inside else self._in_answer
        return self._advance(is_over)

    def _in_reasoning(self, is_over: bool) -> ReasoningDelta:
        self._begun = True
        if not self._has_reported:
            self._text = self._text.lstrip()
        found = self._stops.find(self._text)
        if found is not None and found[0] == self._tags.end:
            return self._close(found.start(), is_over)
        size = found.start() if found is not None else len(self._text) if is_over else None
        thought = self._text[: self._stops.may_begin_at(self._text) if size is None else size].rstrip()
        self._text = self._text[len(thought) :]
        self._has_reported = self._has_reported or bool(thought)
        if found is None:
            return ReasoningDelta(thought)
        self._advance = self._in_call
        after = self._advance(is_over)
        return ReasoningDelta(thought + after.reasoning, after.content)

    def _close(self, index: int, is_over: bool) -> ReasoningDelta:
        reasoning, self._text = self._text[:index].rstrip(), self._text[index + len(self._tags.end) :]
        self._ended = True
        self._advance = self._before_answer
        return ReasoningDelta(reasoning, self._advance(is_over).content)

    def _in_call(self, is_over: bool) -> ReasoningDelta:
        """Look for the end of the reasoning, which an argument of a call may hold as well."""
        end = self._tags.end
        while (index := self._text.find(end, self._checked)) >= 0:
            is_argument = self._is_argument(index)
            if is_argument is None and not is_over:
                return ReasoningDelta()
            if is_argument is None and self._is_cut:
                break
            if not is_argument:
                closed = self._close_in_cut_call(index, is_over) if self._tokens >= self._budget else None
                return closed or self._close(index, is_over)
            self._checked = self._read
        self._checked = max(self._checked, len(self._text) - len(end) + 1) if index < 0 else self._checked
        if is_over:
            self.unclosed, self._text = self._text, ""
        return ReasoningDelta()

    def _is_argument(self, index: int) -> bool | None:
        """Return whether an index is within a whole call; None: within one that may become whole."""
        assert self._calls is not None
        if index >= self._read:
            self._calls.feed(self._text[self._read : index])
            self._read, self._call = index, (self._calls.body, self._calls.complete)
        body, complete = self._call
        if body is None:
            return False
        while self._calls.body is body and self._read < len(self._text):
            self._calls.feed(self._text[self._read])
            self._read += 1
        return None if self._calls.body is body else self._calls.complete > complete

    def _close_in_cut_call(self, index: int, is_over: bool) -> ReasoningDelta | None:
        """Close the reasoning before a call that goes on behind the end as if it were not there; None: none does."""
        assert self._calls is not None
        assert self._new_calls is not None
        begin = max(self._text.rfind(tag, 0, index) for tag in self._calls.tags)
        after = self._text[index + len(self._tags.end) :].lstrip().removeprefix(self._tags.before_answer)
        joined, reader = self._text[begin:index].rstrip("\n") + after, self._new_calls()
        found = reader.feed(joined)
        if any(isinstance(event, CallBroken) for event in found) or isinstance(next(iter(found), None), TextFound):
            return None
        if not reader.complete:
            return None if is_over else ReasoningDelta()  # it depends on what comes
        reasoning, self._text = self._text[:begin].rstrip(), joined
        self._ended = True
        self._advance = self._in_answer
        return ReasoningDelta(reasoning, self._advance(is_over).content)

    def _before_answer(self, is_over: bool) -> ReasoningDelta:
        self._text = self._text.lstrip()
        header = self._tags.before_answer
        if not is_over and (not self._text or (len(self._text) < len(header) and header.startswith(self._text))):
            return ReasoningDelta()
        if header and self._text.startswith(header):
            self._text = self._text.removeprefix(header)
        self._advance = self._in_answer
        return self._advance(is_over)

    def _in_answer(self, is_over: bool) -> ReasoningDelta:
        footer = self._tags.after_answer
        if not footer:
            reported, self._text = self._text, ""
            return ReasoningDelta(content=reported)
        if is_over:
            reported, self._text = self._text, ""
            ended = reported.rstrip().removesuffix(footer)
            return ReasoningDelta(content=ended.rstrip() if ended != reported.rstrip() else reported)
        # A text that may be the tag after the answer waits, with the blanks around it.
        kept = self._text.rstrip()
        kept = kept[: len(kept) - (len(footer) if kept.endswith(footer) else beginning_at_end(kept, footer))].rstrip()
        self._text = self._text[len(kept) :]
        return ReasoningDelta(content=kept)


class InlineReasoning(ReasoningParser):
    """Leaves reasoning in the content, after the opening tag that the prompt ended with.

    MiniMax M2 is given its reasoning back as it wrote it, so vLLM's ``minimax_m2_append_think`` does this.
    """

    def _at_start(self, is_over: bool) -> ReasoningDelta:
        if not self._text and not is_over:
            return ReasoningDelta()
        if self._begins_inside:
            self._text = self._tags.begin + self._text
        self._advance = self._in_answer
        return self._advance(is_over)
