"""Which share of a model's calls can be used: ``python -m tools.tool_calls [MODEL]``, as ``make bench-tools``.

Each case of `tools.tool_calls.cases` is asked in three ways:

    free      the model decides, and writes as it likes
    strict    the model decides; a grammar holds the calls that it makes to their schemas
    required  a grammar makes it call

For each kind of case: the share of responses that hold nothing that looks like a call and is none, whose calls fit
their schemas, and (with ``required``) that call; and how many are the right calls. With ``--formats all`` in every
format that models write calls in, by its grammar. It ends with 1 where a grammar applies and a call cannot be used.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx
import jsonschema_rs

from lmdeploy import TurbomindEngineConfig
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.offline.served_requests import LocalClient
from lmdeploy.paths import default_model_dir
from lmdeploy.serve.client import TritonClient
from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS
from openai_gateway.app import create_app
from openai_gateway.settings import Settings
from tools.bench import arguments as flags
from tools.tool_calls.cases import CASES, TOOLS, Case

WAYS = ("free", "strict", "required")
KINDS = ("simple", "multiple", "parallel", "irrelevance")
_MARKS = ("<tool_call", "[TOOL_CALLS", "<function", "<|tool", '{"name"', "<invoke")


@dataclass(frozen=True)
class Judged:
    """A response.

    Attributes
    ----------
    is_usable : bool
        What looks like a call in it is one, and fits its schema; it calls where it must.
    is_right : bool
        Its calls are those of the case.
    """

    case: Case
    way: str
    is_usable: bool
    is_right: bool


def judge(case: Case, way: str, message: dict[str, Any]) -> Judged:
    """Return what a message is worth as a response to a case."""
    made, fits = [], True
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
            schema = TOOLS[function["name"]]["function"]["parameters"]
        except (ValueError, KeyError):
            fits = False
            continue
        fits = fits and jsonschema_rs.is_valid(schema, arguments)
        made.append((function["name"], arguments))
    text = message.get("content") or ""
    calls_where_it_must = bool(made) or way != "required"
    is_usable = fits and calls_where_it_must and not any(mark in text for mark in _MARKS)
    return Judged(case, way, is_usable, fits and sorted(map(str, made)) == sorted(map(str, case.calls)))


def body(case: Case, way: str) -> dict[str, Any]:
    """Return the chat completion of a case."""
    tools = [TOOLS[name] for name in case.tools]
    if way == "free":
        tools = [{**tool, "function": {**tool["function"], "strict": False}} for tool in tools]
    return {
        "model": "default",
        "messages": [{"role": "user", "content": case.question}],
        "tools": tools,
        "tool_choice": "required" if way == "required" else "auto",
        "parallel_tool_calls": case.kind == "parallel",
        "temperature": 0,
        "max_tokens": 256 if case.kind != "parallel" else 1024,  # as many calls as the grammar allows
    }


async def ask_all(pipe: AsyncEngine, parser: str, ways: Sequence[str], cases: Sequence[Case]) -> list[Judged]:
    """Ask a model all cases at once, its calls written as `parser` names it."""
    settings = Settings(model_name="default", engine_dir=pipe.engine.directory.path, tool_call_parser=parser)
    app = create_app(settings, cast(TritonClient, LocalClient(pipe)))
    asked = [(case, way) for way in ways for case in cases if way != "required" or case.calls]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench", timeout=None) as client:
        responses = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=body(case, way)) for case, way in asked)
        )
    judged = []
    for (case, way), response in zip(asked, responses, strict=True):
        response.raise_for_status()
        judged.append(judge(case, way, response.json()["choices"][0]["message"]))
    return judged


def table(judged: Sequence[Judged], ways: Sequence[str]) -> str:
    """Return the shares as Markdown."""
    lines = ["| | " + " | ".join(f"{way}: usable | right" for way in ways) + " |"]
    lines.append("| --- |" + " --- | --- |" * len(ways))
    for kind in KINDS:
        cells = []
        for way in ways:
            those = [one for one in judged if (one.case.kind, one.way) == (kind, way)]
            counts = (sum(one.is_usable for one in those), sum(one.is_right for one in those))
            cells += [f"{count / len(those):.0%}" if those else "-" for count in counts]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def unusable(judged: Sequence[Judged]) -> list[Judged]:
    """Return responses that a grammar held and that cannot be used."""
    return [one for one in judged if one.way != "free" and not one.is_usable]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(default_model_dir()))
    parser.add_argument("--formats", choices=["own", "all"], default="own", help="those that calls are written in")
    args = parser.parse_args(arguments)
    failed = 0
    with AsyncEngine(args.model, TurbomindEngineConfig(session_len=2048)) as pipe:
        judged = asyncio.run(ask_all(pipe, "auto", WAYS, CASES))
        print(table(judged, WAYS))
        failed += len(unusable(judged))
        for name in _formats() if args.formats == "all" else ():
            held = asyncio.run(ask_all(pipe, name, ("required",), [case for case in CASES if case.calls]))
            failed += len(unusable(held))
            print(f"{name}: {sum(one.is_usable for one in held)} of {len(held)} usable")
    return 1 if failed else 0


def _formats() -> list[str]:
    """Return a name of each format."""
    first = {named.formats[0]: name for name, named in reversed(TOOL_CALL_FORMATS.items())}
    return sorted(first.values())


if __name__ == "__main__":
    flags.run(main)
