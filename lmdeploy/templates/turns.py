"""Conversations brought into the turns that a template takes: one system prompt, then users and assistants in turn.

Clients send system messages within a conversation, and several messages of the user in a row, which templates of some
families refuse or leave out.
"""

from lmdeploy.templates.conversation import Message, Parts


def in_turns(messages: list[Message], *, takes_system: bool = True, joins_results: bool = False) -> list[Message]:
    """Return a conversation in which no later message is a system prompt, and messages of one side in a row are one.

    ``messages``: as ``read_messages`` returns them. ``takes_system``: whether the system prompts at the beginning stay
    one; else they begin the user's first turn. ``joins_results``: what the user says after a tool's result becomes part
    of that result: to some templates it is a second turn.
    """
    turns: list[Message] = []
    for message in messages:
        is_first = all(turn["role"] == "system" for turn in turns)
        if message["role"] == "system" and not (takes_system and is_first):
            message = {"role": "user", "content": message["content"]}
        if turns and _belongs(message, turns[-1], joins_results):
            turns[-1] = {**turns[-1], **message, "role": turns[-1]["role"]} | {
                "content": joined(turns[-1]["content"], message["content"])
            }
        else:
            turns.append(message)
    return turns


def joined(first: str | Parts, second: str | Parts, gap: str = "\n\n") -> str | Parts:
    """Return two contents as one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{gap}{second}" if first and second else first or second
    return Parts([*_as_parts(first), *_as_parts(second)])


def _belongs(message: Message, before: Message, joins_results: bool) -> bool:
    role = message["role"]
    if role == before["role"]:
        return role in ("system", "user") or (role == "assistant" and not before.get("tool_calls"))
    return joins_results and role == "user" and before["role"] == "tool"


def _as_parts(content: str | Parts) -> Parts:
    return Parts([{"type": "text", "text": content}] if content else []) if isinstance(content, str) else content
