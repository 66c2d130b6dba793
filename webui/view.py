"""Rendering of a conversation."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from webui.conversation import Call, Outcome, Response, Turn
from webui.markdown import markdown, verbatim

WAITING = "…"
CONTINUE = 9999
"""Of `_button`, in place of a step."""


def chat_view(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return a conversation as Gradio shows it: under each response its metrics, or what went wrong."""
    return [message for i, turn in enumerate(turns) for message in [*_question(turn), *_shown_response(turn, i)]]


def turn_at(turns: Sequence[Turn], index: int) -> int:
    """Return which turn a message of `chat_view` belongs to."""
    for number, turn in enumerate(turns):
        index -= len(_question(turn)) + len(_shown_response(turn, number))
        if index < 0:
            return number
    return len(turns) - 1


def header_html(name: str, state: str, status: str) -> str:
    """Return the title line as HTML; ``state`` is ``ready``, ``away`` or ``waiting``."""
    title = f"<h1>{html.escape(name)}</h1>"
    return f'<div class="title">{title}<span class="status {state}">{html.escape(status)}</span></div>'


def _question(turn: Turn) -> list[dict[str, Any]]:
    images = [{"role": "user", "content": {"path": image}} for image in turn.images]
    return [*images, {"role": "user", "content": verbatim(turn.question)}]


def _shown_response(turn: Turn, number: int) -> list[dict[str, Any]]:
    response = turn.response
    shown = []
    if turn.is_compared and len(turn.responses) > 1 and response.outcome is not Outcome.RUNNING:
        alongside = {"role": "assistant", "content": _alongside(turn, number)}
        return [alongside, {"role": "assistant", "content": _under(turn, number)}]
    if response.reasoning:
        shown.append(_reasoning(response))
    if response.text or (response.outcome is Outcome.RUNNING and response.is_empty):
        shown.append({"role": "assistant", "content": markdown(response.text) or WAITING})
    shown += [_call(call, response.outcome is Outcome.RUNNING) for call in response.calls]
    if response.error:
        shown.append({"role": "assistant", "content": f'<span class="notice">{verbatim(response.error)}</span>'})
    if response.outcome is not Outcome.RUNNING and (response.metrics() or len(turn.responses) > 1):
        shown.append({"role": "assistant", "content": _under(turn, number)})
    return shown


def _reasoning(response: Response) -> dict[str, Any]:
    is_thinking = response.outcome is Outcome.RUNNING and not (response.text or response.calls)
    title = "Thinking" if is_thinking else f"Thought for {response.thought:.1f} s" if response.thought else "Reasoning"
    status = "pending" if is_thinking else "done"
    return {
        "role": "assistant",
        "content": markdown(response.reasoning),
        "metadata": {"title": title, "status": status},
    }


def _call(call: Call, is_running: bool) -> dict[str, Any]:
    try:
        arguments = json.dumps(json.loads(call.arguments), indent=2, ensure_ascii=False)
    except ValueError:  # not all there yet
        arguments = call.arguments
    return {
        "role": "assistant",
        "content": markdown(f"```json\n{arguments}\n```"),
        "metadata": {"title": f"Calls {verbatim(call.name)}", "status": "pending" if is_running else "done"},
    }


def _under(turn: Turn, number: int) -> str:
    """Return the line under a response; `browser.js` hears of its buttons."""
    metrics = html.escape(" · ".join(turn.response.metrics()))
    if turn.response.may_continue:
        metrics += f' <span class="place">{_button(number, CONTINUE, "Continue", "Write on")}</span>'
    count = len(turn.responses)
    if count == 1:
        return f"<small>{metrics}</small>"

    position = f"{turn.shown + 1} of {count}"
    steps = _button(number, -1, "‹", "Previous response"), _button(number, 1, "›", "Next response")
    all_of_them = _button(number, 0, "◫", "One at a time" if turn.is_compared else "Side by side")
    return f'<small><span class="place">{steps[0]}{position}{steps[1]}{all_of_them}</span>{metrics}</small>'


def _button(number: int, step: int, symbol: str, label: str) -> str:
    """Return a button that shows the response this many after the shown one; 0: all of them, or the shown one alone."""
    return f'<button class="turn-{number} by{step}" title="{label}">{symbol}</button>'  # Gradio leaves few attributes


def _alongside(turn: Turn, number: int) -> str:
    """Return all responses of a turn as columns, each under a button that takes it."""
    columns = []
    for index, response in enumerate(turn.responses):
        taken = " taken" if index == turn.shown else ""
        button = _button(number, index - turn.shown, f"Response {index + 1}", "Continue with this response")
        text = (
            markdown(response.text)
            or "\n\n".join(f"Calls {verbatim(call.name)}" for call in response.calls)
            or verbatim(response.error)
        )
        text += "\n```" * (text.count("```") % 2)  # a response that was cut leaves a block open
        columns.append(f'<div class="column{taken}"><span class="place">{button}</span>\n\n{text}\n\n</div>')
    return f'<div class="alongside">\n{"".join(columns)}\n</div>'
