"""Separation of reasoning from the answer, where no gateway did it."""

from __future__ import annotations

BEGIN, END = "<think>", "</think>"


class ReasoningSplitter:
    """Splits ``<think>reasoning</think>answer``, which comes in pieces, as Qwen3, DeepSeek-R1 and others write it."""

    def __init__(self) -> None:
        self._pending = ""  # may be the beginning of a tag
        self._advance = self._at_start

    def feed(self, text: str, is_over: bool = False) -> tuple[str, str]:
        """Take more of the answer.

        Returns what is new of reasoning and of the answer.
        """
        self._pending += text
        return self._advance(is_over)

    def _at_start(self, is_over: bool) -> tuple[str, str]:
        start = self._pending.lstrip()
        if not is_over and BEGIN.startswith(start):
            return "", ""
        if start.startswith(BEGIN):
            self._pending, self._advance = start.removeprefix(BEGIN), self._in_reasoning
        else:
            self._advance = self._in_answer
        return self._advance(is_over)

    def _in_reasoning(self, is_over: bool) -> tuple[str, str]:
        reasoning, tag, rest = self._pending.partition(END)
        if tag:
            self._pending, self._advance = rest, self._before_answer
            return reasoning, self._advance(is_over)[1]
        kept = 0 if is_over else max(size for size in range(len(END)) if reasoning.endswith(END[:size]))
        self._pending = reasoning[len(reasoning) - kept :]
        return reasoning[: len(reasoning) - kept], ""

    def _before_answer(self, is_over: bool) -> tuple[str, str]:
        self._pending = self._pending.lstrip()
        if not self._pending:
            return "", ""
        self._advance = self._in_answer
        return self._advance(is_over)

    def _in_answer(self, is_over: bool) -> tuple[str, str]:
        text, self._pending = self._pending, ""
        return "", text
