"""Log probabilities of the engine's chunks, as the two APIs write them."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.protocol.outputs import CompletionLogprobs, PromptLogprob, PromptLogprobs

_FLOOR = -9999.0  # JSON has no minus infinity
_AT_A_TIME = 128  # tokens, before others have a turn: some milliseconds


class Scored(NamedTuple):
    """A token, its log probability (None: nothing predicted it), and the most likely ones with theirs."""

    token: int
    logprob: float | None
    most_likely: list[tuple[int, float]]


def scored_tokens(chunks: Iterable[GenerateChunk]) -> list[Scored]:
    """Return the generated tokens of `chunks`."""
    return [
        Scored(token, max(logprob, _FLOOR), most_likely)
        for chunk in chunks
        for token, logprob, most_likely in _rows(
            chunk.token_ids, chunk.token_logprobs, chunk.top_token_ids, chunk.top_logprobs
        )
    ]


def scored_prompt(chunk: GenerateChunk) -> list[Scored]:
    """Return the tokens of the prompt, which the first chunk of a request that asked for them has."""
    rows = _rows(
        chunk.prompt_token_ids, chunk.prompt_token_logprobs, chunk.prompt_top_token_ids, chunk.prompt_top_logprobs
    )
    return [
        Scored(token, max(logprob, _FLOOR) if position else None, most_likely)
        for position, (token, logprob, most_likely) in enumerate(rows)
    ]


async def chat_logprobs(chunks: Sequence[GenerateChunk], texts: TokenTexts) -> list[dict[str, Any]]:
    """Return the log probabilities of the tokens of `chunks`, each a `TokenLogprob` as JSON values."""
    scored = scored_tokens(chunks)
    known = await texts.lookup(_all_ids(scored))
    content: list[dict[str, Any]] = []
    async for some in _in_pieces(scored):
        content += _entries(some, known)
    return content


async def encoded_chat_logprobs(chunks: Sequence[GenerateChunk], texts: TokenTexts) -> orjson.Fragment:
    """Return ``logprobs`` of a whole chat response as JSON text, a twentieth of the memory of its values."""
    scored = scored_tokens(chunks)
    known = await texts.lookup(_all_ids(scored))
    pieces = [orjson.dumps(_entries(some, known))[1:-1] async for some in _in_pieces(scored)]
    return orjson.Fragment(b'{"content":[' + b",".join(pieces) + b'],"refusal":null}')


async def prompt_logprobs(scored: Sequence[Scored], texts: TokenTexts, num_logprobs: int) -> PromptLogprobs:
    """Return the log probabilities of a prompt's tokens, and of the `num_logprobs` most likely in place of each."""
    known = await texts.lookup(_all_ids(scored))
    logprobs: PromptLogprobs = []
    async for some in _in_pieces(scored):
        logprobs += [_entry_of(one, num_logprobs, known) for one in some]
    return logprobs


class TextCursor:
    """Where in a text its next token begins.

    ``shown``: how many of the next tokens are in the text also where they are special.
    """

    def __init__(self, offset: int = 0, shown: float = 0) -> None:
        # In characters; negative: this many characters are not shown
        self._offset, self._shown = offset, shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def move(self, token: bytes, is_special: bool) -> int:
        """Return where this token begins; one in the middle of a character, where that does."""
        begin = max(self._offset, 0)
        self._shown -= 1
        if not is_special or self._shown >= 0:
            self._offset += len(self._decoder.decode(token))
        return begin


async def completion_logprobs(
    scored: Sequence[Scored], texts: TokenTexts, num_logprobs: int, cursor: TextCursor
) -> CompletionLogprobs:
    """Return a completion's log probabilities of tokens, of which the first begins at `cursor`; it moves past them.

    ``num_logprobs``: how many most likely tokens were asked for; the chosen one is always among them.
    """
    known = await texts.lookup(_all_ids(scored))
    report = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    async for some in _in_pieces(scored):
        for token, logprob, most_likely in some:
            report.tokens.append(_completion_text(known[token]))
            report.token_logprobs.append(logprob)
            named = None if logprob is None else _named(token, logprob, most_likely[:num_logprobs], known)
            report.top_logprobs.append(named)
            report.text_offset.append(cursor.move(known[token], texts.is_special(token)))
    return report


def _named(
    token: int, logprob: float, most_likely: Iterable[tuple[int, float]], known: Mapping[int, bytes]
) -> dict[str, float]:
    """Return the log probability of a token and the most likely ones; of several with one text, the first has it."""
    named = {_completion_text(known[token]): logprob}
    for other, value in most_likely:
        if other != token:
            text = _completion_text(known[other])
            named[f"token_id:{other}" if text in named else text] = value
    return named


async def _in_pieces(scored: Sequence[Scored]) -> AsyncIterator[Sequence[Scored]]:
    for begin in range(0, len(scored), _AT_A_TIME):
        if begin:
            await asyncio.sleep(0)
        yield scored[begin : begin + _AT_A_TIME]


def _entry_of(one: Scored, num_logprobs: int, known: Mapping[int, bytes]) -> dict[str, PromptLogprob] | None:
    if one.logprob is None:
        return None
    ranked = {one.token: (one.logprob, None)} | {
        other: (value, rank) for rank, (other, value) in enumerate(one.most_likely[:num_logprobs], 1)
    }
    return {
        str(token): PromptLogprob(logprob=value, rank=rank, decoded_token=_text(known[token]))
        for token, (value, rank) in ranked.items()
    }


def _rows(
    ids: Sequence[int],
    logprobs: Sequence[float],
    top_ids: Sequence[Sequence[int]],
    top_logprobs: Sequence[Sequence[float]],
) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    for position, (token, logprob) in enumerate(zip(ids, logprobs, strict=False)):
        most_likely = []
        if position < len(top_ids):
            pairs = zip(top_ids[position], top_logprobs[position], strict=True)
            most_likely = [(other, max(value, _FLOOR)) for other, value in pairs if other >= 0]  # -1 fills a short row
        yield token, logprob, most_likely


def _all_ids(scored: Sequence[Scored]) -> set[int]:
    return {one.token for one in scored} | {other for one in scored for other, _ in one.most_likely}


def _entries(scored: Iterable[Scored], known: Mapping[int, bytes]) -> list[dict[str, Any]]:
    return [
        {
            **_entry(one.token, one.logprob, known),
            "top_logprobs": [_entry(other, value, known) for other, value in one.most_likely],
        }
        for one in scored
    ]


def _entry(token: int, logprob: float | None, known: Mapping[int, bytes]) -> dict[str, Any]:
    raw = known[token]
    return {"token": _text(raw), "logprob": logprob, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")  # as OpenAI writes what is no whole character


def _completion_text(raw: bytes) -> str:
    text = _text(raw)
    return text if text.encode() == raw else f"bytes:{text}"  # likewise, where there is no member `bytes`
