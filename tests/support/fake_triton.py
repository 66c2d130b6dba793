"""A stand-in for Triton: the KServe gRPC service over scripted answers, in this process, in milliseconds."""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

_FORMATS = {"BOOL": "?", "INT32": "i", "UINT32": "I", "FP32": "f", "UINT64": "Q"}


@dataclass
class Script:
    """How the fake engine answers.

    Attributes
    ----------
    texts : one response each when streaming, all in one when not
    fail_after : responses after which the request fails with `error`
    hold_after : responses after which the engine waits until it is cancelled (or `release` is set)
    """

    texts: Sequence[str] = ("The capital", " of France", " is Paris.")
    finish_reason: str = "stop"
    input_token_len: int = 7
    fail_after: int | None = None
    error: tuple[grpc.StatusCode, str] = (grpc.StatusCode.INTERNAL, "scripted failure")
    hold_after: int | None = None


@dataclass
class Received:
    """One request as it arrived: model, id, and decoded tensors by name (single values unpacked)."""

    model: str
    id: str
    inputs: dict[str, Any]
    outputs: list[str]
    cancelled: threading.Event = field(default_factory=threading.Event)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The server; `requests` and `stops` say what arrived."""

    def __init__(self, model_name: str = "fake-model", script: Script | None = None) -> None:
        self.script: Script | Callable[[Received], Script] = script or Script()
        self.ready = True
        self.parameters = {"model_name": model_name}
        self.requests: list[Received] = []
        self.stops: queue.Queue[str] = queue.Queue()
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
        self._server = grpc.server(futures.ThreadPoolExecutor(64), options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            stopped = self._server.stop(grace=None)
            self.release.set()
            stopped.wait()
            self._server = None

    def reset(self) -> None:
        """Forget what arrived and answer as at first."""
        self.script, self.ready, self.requests, self.stops = Script(), True, [], queue.Queue()
        self.release.set()
        self.release = threading.Event()

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        config = model_config_pb2.ModelConfig(name=request.name)
        for key, value in self.parameters.items():
            config.parameters[key].string_value = value
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for request in request_iterator:
            received = _received(request)
            if "STOP" in received.inputs:
                self.stops.put(received.inputs["stop_request_id"])
                continue
            context.add_callback(received.cancelled.set)
            self.requests.append(received)
            yield from self._answer(received, context)

    def _answer(self, received: Received, context: Any) -> Iterator[Any]:
        script = self.script(received) if callable(self.script) else self.script
        texts = script.texts if received.inputs.get("stream") else ["".join(script.texts)]
        for done, text in enumerate(texts):
            self._interrupt(script, done, received, context)
            last = done == len(texts) - 1 and script.fail_after is None and script.hold_after is None
            yield _response(received, text, done, script.finish_reason if last else "", script.input_token_len)
        self._interrupt(script, len(texts), received, context)

    def _interrupt(self, script: Script, done: int, received: Received, context: Any) -> None:
        if script.hold_after == done:
            while not (received.cancelled.is_set() or self.release.wait(0.01)):
                continue
        if script.fail_after == done:
            status, text = script.error
            context.abort(status, f"in ensemble '{received.model}', {text}")


def _received(request: Any) -> Received:
    inputs: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        assert len(tensor.shape) == 2
        assert tensor.shape[0] == 1
        values = _texts(raw) if tensor.datatype == "BYTES" else _numbers(raw, tensor.datatype)
        assert len(values) == tensor.shape[1]
        is_list = tensor.name in ("stop_words", "stop_token_ids")
        inputs[tensor.name] = values if is_list else values[0]
    return Received(request.model_name, request.id, inputs, [output.name for output in request.outputs])


def _numbers(raw: bytes, datatype: str) -> list[Any]:
    return [value for (value,) in struct.iter_unpack("<" + _FORMATS[datatype], raw)]


def _texts(raw: bytes) -> list[str]:
    texts = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        texts.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return texts


def _response(received: Received, text: str, done: int, finish_reason: str, input_token_len: int) -> Any:
    tensors = {
        "finish_reason": ("BYTES", _bytes(finish_reason)),
        "text_output": ("BYTES", _bytes(text)),
        "token_ids": ("INT32", struct.pack("<2i", done, 100 + done)),
        "input_token_len": ("INT32", struct.pack("<i", input_token_len)),
        "generate_token_len": ("INT32", struct.pack("<i", 2 * (done + 1))),
        "index": ("INT32", struct.pack("<i", 0)),
    }
    answer = service_pb2.ModelInferResponse(model_name=received.model, id=received.id)
    for name in [name for name in tensors if name in received.outputs]:  # an order of its own, as Triton's ensembles
        datatype, raw = tensors[name]
        answer.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        answer.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=answer)


def _bytes(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw
