"""Mixed traffic: what many callers of a server do in a long time, all at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.abuse.callers import CHAT, Call, Caller
from tools.bench.workload import WORDS

COMPLETIONS, INTERACTIVE = "/v1/completions", "/v1/chat/interactive"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "likes": {"enum": ["a", "b"]},
    },
    "required": ["name", "age", "likes"],
}
# How often each kind comes; the hostile corpus is one kind.
WEIGHTS = {"stream": 8, "whole": 4, "long prompt": 2, "leave": 3, "structured": 3, "session": 3, "hostile": 3}


class Traffic:
    """Callers that continue until asked to stop; each has its own generator, so that a seed repeats a run.

    ``caller``: sends requests. ``hostile``: the corpus; empty: all requests are proper ones. ``seed``: of all that is
    random. ``max_prompt_tokens``: of a prompt, and of a response; a quarter of it is usual.
    """

    def __init__(self, caller: Caller, hostile: Sequence[Call], seed: int, max_prompt_tokens: int) -> None:
        self._caller = caller
        self._hostile = hostile
        self._seed = seed
        self._max_prompt_tokens = max_prompt_tokens

    async def run(self, callers: int, seconds: float) -> None:
        """Return when the time is over and every request has ended."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self._one(number, end))

    async def _one(self, number: int, end: float) -> None:
        generator = random.Random(f"{self._seed}/{number}")
        kinds = [kind for kind in WEIGHTS if kind != "hostile" or self._hostile]
        weights = [WEIGHTS[kind] for kind in kinds]
        session = 0
        while time.monotonic() < end:
            kind = generator.choices(kinds, weights)[0]
            if kind == "session":
                session += 1
                for turn in range(3):
                    await self._record(kind, self._turn(generator, 10_000 * (number + 1) + session, turn == 2))
            elif kind == "hostile":
                await self._record(kind, generator.choice(self._hostile))
            else:
                await self._record(kind, self._draw_call(kind, generator))

    async def _record(self, kind: str, request: Call) -> None:
        name = f"hostile: {request.name}" if kind == "hostile" else kind
        outcome = await self._caller.send(replace(request, name=name), seconds=2.0)
        if outcome.end in ("overloaded", "failed"):  # a server that starts again gets time to
            await asyncio.sleep(0.2)

    def _draw_call(self, kind: str, generator: random.Random) -> Call:
        usual = self._max_prompt_tokens // 4
        words = self._max_prompt_tokens if kind == "long prompt" else generator.randint(1, usual)
        body: dict[str, Any] = {
            "max_tokens": generator.randint(1, usual),
            "temperature": generator.choice([0, 0.7]),
            "ignore_eos": True,
            "stream": kind != "whole",
        }
        if kind == "structured":
            form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
            messages = [{"role": "user", "content": " ".join(generator.choices(WORDS, k=8))}]
            return Call(kind, CHAT, body | {"messages": messages, "response_format": form, "ignore_eos": False})
        body["prompt"] = " ".join(generator.choices(WORDS, k=words))
        return Call(kind, COMPLETIONS, body, "leave" if kind == "leave" else "read")

    def _turn(self, generator: random.Random, session: int, is_last: bool) -> Call:
        body: dict[str, Any] = {
            "prompt": " ".join(generator.choices(WORDS, k=8)),
            "session_id": session,
            "interactive_mode": not is_last,
            "request_output_len": generator.randint(1, 16),
            "stream": False,
        }
        return Call("session", INTERACTIVE, body)
