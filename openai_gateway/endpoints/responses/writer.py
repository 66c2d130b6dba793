"""A response of ``/v1/responses``, built up from the engine's chunks, and the events that say how."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.errors import ApiError
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.models import ServedModel
from openai_gateway.protocol.outputs import Usage
from openai_gateway.reasoning import ReasoningDelta, ReasoningParser
from openai_gateway.stored_responses.record import item_id
from openai_gateway.tools.calls import call_id, parser_for
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, Event, TextFound


class ResponseWriter:
    """Writes the events of one response; `response` is the response so far, all of it once `is_over`.

    Parameters
    ----------
    body : ResponsesRequest
        What was asked.
    response_id, model : str
        Of the response.
    served : ServedModel
        It has the texts of tokens for log probabilities, and knows how calls are written.
    reasoning : ReasoningParser, optional
        Finds them in the response; None: there are none.
    """

    def __init__(
        self,
        body: ResponsesRequest,
        response_id: str,
        model: str,
        served: ServedModel,
        reasoning: ReasoningParser | None = None,
    ) -> None:
        self._reasoning_parser = reasoning
        self._parser = parser_for(body.usable_tools, is_forced=bool(body.forced_tools), parser=served.tool_call_parser)
        self._texts = served.token_texts if body.wants_logprobs else None
        self._max_calls = 1 if body.parallel_tool_calls is False else None
        self._number = 0
        self._item: dict[str, Any] | None = None  # being written
        self._logprobs: list[Any] = []
        self._opening = True
        self._reason = "stop"
        self._offered = body.offered
        self._items = 0
        self.is_over = False
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **body.echoed(),
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
        text = "".join(chunk.text for chunk in chunks)
        if self._texts is not None:
            self._logprobs += await chat_logprobs(chunks, self._texts)
        events += self._with_delta(
            self._reasoning_parser.feed_chunks(chunks) if self._reasoning_parser else ReasoningDelta(content=text)
        )
        last = chunks[-1]
        if last.finish_reason is not None:
            events += self._with_delta(self._reasoning_parser.finish() if self._reasoning_parser else ReasoningDelta())
            events += self._found(self._parser.finish() if self._parser else [])
            self._reason = finish_reason(last)
            events += self._close("incomplete" if self._reason == "length" else "completed")
        return events

    def end(self, usage: Usage) -> bytes:
        """Return the last event, after which the response is complete."""
        self.is_over = True
        self.response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {
                "reasoning_tokens": self._reasoning_parser.token_count if self._reasoning_parser else 0
            },
            "total_tokens": usage.total_tokens,
        }
        if self._reason == "length":
            self.response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
            return self._event("response.incomplete", response=self.response)
        self.response |= {"status": "completed", "completed_at": int(time.time())}
        return self._event("response.completed", response=self.response)

    def error(self, error: ApiError) -> bytes:
        """Return the last events of a response that failed."""
        events = self._close("incomplete")
        events += self._event("error", code=error.code, message=error.message, param=error.param)
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": error.message}}
        return events + self._event("response.failed", response=self.response)

    def _with_delta(self, delta: ReasoningDelta) -> bytes:
        events = self._reasoning(delta.reasoning) if delta.reasoning else b""
        text = delta.content
        if not text and self._in("reasoning"):
            self._logprobs = []  # reasoning has none
        return events + self._found(self._parser.feed(text) if self._parser else [TextFound(text)] if text else [])

    def _reasoning(self, text: str) -> bytes:
        events = b""
        if not self._in("reasoning"):
            item: dict[str, Any] = {
                "id": self._id("rs"),
                "type": "reasoning",
                "summary": [],
                "content": [],
                "status": "in_progress",
            }
            events = self._open(item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
            events += self._event("response.content_part.added", **self._place, content_index=0, part=self._part)
        self._part["text"] += text
        return events + self._event("response.reasoning_text.delta", **self._place, content_index=0, delta=text)

    def _found(self, found: Sequence[Event]) -> bytes:
        return b"".join(self._one(event) for event in found)

    def _one(self, event: Event) -> bytes:
        match event:
            case TextFound():
                events = b"" if self._in("message") else self._open_message()
                self._part["text"] += event.text
                logprobs, self._logprobs = self._logprobs, []
                self._part["logprobs"] += logprobs
                return events + self._event(
                    "response.output_text.delta", **self._place, content_index=0, delta=event.text, logprobs=logprobs
                )
            case CallBegun() if self._max_calls is None or event.index < self._max_calls:
                call = {"id": self._id("fc"), "type": "function_call", "call_id": call_id()}
                call |= self._offered.origin(event.name)
                return self._close("completed") + self._open(call | {"arguments": "", "status": "in_progress"})
            case ArgumentsFound() if self._in("function_call") and self._item is not None:
                if self._max_calls is not None and event.index >= self._max_calls:
                    return b""
                self._item["arguments"] += event.text
                return self._event("response.function_call_arguments.delta", **self._place, delta=event.text)
            case CallBroken() if self._in("function_call"):
                return self._close("incomplete") + self._one(TextFound(event.text))
        return b""

    def _in(self, kind: str) -> bool:
        return self._item is not None and self._item["type"] == kind

    @property
    def _part(self) -> dict[str, Any]:
        assert self._item is not None
        part: dict[str, Any] = self._item["content"][0]
        return part

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.response["output"]) - 1}

    def _open_message(self) -> bytes:
        message: dict[str, Any] = {
            "id": self._id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
        }
        message["content"] = []
        events = self._close("completed") + self._open(message)
        message["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        return events + self._event("response.content_part.added", **self._place, content_index=0, part=self._part)

    def _open(self, item: dict[str, Any]) -> bytes:
        self._item = item
        self.response["output"].append(item)
        return self._event("response.output_item.added", output_index=self._place["output_index"], item=item)

    def _close(self, status: str) -> bytes:
        """End the item being written, if there is one."""
        item = self._item
        if item is None:
            return b""
        item["status"] = status
        if item["type"] == "message":
            part, where = self._part, {**self._place, "content_index": 0}
            events = self._event("response.output_text.done", **where, text=part["text"], logprobs=part["logprobs"])
            events += self._event("response.content_part.done", **where, part=part)
        elif item["type"] == "reasoning":
            where = {**self._place, "content_index": 0}
            events = self._event("response.reasoning_text.done", **where, text=self._part["text"])
            events += self._event("response.content_part.done", **where, part=self._part)
        else:
            said = {"name": item["name"], "arguments": item["arguments"]}
            events = self._event("response.function_call_arguments.done", **self._place, **said)
        events += self._event("response.output_item.done", output_index=self._place["output_index"], item=item)
        self._item = None
        return events

    def _id(self, kind: str) -> str:
        self._items += 1
        return item_id(kind, self.response["id"], self._items)

    def _event(self, kind: str, **members: Any) -> bytes:
        payload = orjson.dumps({"type": kind, "sequence_number": self._number, **members})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n"
