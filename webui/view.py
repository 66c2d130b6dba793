"""How a conversation is shown."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from webui.conversation import Answer, Call, Outcome, Turn

WAITING = "…"


def chat_view(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return a conversation as Gradio shows it: under each answer its figures, or what went wrong."""
    return [message for turn in turns for message in [*_asked(turn), *_answered(turn)]]


def turn_at(turns: Sequence[Turn], index: int) -> int:
    """Return which turn a message of `chat_view` belongs to."""
    for number, turn in enumerate(turns):
        index -= len(_asked(turn)) + len(_answered(turn))
        if index < 0:
            return number
    return len(turns) - 1


def header_html(name: str, state: str, status: str) -> str:
    """Return the title line as HTML; ``state`` is ``ready``, ``away`` or ``waiting``."""
    title = f"<h1>{html.escape(name)}</h1>"
    return f'<div class="title">{title}<span class="status {state}">{html.escape(status)}</span></div>'


def _asked(turn: Turn) -> list[dict[str, Any]]:
    pictures = [{"role": "user", "content": {"path": picture}} for picture in turn.pictures]
    return [*pictures, {"role": "user", "content": turn.question}]


def _answered(turn: Turn) -> list[dict[str, Any]]:
    answer = turn.answer
    shown = []
    if answer.thoughts:
        shown.append(_thoughts(answer))
    if answer.text or (answer.outcome is Outcome.RUNNING and answer.is_empty):
        shown.append({"role": "assistant", "content": answer.text or WAITING})
    shown += [_call(call, answer.outcome is Outcome.RUNNING) for call in answer.calls]
    if answer.error:
        shown.append({"role": "assistant", "content": f'<span class="notice">{html.escape(answer.error)}</span>'})
    if answer.outcome is not Outcome.RUNNING and (answer.figures() or len(turn.answers) > 1):
        shown.append({"role": "assistant", "content": _under(turn)})
    return shown


def _thoughts(answer: Answer) -> dict[str, Any]:
    is_thinking = answer.outcome is Outcome.RUNNING and not (answer.text or answer.calls)
    title = "Thinking" if is_thinking else f"Thought for {answer.thought:.1f} s" if answer.thought else "Thoughts"
    status = "pending" if is_thinking else "done"
    return {"role": "assistant", "content": answer.thoughts, "metadata": {"title": title, "status": status}}


def _call(call: Call, is_running: bool) -> dict[str, Any]:
    try:
        arguments = json.dumps(json.loads(call.arguments), indent=2, ensure_ascii=False)
    except ValueError:  # not all there yet
        arguments = call.arguments
    return {
        "role": "assistant",
        "content": f"```json\n{arguments}\n```",
        "metadata": {"title": f"Calls {call.name}", "status": "pending" if is_running else "done"},
    }


def _under(turn: Turn) -> str:
    """Return the line under an answer."""
    figures = html.escape(" · ".join(turn.answer.figures()))
    if len(turn.answers) == 1:
        return f"<small>{figures}</small>"
    place = f"{turn.shown + 1} of {len(turn.answers)}"
    return f'<small>{figures} <span class="place">{place}</span></small>'
