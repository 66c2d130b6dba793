"""Tools for templates that have no place for them: told in words, called in a notation that many models have seen."""

from collections.abc import Sequence

from lmdeploy.templates.calls import Tool, as_json, parsed_arguments, results_as_user_turns
from lmdeploy.templates.conversation import Message, Parts
from lmdeploy.templates.notations import GENERIC


def with_generic_tools(
    messages: Sequence[Message], tools: Sequence[Tool] | None, *, default_system: str = "", takes_system: bool = True
) -> list[Message]:
    """Return a conversation with nothing but texts: tools, calls and results are written in the generic notation.

    Parameters
    ----------
    messages
        As ``read_messages`` returns them.
    tools
        OpenAI tool descriptions; none: calls and results alone are rewritten.
    default_system
        The system prompt of conversations that bring none.
    takes_system
        Whether the template writes system prompts; else tools begin the user's first turn.
    """
    shown = [_in_words(message) for message in parsed_arguments(list(messages))]
    turns = _with_answered_results(results_as_user_turns(shown))
    if not tools:
        return turns
    told = _description(tools)
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": _joined(turns[0]["content"], told)}, *turns[1:]]
    if takes_system:
        return [{"role": "system", "content": _joined(default_system, told)}, *turns]
    if turns and turns[0]["role"] == "user":
        return [{**turns[0], "content": _joined(told, turns[0]["content"])}, *turns[1:]]
    return [{"role": "user", "content": told}, *turns]


def _description(tools: Sequence[Tool]) -> str:
    functions = "\n".join(as_json(tool.get("function", tool)) for tool in tools)
    opening, closing = GENERIC.opening, GENERIC.closing
    return (
        f"You can call functions. Here they are, a JSON object a line:\n<tools>\n{functions}\n</tools>\n"
        "To call one, write its name and its arguments like this, once for each call, and then stop:\n"
        f'{opening}\n{{"name": "the function\'s name", "arguments": {{"an argument": "its value"}}}}\n{closing}\n'
        "What it returns is told to you between <tool_response> and </tool_response>. Where no function is of use, "
        "answer in words."
    )


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
