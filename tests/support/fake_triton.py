"""A stand-in for Triton: the KServe gRPC service over scripted responses, in this process, in milliseconds."""

from __future__ import annotations

import json
import math
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from lmdeploy.serve.request import FIELDS
from lmdeploy.token_bytes import TokenBytes

_FORMATS = {"BOOL": "?", "INT32": "i", "UINT32": "I", "FP32": "f", "UINT64": "Q"}
_LISTS = set(
    "stop_words bad_words stop_token_ids bad_token_ids thinking_end_ids logit_bias_ids logit_bias_values input_ids "
    "TOKENS_BATCH".split()
)

CONTEXT_LEN = 4096  # tokens, of the fake engine
AWAKE: dict[str, Any] = {  # what an engine that can sleep reports
    "state": "awake",
    "level": 0,
    "bytes": 3_000_000_000,
    "awake_bytes": 3_000_000_000,
    "all_bytes": 5_000_000_000,
    "idle_seconds": 40.0,
    "sleeps_in": 260.0,
    "waiting": 0,
    "error": "",
}
CACHE_REPORT: dict[str, Any] = {  # of its cache
    "device": {"pages": 40, "used": 3, "idle": 5, "bytes": 800},
    "host": {"pages": 0, "used": 0, "bytes": 0},
    "disk": {"files": 7, "bytes": 700, "written": 9, "read": 2, "damaged": 0, "failures": 0},
    "pinned": {"prompts": 1, "pages": 2, "most_pages": 10},
    "tokens": 32,
}

# The fake tokenizer: <pad>, <s>, </s>, then a token a byte.
BOS = 1
FIRST_BYTE = 3
TOKEN_BYTES = TokenBytes(
    (b"<pad>", b"<s>", b"</s>", *(bytes([byte]) for byte in range(256))), (True,) * FIRST_BYTE + (False,) * 256
)


class _Failure(Exception):
    """How a request fails: status, text."""


@dataclass
class Script:
    """How the fake engine answers.

    ``texts``: one response each when streaming, all in one when not. ``choices``: texts of each of n choices,
    interleaved; None: every choice has `texts`. ``fail_after``: responses after which the request fails with `error`.
    ``hold_after``: responses after which the engine waits until it is cancelled (or `release` is set). ``resume``:
    whether it continues to a proper end after it was released. ``engine_seconds``: before the batch, to the first
    token, to the end. ``load_seconds``: until the model was awake. ``stop_string``: what of its stop words ended the
    response. ``cached_token_len``: of the prompt, found in the cache. ``cache_report``: its numbers, for requests that
    ask for them.
    """

    texts: Sequence[str] = ("The capital", " of France", " is Paris.")
    choices: Sequence[Sequence[str]] | None = None
    finish_reason: str = "stop"
    input_token_len: int = 7
    history_token_len: int = 0
    fail_after: int | None = None
    error: tuple[grpc.StatusCode, str] = (grpc.StatusCode.INTERNAL, "scripted failure")
    hold_after: int | None = None
    resume: bool = False
    engine_seconds: tuple[float, float, float] = (0.25, 0.5, 1.0)
    load_seconds: float = 0.0
    stop_string: str = ""
    cached_token_len: int = 0
    cache_report: Sequence[int] = ()


