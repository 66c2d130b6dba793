"""Log probabilities of the engine's chunks, as the two APIs write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.protocol.answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from openai_gateway.token_texts import TokenTexts

_LEAST = -9999.0  # JSON has no minus infinity


async def chat_logprobs(chunks: Sequence[GenerateChunk], texts: TokenTexts) -> ChatLogprobs:
    """Return what a chat answer says about the tokens of `chunks`."""
    known = await texts.lookup(_all_ids(chunks))
    content = []
    for chunk in chunks:
        for position, (token, logprob) in enumerate(zip(chunk.token_ids, chunk.token_logprobs, strict=False)):
            top = [TopLogprob(**_entry(other, value, known)) for other, value in _likeliest(chunk, position)]
            content.append(TokenLogprob(**_entry(token, logprob, known), top_logprobs=top))
    return ChatLogprobs(content=content)


async def completion_logprobs(
    chunks: Sequence[GenerateChunk], texts: TokenTexts, wanted: int, offset: int = 0
) -> tuple[CompletionLogprobs, int]:
    """Return what a completion says about the tokens of `chunks`, and where the text after them begins.

    Parameters
    ----------
    wanted : int
        How many likeliest tokens were asked for; the chosen one is always among them.
    offset : int
        Where in the text the first token begins, in characters.
    """
    known = await texts.lookup(_all_ids(chunks))
    said = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for chunk in chunks:
        for position, (token, logprob) in enumerate(zip(chunk.token_ids, chunk.token_logprobs, strict=False)):
            text = _text(known[token])
            top = {_text(known[other]): max(value, _LEAST) for other, value in _likeliest(chunk, position)}
            said.tokens.append(text)
            said.token_logprobs.append(max(logprob, _LEAST))
            said.top_logprobs.append({text: max(logprob, _LEAST)} | top if wanted else None)
            said.text_offset.append(offset)
            offset += len(text)
    return said, offset


def _likeliest(chunk: GenerateChunk, position: int) -> list[tuple[int, float]]:
    if position >= len(chunk.top_token_ids):
        return []
    pairs = zip(chunk.top_token_ids[position], chunk.top_logprobs[position], strict=True)
    return [(token, logprob) for token, logprob in pairs if token >= 0]  # -1 fills a short row


def _all_ids(chunks: Sequence[GenerateChunk]) -> set[int]:
    ids = {token for chunk in chunks for token in chunk.token_ids}
    return ids | {token for chunk in chunks for row in chunk.top_token_ids for token in row if token >= 0}


def _entry(token: int, logprob: float, known: Mapping[int, bytes]) -> dict[str, Any]:
    raw = known[token]
    return {"token": _text(raw), "logprob": max(logprob, _LEAST), "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
