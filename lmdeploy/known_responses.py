"""Token ids of earlier responses in a conversation, so that a later turn shares the former's cached prefix.

A model may write a text in other tokens than the tokenizer would. A prompt that is made of the text alone then differs
from what the engine has cached, from that answer on.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmdeploy.templates.conversation import Message
from lmdeploy.tokenizer import Tokenizer

FIELD = "token_ids"
"""Of an assistant's message: the tokens that its content was written in."""

_MAX = 2**31 - 1
_NOT_REPORTED = 8  # tokens at a response's end that its text has nothing of: what ends a turn, half of a character


class KnownResponse(NamedTuple):
    """Where a response is in a prompt's text, and its tokens."""

    begin: int
    end: int
    ids: list[int]


def take_tokens(messages: object) -> tuple[Any, dict[int, list[int]]]:
    """Return messages without the tokens of responses, and these by the message's place.

    Raises `ValueError`: some are no list of tokens.
    """
    if not isinstance(messages, list):
        return messages, {}
    known: dict[int, list[int]] = {}
    for number, message in enumerate(messages):
        if isinstance(message, dict) and (ids := message.get(FIELD)) is not None:
            if not isinstance(ids, list) or not all(type(token) is int and 0 <= token <= _MAX for token in ids):
                raise ValueError(f"messages[{number}].{FIELD} must be a list of tokens, got {ids!r:.80}")
            known[number] = ids
    texts = [
        {key: message[key] for key in message if key != FIELD} if n in known else message
        for n, message in enumerate(messages)
    ]
    return texts, known


def find_responses(
    text: str,
    messages: Sequence[Message],
    known: dict[int, list[int]],
    tokenizer: Tokenizer,
    render: Callable[[list[Message]], str],
) -> list[KnownResponse]:
    """Return the responses whose tokens can be in a prompt as they are; the others are text as any other.

    Those can that write their message's content, where a token of its own follows, as one does that ends a turn: there
    the tokenizer cuts the text anyway. ``text``: what ``render`` makes of ``messages``. ``known``: tokens by the
    message's place.
    """
    written = {
        number: ids
        for number, ids_sent in known.items()
        if messages[number].get("role") == "assistant" and (ids := _writing(messages[number], ids_sent, tokenizer))
    }
    if not written:
        return []
    # No characters, so that no text has a reason to hold them.
    tags = {number: f"\U0010ffff{number}\U0010ffff" for number in written}
    rest = render([{**message, "content": tags.get(n, message.get("content"))} for n, message in enumerate(messages)])
    found, rebuilt = [], ""
    for number, tag in tags.items():
        before, _, rest = rest.partition(tag)
        content = messages[number]["content"]
        begin = len(rebuilt) + len(before)
        found.append(KnownResponse(begin, begin + len(content), written[number]))
        rebuilt += before + content
    if rebuilt + rest != text:  # the template leaves some out, or looks at what they say
        return []
    ends = tuple(tokenizer.added_tokens)
    return [response for response in found if text.startswith(ends, response.end)]


def _writing(message: Message, ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that write a message's content, up to its end; none if these do not."""
    content = message.get("content")
    if not isinstance(content, str) or not content:
        return []
    for end in range(len(ids), max(0, len(ids) - _NOT_REPORTED), -1):
        text = tokenizer.decode(ids[:end], skip_special_tokens=False)
        if text == content:
            return ids[:end]
        if not text.startswith(content):
            return []
    return []