@dataclass
class Received:
    """One request as it arrived: model, id, decoded tensors by name (single values unpacked), the stream's metadata."""

    model: str
    id: str
    inputs: dict[str, Any]
    outputs: list[str]
    metadata: dict[str, str] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The server; `requests` and `stops` say what arrived."""

    def __init__(self, model_name: str = "fake-model", script: Script | None = None) -> None:
        self.script: Script | Callable[[Received], Script] = script or Script()
        self.ready = True
        self.hangs = ""  # the model, `turbomind` or `preprocessing`, that does not respond
        self.waiting: set[str] = set()  # models that have been asked since and hang
        self.left: list[str] = []  # models whose calls were cancelled while they did not respond
        self.restarts = False  # the engine, which then takes no requests
        self.parameters = {"model_name": model_name}
        self.requests: list[Received] = []
        self.stops: queue.Queue[str] = queue.Queue()
        self.controls: list[dict[str, Any]] = []
        self.sessions: set[int] = set()
        self.adapters: dict[str, str] = {}  # notes by name
        self.cache_controls: list[dict[str, Any]] = []
        self.memory: dict[str, dict[str, Any]] = {}  # engines that sleep, and what they report
        self.sleep_controls: list[dict[str, Any]] = []
        self.adapters_of: dict[str, dict[str, str]] = {}  # where there are several models: of each engine
        self.repository_key = "key of the repository"
        self.loaded: list[str] = []  # models
        self.broken: dict[str, str] = {}  # how the names of models end that cannot be loaded, and why
        self.release = threading.Event()
        self.port = 0
        self._server: grpc.Server | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; after `stop`, again on the same port."""
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(futures.ThreadPoolExecutor(400), options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            stopped = self._server.stop(grace=None)
            self.release.set()
            stopped.wait()
            self._server = None

    def __enter__(self) -> FakeTriton:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Forget what arrived and answer as at first."""
        self.hangs, self.waiting, self.left, self.restarts = "", set(), [], False
        self.script, self.ready, self.requests, self.stops = Script(), True, [], queue.Queue()
        self.controls, self.sessions, self.adapters, self.cache_controls = [], set(), {}, []
        self.memory, self.sleep_controls, self.adapters_of = {}, [], {}
        self.loaded, self.broken = [], {}
        self.release.set()
        self.release = threading.Event()

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        config = model_config_pb2.ModelConfig(name=request.name)
        for key, value in self.parameters.items():
            config.parameters[key].string_value = value
        return service_pb2.ModelConfigResponse(config=config)

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self._require_key(context)
        if reason := next((why for name, why in self.broken.items() if request.model_name.endswith(name)), ""):
            name = request.model_name
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: {reason};\n",
            )
        self.loaded.append(request.model_name)
        return service_pb2.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self._require_key(context)
        if request.model_name in self.loaded:
            self.loaded.remove(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        self._require_key(context)
        response = service_pb2.RepositoryIndexResponse()
        for name in self.loaded:
            response.models.add(name=name, version="1", state="READY")
        return response

    def _require_key(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("triton-grpc-protocol-lmdeploy-admin")
        if given != self.repository_key:
            context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")

    def _hang(self, kind: str, context: Any) -> None:
        while self.hangs == kind and context.is_active():
            self.waiting.add(kind)
            time.sleep(0.01)
        if not context.is_active():
            self.left.append(kind)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        received = _received(request)
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        kind = request.model_name.partition(".")[0]  # with several models, their names follow
        self._hang(kind, context)
        if kind == "preprocessing":
            try:
                ids = _prompt(received.inputs)
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            response.outputs.add(name="INPUT_ID", datatype="UINT32", shape=[1, len(ids)])
            response.raw_output_contents.append(struct.pack(f"<{len(ids)}I", *ids))
        elif kind == "postprocessing":
            ids, skip = received.inputs["TOKENS_BATCH"], bool(received.inputs["skip_special_tokens"])
            if request.parameters["as_bytes"].bool_param:
                texts = [TOKEN_BYTES.shown([token], skip) for token in ids]
            else:
                texts = [TOKEN_BYTES.text(ids, skip).encode()]
            response.outputs.add(name="OUTPUT", datatype="BYTES", shape=[len(texts)])
            response.raw_output_contents.append(b"".join(map(_bytes, texts)))
        else:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model_name}")
        return response

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for request in request_iterator:
            received = _received(request)
            if "STOP" in received.inputs:
                self._control(received.inputs)
                continue
            if "lora_control" in received.inputs:
                self._hang("turbomind", context)
                yield self._adapter_control(received)
                continue
            if "cache_control" in received.inputs:
                self.cache_controls.append(received.inputs)
                yield _response(received, Script(), 0, json.dumps(CACHE_REPORT), 0, True)
                continue
            if "sleep_control" in received.inputs:
                yield self._sleep_control(received)
                continue
            if "limits" in received.inputs:
                yield _response(received, Script(), 0, json.dumps({"session_len": CONTEXT_LEN}), 0, True)
                continue
            context.add_callback(received.cancelled.set)
            received.released = self.release  # before a control request can know of it
            received.metadata = {key: str(value) for key, value in context.invocation_metadata()}
            self.requests.append(received)
            try:
                self._session(received.inputs)
                yield from self._answer(received)
            except _Failure as failure:  # reported in the stream, as Triton does
                code, text = failure.args
                if request.parameters["error_codes"].bool_param:
                    text = f"{code.name}: {text}"
                yield service_pb2.ModelStreamInferResponse(error_message=f"in ensemble '{received.model}', {text}")

    def _adapter_control(self, received: Received) -> Any:
        if self.restarts:
            return service_pb2.ModelStreamInferResponse(error_message="UNAVAILABLE: the engine takes no requests now")
        name, action = received.inputs.get("lora_name", ""), received.inputs["lora_control"]
        adapters = self.adapters
        if received.model != "turbomind":
            adapters = self.adapters_of.setdefault(received.model, {})
        is_there = name in adapters
        if action == "load" and not is_there:
            adapters[name] = received.inputs.get("lora_note", "")
        elif action == "unload" and is_there:
            del adapters[name]
        elif action != "list":
            text = (
                f"NOT_FOUND: there is no adapter {name}" if action == "unload" else f"INVALID_ARGUMENT: {name} is there"
            )
            return service_pb2.ModelStreamInferResponse(error_message=text)
        return _response(received, Script(), 0, json.dumps(list(adapters.items())), 0, True)

    def _sleep_control(self, received: Received) -> Any:
        action, report = received.inputs["sleep_control"], self.memory.get(received.model)
        if report is None:
            text = f"unexpected inference input 'sleep_control' for model '{received.model}'"
            return service_pb2.ModelStreamInferResponse(error_message=f"INVALID_ARGUMENT: {text}")
        if action != "report":
            self.sleep_controls.append({"model": received.model} | received.inputs)
            is_awake, level = action == "wake", received.inputs.get("sleep_level", 0)
            report |= {"state": "awake" if is_awake else "asleep", "level": level}
            report["bytes"] = report["awake_bytes"] if is_awake else 0
        return _response(received, Script(), 0, json.dumps(report), 0, True)

    def _control(self, inputs: dict[str, Any]) -> None:
        if "stop_request_id" in inputs:
            for received in self.requests:
                if received.id == inputs["stop_request_id"]:
                    received.cancelled.set()
            self.stops.put(inputs["stop_request_id"])
            return
        self.controls.append(inputs)
        if inputs.get("END"):
            self.sessions.discard(inputs["CORRID"])
        elif inputs["STOP"]:
            self.release.set()
            self.release = threading.Event()

    def _session(self, inputs: dict[str, Any]) -> None:
        session = inputs.get("session_id")
        if session is None:
            return
        if not inputs.get("sequence_start") and session not in self.sessions:
            raise _Failure(
                grpc.StatusCode.INVALID_ARGUMENT, f"session {session} does not exist; begin it with sequence_start"
            )
        self.sessions.add(session)
        if inputs.get("sequence_end"):
            self.sessions.discard(session)

    def _answer(self, received: Received) -> Iterator[Any]:
        script = self.script(received) if callable(self.script) else self.script
        choices = list(script.choices or [script.texts] * received.inputs.get("n", 1))
        if not received.inputs.get("stream"):
            choices = [["".join(texts)] for texts in choices]
        max_tokens = max(len(texts) for texts in choices)
        for done in range(max_tokens):
            self._interrupt(script, done, received)
            for index, texts in enumerate(choices):
                if done < len(texts):
                    ends = script.fail_after is None and (script.hold_after is None or script.resume)
                    last = ends and done == len(texts) - 1
                    yield _response(received, script, index, texts[done], done, last)
        self._interrupt(script, max_tokens, received)

    def _interrupt(self, script: Script, done: int, received: Received) -> None:
        if script.hold_after == done:
            while not (received.cancelled.is_set() or received.released.wait(0.01)):
                continue
        if script.fail_after == done:
            raise _Failure(*script.error)


def _received(request: Any) -> Received:
    inputs: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        assert tensor.shape[0] == 1
        values = _texts(raw) if tensor.datatype == "BYTES" else _numbers(raw, tensor.datatype)
        assert len(values) == math.prod(tensor.shape)
        inputs[tensor.name] = values if tensor.name in _LISTS else values[0]
    inputs |= {name: given.string_param for name, given in request.parameters.items() if name in FIELDS}
    return Received(request.model_name, request.id, inputs, [output.name for output in request.outputs])


def _prompt(inputs: dict[str, Any]) -> list[int]:
    if "lora_control" in inputs:
        return []
    if "QUERY" in inputs:
        return [BOS] if inputs["QUERY"] == "<BOS>" else token_ids(inputs["QUERY"])
    if "messages" in inputs:
        given = json.loads(inputs["messages"])
        messages = given["messages"] if isinstance(given, dict) else given
        parts = [f"<{message['role']}>{message['content']}" for message in messages]
        if "tools" in inputs:
            parts.insert(1, f"<tools>{json.loads(inputs['tools'])}")
        written = "".join(parts)
        return token_ids(f"[{inputs['lora_name']}]{written}" if "lora_name" in inputs else written)
    if "bad" in inputs["text_input"]:
        raise ValueError("text_input must not be bad")
    return token_ids(inputs["text_input"])[0 if inputs.get("add_special_tokens", True) else 1 :]


def token_ids(text: str) -> list[int]:
    """Return the fake tokenizer's ids of a text: bos, then a token a byte."""
    return [BOS, *(byte + FIRST_BYTE for byte in text.encode())]


def _numbers(raw: bytes, datatype: str) -> list[Any]:
    return [value for (value,) in struct.iter_unpack("<" + _FORMATS[datatype], raw)]


def _texts(raw: bytes) -> list[str]:
    texts = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        texts.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return texts


def _response(received: Received, script: Script, index: int, text: str, done: int, last: bool) -> Any:
    ids = (done, 100 + done)
    report = script.cache_report if last and index == 0 and received.inputs.get("include_cache_report") else ()
    top = received.inputs.get("logprobs", 0)
    most_likely = [[chosen, *range(10, 9 + top)][:top] for chosen in ids]
    values = [[logprob, *(-1.5 - other for other in range(top - 1))][:top] for logprob in (-0.5, -0.25)]
    tensors = {
        "finish_reason": ("BYTES", [1, 1], _bytes(script.finish_reason if last else "")),
        "stop_string": ("BYTES", [1, 1], _bytes(script.stop_string if last else "")),
        "text_output": ("BYTES", [1, 1], _bytes(text)),
        "token_ids": ("INT32", [1, 2], struct.pack("<2i", *ids)),
        "input_token_len": ("INT32", [1, 1], struct.pack("<i", script.input_token_len)),
        "generate_token_len": ("INT32", [1, 1], struct.pack("<i", 2 * (done + 1))),
        "index": ("INT32", [1, 1], struct.pack("<i", index)),
        "history_token_len": ("INT32", [1, 1], struct.pack("<i", script.history_token_len)),
        "cached_token_len": ("INT32", [1, 1], struct.pack("<i", script.cached_token_len)),
        "cache_report": ("INT32", [1, len(report)], struct.pack(f"<{len(report)}i", *report)),
        "engine_seconds": ("FP32", [1, 3], struct.pack("<3f", *(script.engine_seconds if last else (-1, -1, -1)))),
        "load_seconds": ("FP32", [1, 1], struct.pack("<f", script.load_seconds if last else 0)),
        "embedding": ("FP32", [1, -1], _embedding(received)),
        "token_logprobs": ("FP32", [1, 2], struct.pack("<2f", -0.5, -0.25)),
        "top_token_ids": ("INT32", [1, 2, top], struct.pack(f"<{2 * top}i", *chain(*most_likely))),
        "top_logprobs": ("FP32", [1, 2, top], struct.pack(f"<{2 * top}f", *chain(*values))),
    }
    tensors |= _prompt_tensors(received, is_first=index == done == 0)
    response = service_pb2.ModelInferResponse(model_name=received.model, id=received.id)
    for name in [name for name in tensors if name in received.outputs]:  # its own order, as Triton's ensembles
        datatype, shape, raw = tensors[name]
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def embedding_of(ids: Sequence[int]) -> bytes:
    """Return the fake engine's embedding of a prompt: how often each of four kinds of tokens comes."""
    return struct.pack("<4f", *(sum(token % 4 == kind for token in ids) for kind in range(4)))


def _embedding(received: Received) -> bytes:
    ids = _prompt_ids(received)
    if received.inputs.get("output_token_embeddings"):
        return b"".join(embedding_of([token]) for token in ids)
    return embedding_of(ids)


def _prompt_ids(received: Received) -> list[int]:
    return received.inputs.get("input_ids") or token_ids(received.inputs.get("text_input", ""))


def prompt_logprob(position: int) -> float:
    """Return the log probability that the fake engine gives to a token of the prompt."""
    return -position / 4


def _prompt_tensors(received: Received, *, is_first: bool) -> dict[str, tuple[str, list[int], bytes]]:
    ids = _prompt_ids(received)
    ids = ids if is_first and "prompt_logprobs" in received.inputs else []
    top = received.inputs.get("prompt_logprobs", 0)
    values = [math.nan, *(prompt_logprob(position) for position in range(1, len(ids)))][: len(ids)]
    most_likely = [[-1] * top, *([FIRST_BYTE + ord("?")] * top for _ in ids[1:])][: len(ids)]
    rows = [[value] * top for value in values]
    return {
        "prompt_token_ids": ("INT32", [1, len(ids)], struct.pack(f"<{len(ids)}i", *ids)),
        "prompt_token_logprobs": ("FP32", [1, len(ids)], struct.pack(f"<{len(ids)}f", *values)),
        "prompt_top_token_ids": ("INT32", [1, len(ids), top], struct.pack(f"<{len(ids) * top}i", *chain(*most_likely))),
        "prompt_top_logprobs": ("FP32", [1, len(ids), top], struct.pack(f"<{len(ids) * top}f", *chain(*rows))),
    }


def _bytes(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(raw)) + raw
