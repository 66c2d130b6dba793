"""Tools for templates that have no place for them: told in words, called in a notation that many models have seen."""

from collections.abc import Sequence

from lmdeploy.templates.calls import Tool, as_json, parsed_arguments, results_as_user_turns
from lmdeploy.templates.conversation import Message, Parts
from lmdeploy.templates.notations import GENERIC, HeadedArguments, MarkedObjects


def in_generic_notation(messages: list[Message]) -> list[Message]:
    """Return messages with nothing but texts: calls and results are written in the generic notation."""
    shown = [_in_words(message) for message in parsed_arguments(messages)]
    return _with_answered_results(results_as_user_turns(shown))


def description(tools: Sequence[Tool], notation: MarkedObjects | HeadedArguments) -> str:
    """Return what a model is told of tools, and of how calls are written."""
    functions = "\n".join(as_json(tool.get("function", tool)) for tool in tools)
    example = {"function": {"name": "the function's name", "arguments": {"an argument": "its value"}}}
    results = "What it returns is told to you between <tool_response> and </tool_response>. "
    return (
        f"You can call functions. Here they are, a JSON object a line:\n<tools>\n{functions}\n</tools>\n"
        "To call one, write its name and its arguments like this, once for each call, and then stop:\n"
        f"{notation.write([example])}\n{results if notation is GENERIC else ''}"
        "Where no function is of use, answer in words."
    )


def with_description(messages: list[Message], told: str, default_system: str, takes_system: bool) -> list[Message]:
    """Return a conversation with what the model is told in the system prompt.

    Parameters
    ----------
    messages
        As ``read_messages`` returns them.
    told
        The description.
    default_system
        The system prompt of conversations that bring none.
    takes_system
        Whether the template writes system prompts; else the description begins the user's first turn.
    """
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": _joined(first["content"], told)}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": _joined(default_system, told)}, *messages]
    if first["role"] == "user":
        return [{**first, "content": _joined(told, first["content"])}, *messages[1:]]
    return [{"role": "user", "content": told}, *messages]


def _in_words(message: Message) -> Message:
    """Return a message with its calls as text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": _joined(message["content"], GENERIC.write(calls), "\n")}


def _with_answered_results(messages: list[Message]) -> list[Message]:
    """Return messages without two turns of the user in a row where the first tells what tools returned."""
    turns: list[Message] = []
    is_after_result = False
    for message in messages:
        turn = {key: value for key, value in message.items() if key != "is_response"}
        if is_after_result and turn["role"] == "user":
            turns[-1] = {**turn, "content": _joined(turns[-1]["content"], turn["content"])}
        else:
            turns.append(turn)
        is_after_result = "is_response" in message
    return turns


def _joined(first: str | Parts, second: str | Parts, gap: str = "\n\n") -> str | Parts:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{gap}{second}" if first and second else first or second
    return Parts([*_as_parts(first), *_as_parts(second)])


def _as_parts(content: str | Parts) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
