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
    return [message for number, turn in enumerate(turns) for message in [*_asked(turn), *_answered(turn, number)]]


def turn_at(turns: Sequence[Turn], index: int) -> int:
    """Return which turn a message of `chat_view` belongs to."""
    for number, turn in enumerate(turns):
        index -= len(_asked(turn)) + len(_answered(turn, number))
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


def _answered(turn: Turn, number: int) -> list[dict[str, Any]]:
    answer = turn.answer
    shown = []
    if turn.is_compared and len(turn.answers) > 1 and answer.outcome is not Outcome.RUNNING:
        beside = {"role": "assistant", "content": _beside(turn, number)}
        return [beside, {"role": "assistant", "content": _under(turn, number)}]
    if answer.thoughts:
        shown.append(_thoughts(answer))
    if answer.text or (answer.outcome is Outcome.RUNNING and answer.is_empty):
        shown.append({"role": "assistant", "content": answer.text or WAITING})
    shown += [_call(call, answer.outcome is Outcome.RUNNING) for call in answer.calls]
    if answer.error:
        shown.append({"role": "assistant", "content": f'<span class="notice">{html.escape(answer.error)}</span>'})
    if answer.outcome is not Outcome.RUNNING and (answer.figures() or len(turn.answers) > 1):
        shown.append({"role": "assistant", "content": _under(turn, number)})
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


def _under(turn: Turn, number: int) -> str:
    """Return the line under an answer; `browser.js` hears of its buttons."""
    figures = html.escape(" · ".join(turn.answer.figures()))
    count = len(turn.answers)
    if count == 1:
        return f"<small>{figures}</small>"

    place = f"{turn.shown + 1} of {count}"
    steps = _button(number, -1, "‹", "The answer before"), _button(number, 1, "›", "The next answer")
    all_of_them = _button(number, 0, "◫", "One of them" if turn.is_compared else "All beside each other")
    return f'<small><span class="place">{steps[0]}{place}{steps[1]}{all_of_them}</span>{figures}</small>'


def _button(number: int, step: int, mark: str, label: str) -> str:
    """Return a button that shows the answer so many behind the shown one; 0: all of them, or the shown one alone."""
    return f'<button class="turn-{number} by{step}" title="{label}">{mark}</button>'  # Gradio leaves few attributes


def _beside(turn: Turn, number: int) -> str:
    """Return all answers of a turn as columns, each under a button that takes it."""
    columns = []
    for index, answer in enumerate(turn.answers):
        taken = " taken" if index == turn.shown else ""
        button = _button(number, index - turn.shown, f"Answer {index + 1}", "Go on with this one")
        text = answer.text or "\n\n".join(f"Calls {call.name}" for call in answer.calls) or html.escape(answer.error)
        text += "\n```" * (text.count("```") % 2)  # an answer that was cut leaves a block open
        columns.append(f'<div class="column{taken}"><span class="place">{button}</span>\n\n{text}\n\n</div>')
    return f'<div class="beside">\n{"".join(columns)}\n</div>'
