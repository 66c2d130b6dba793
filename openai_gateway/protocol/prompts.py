"""Texts as OpenAI's clients give them: one, several, or the tokens of one or several."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from openai_gateway.protocol.fields import MAX_INT32

TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def each_of(given: str | list[str] | list[int] | list[list[int]]) -> list[str] | list[list[int]]:
    """Return the texts, each one text or tokens."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return given
