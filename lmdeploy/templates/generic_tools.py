"""Tools for templates without tool support: described in words, called in a format that many models know."""

from collections.abc import Sequence

from lmdeploy.templates.calls import Tool, as_json, parsed_arguments, results_as_user_turns
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.tool_call_formats import GENERIC, HeadedArguments, MarkedObjects
from lmdeploy.templates.turns import joined


def in_generic_format(messages: list[Message]) -> list[Message]:
    """Return messages with nothing but texts: calls and results are written in the generic format."""
    shown = [_in_words(message) for message in parsed_arguments(messages)]
    return _with_answered_results(results_as_user_turns(shown))


def description(tools: Sequence[Tool], format: MarkedObjects | HeadedArguments) -> str:
    """Return the text that describes tools to a model, and how to write calls."""
    functions = "\n".join(as_json(tool.get("function", tool)) for tool in tools)
    example = {"function": {"name": "the function's name", "arguments": {"an argument": "its value"}}}
    results = "Its result comes to you between <tool_response> and </tool_response>. "
    return (
        f"You can call functions. Here they are, a JSON object a line:\n<tools>\n{functions}\n</tools>\n"
        "To call one, write its name and its arguments like this, once for each call, and then stop:\n"
        f"{format.write([example])}\n{results if format is GENERIC else ''}"
        "Where no function is of use, answer in words."
    )


def with_description(messages: list[Message], text: str, default_system: str, takes_system: bool) -> list[Message]:
    """Return a conversation with a description in the system prompt.

    ``messages``: as ``read_messages`` returns them. ``default_system``: the system prompt of conversations without one.
    ``takes_system``: whether the template writes system prompts; else the description begins the user's first turn.
    """
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": joined(first["content"], text)}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": joined(default_system, text)}, *messages]
    if first["role"] == "user":
        return [{**first, "content": joined(text, first["content"])}, *messages[1:]]
    return [{"role": "user", "content": text}, *messages]


def _in_words(message: Message) -> Message:
    """Return a message with its calls as text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": joined(message["content"], GENERIC.write(calls), "\n")}


def _with_answered_results(messages: list[Message]) -> list[Message]:
    """Return messages without two turns of the user in a row where the first says what tools returned."""
    turns: list[Message] = []
    is_after_result = False
    for message in messages:
        turn = {key: value for key, value in message.items() if key != "is_response"}
        if is_after_result and turn["role"] == "user":
            turns[-1] = {**turn, "content": joined(turns[-1]["content"], turn["content"])}
        else:
            turns.append(turn)
        is_after_result = "is_response" in message
    return turns
