"""Response and events of ``/v1/responses``, built from the engine's chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.responses.stored import Storing
from openai_gateway.endpoints.responses.tools import input_of
from openai_gateway.errors import ApiError
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.generation.response import ResponseMachine
from openai_gateway.models import Chosen
from openai_gateway.protocol.outputs import Usage
from openai_gateway.stored_responses.record import item_id
from openai_gateway.tools.events import (
    ArgumentsFound,
    CallBegun,
    CallBroken,
    CallEnded,
    Ended,
    Event,
    ReasoningFound,
    TextFound,
    call_id,
)

_PREFIXES = {"reasoning": "rs", "message": "msg"}  # of ids


class ResponseWriter:
    """Writes the events of one response; `response` is the response so far.

    ``chosen``: its name, and the texts of tokens for log probabilities.
    """

    def __init__(
        self, body: ResponsesRequest, response_id: str, chosen: Chosen, machine: ResponseMachine, storing: Storing
    ) -> None:
        self._machine = machine
        self._storing = storing  # stores the response before its end is written, so that it can be continued at once
        self._texts = chosen.model.token_texts if body.returns_logprobs else None
        self._summarizes = body.reasoning is not None and body.reasoning.summary is not None
        self._number = 0
        self._item: dict[str, Any] | None = None  # being written
        self._logprobs: list[Any] = []
        self._opening = True
        self._reason = "stop"
        self._offered = body.offered
        self._items = 0
        self._arguments = ""  # of a freeform tool's call
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": chosen.name,
            "output": [],
            "usage": None,
            **body.echoed(),
            "store": storing.stores,
        }

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks."""
        if self._texts is not None and len(chunks) > 1:  # which tokens are of reasoning is known chunk by chunk
            return b"".join([await self.write((chunk,)) for chunk in chunks])
        events = b""
        if self._opening:
            self._opening = False
            events += self._event("response.created", response=self.response)
            events += self._event("response.in_progress", response=self.response)
        if self._texts is not None:
            self._logprobs += await chat_logprobs(chunks, self._texts)
        events += b"".join(map(self._written, self._machine.feed(chunks)))
        if self._in("reasoning"):
            self._logprobs = []  # reasoning has none
        return events

    async def end(self, usage: Usage) -> bytes:
        """Return the last event, after which the response is complete."""
        self.response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._machine.reasoning_tokens},
            "total_tokens": usage.total_tokens,
            **usage.report,
        }
        if self._reason == "length":
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        else:
            self.response |= {"status": "completed", "completed_at": int(time.time())}
        last = self._event(f"response.{self.response['status']}", response=self.response)
        await self._storing(self.response)
        return last

    def error(self, error: ApiError) -> bytes:
        """Return the last events of a response that failed."""
        events = self._close("incomplete")
        events += self._event("error", code=error.code, message=error.message, param=error.param)
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return events + self._event("response.failed", response=self.response)

    def _reasoning(self, text: str) -> bytes:
        events = self._begin("reasoning", {"type": "reasoning_text", "text": ""}, summary=[])
        assert self._item is not None
        if self._summarizes and not self._item["summary"]:
            self._item["summary"] = [{"type": "summary_text", "text": ""}]
            events += self._of_summary("part.added", part=self._item["summary"][0])
        events += self._more(text)
        return events + self._of_summary("text.delta", delta=text) if self._summarizes else events

    def _of_summary(self, kind: str, **members: Any) -> bytes:
        """Return an event of the summary of reasoning, which is all of it."""
        return self._event(f"response.reasoning_summary_{kind}", **self._position, summary_index=0, **members)

    def _written(self, event: Event) -> bytes:
        match event:
            case ReasoningFound():
                return self._reasoning(event.text)
            case TextFound():
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                events = self._begin("message", part, role="assistant")
                logprobs, self._logprobs = self._logprobs, []
                self._part["logprobs"] += logprobs
                return events + self._more(event.text, logprobs=logprobs)
            case CallBegun():
                call = {"call_id": call_id(), **self._offered.origin(event.name), "status": "in_progress"}
                if event.name in self._offered.freeform:
                    self._arguments = ""
                    item = {"id": self._id("ctc"), "type": "custom_tool_call", "input": "", **call}
                else:
                    item = {"id": self._id("fc"), "type": "function_call", "arguments": "", **call}
                return self._close("completed") + self._open(item)
            case ArgumentsFound():
                assert self._item is not None
                if self._in("custom_tool_call"):
                    self._arguments += event.text  # JSON around the text
                    return b""
                self._item["arguments"] += event.text
                return self._event("response.function_call_arguments.delta", **self._position, delta=event.text)
            case CallEnded():
                return self._close("completed")
            case CallBroken():
                return self._close("incomplete") + self._written(TextFound(event.text))
            case Ended():
                self._reason = event.reason
                return self._close("incomplete" if event.reason == "length" else "completed")
        return b""

    def _in(self, kind: str) -> bool:
        return self._item is not None and self._item["type"] == kind

    @property
    def _part(self) -> dict[str, Any]:
        assert self._item is not None
        part: dict[str, Any] = self._item["content"][0]
        return part

    @property
    def _position(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.response["output"]) - 1}

    def _begin(self, kind: str, part: dict[str, Any], **members: Any) -> bytes:
        """Open an item of text, unless one of its kind is being written."""
        if self._in(kind):
            return b""
        item = {"id": self._id(_PREFIXES[kind]), "type": kind, **members, "content": [], "status": "in_progress"}
        events = self._close("completed") + self._open(item)
        item["content"] = [part]
        return events + self._event("response.content_part.added", **self._position, content_index=0, part=part)

    def _more(self, text: str, **members: Any) -> bytes:
        """Add to the text of the item."""
        self._part["text"] += text
        kind = f"response.{self._part['type']}.delta"
        return self._event(kind, **self._position, content_index=0, delta=text, **members)

    def _open(self, item: dict[str, Any]) -> bytes:
        self._item = item
        self.response["output"].append(item)
        return self._event("response.output_item.added", output_index=self._position["output_index"], item=item)

    def _close(self, status: str) -> bytes:
        """End the item being written, if there is one."""
        item = self._item
        if item is None:
            return b""
        item["status"] = status
        if "content" in item:
            part, where = self._part, {**self._position, "content_index": 0}
            texts = {name: part[name] for name in ("text", "logprobs") if name in part}
            events = self._event(f"response.{part['type']}.done", **where, **texts)
            events += self._event("response.content_part.done", **where, part=part)
            for summary in item.get("summary", ()):
                summary["text"] = part["text"]
                events += self._of_summary("text.done", text=summary["text"])
                events += self._of_summary("part.done", part=summary)
        elif item["type"] == "custom_tool_call":
            item["input"] = input_of(self._arguments)
            events = self._event("response.custom_tool_call_input.delta", **self._position, delta=item["input"])
            events += self._event("response.custom_tool_call_input.done", **self._position, input=item["input"])
        else:
            call = {"name": item["name"], "arguments": item["arguments"]}
            events = self._event("response.function_call_arguments.done", **self._position, **call)
        events += self._event("response.output_item.done", output_index=self._position["output_index"], item=item)
        self._item = None
        return events

    def _id(self, kind: str) -> str:
        self._items += 1
        return item_id(kind, self.response["id"], self._items)

    def _event(self, kind: str, **members: Any) -> bytes:
        payload = orjson.dumps({"type": kind, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n"
