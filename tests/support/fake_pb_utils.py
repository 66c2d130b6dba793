"""Triton's Python backend, for tests without a server."""

import importlib
import json
import os
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

_FINAL = 1


@dataclass
class Tensor:
    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


class TritonError(Exception):
    INTERNAL, INVALID_ARG, CANCELLED = 1, 3, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Response:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def array(self, name: str) -> Any:
        return next(tensor.array for tensor in self.output_tensors if tensor.name == name)


class Sender:
    """Keeps the response that a model sends later."""

    def __init__(self) -> None:
        self.sent = threading.Event()
        self.response: Response | None = None
        self.left = False

    def send(self, response: Response, flags: int) -> None:
        assert (self.response, flags) == (None, _FINAL)
        self.response = response
        self.sent.set()

    def is_cancelled(self) -> bool:
        return self.left

    def wait(self) -> Response:
        assert self.sent.wait(120)
        assert self.response is not None
        return self.response


class Request:
    """A request: arrays as they are, texts as ``[1, n]`` tensors, as Triton hands them over for max_batch_size 1."""

    output_names: list[str] = ["STOP_WORDS", "IMAGES"]  # noqa: RUF012 (set on a request, never changed in place)
    id = "test"
    reported: dict[str, str] = {}  # noqa: RUF012 (likewise): its parameters

    def __init__(self, **inputs: str | bytes | list[str] | np.ndarray[Any, Any]) -> None:
        self.tensors = {name: Tensor(name, _array(value)) for name, value in inputs.items()}
        self.sender = Sender()

    def get_response_sender(self) -> Sender:
        return self.sender

    def requested_output_names(self) -> list[str]:
        return self.output_names

    def request_id(self) -> str:
        return self.id

    def parameters(self) -> str:
        return json.dumps(self.reported)


def _array(value: str | bytes | list[str] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    encoded = [item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass") for item in items]
    return np.array([encoded], dtype=np.object_).reshape(1, -1)


def _waiting(execute: Any) -> Any:
    """Return an `execute` that returns all responses, also those that the model sends later."""

    def waits(model: Any, requests: list[Request]) -> list[Response]:
        given = zip(requests, execute(model, requests), strict=True)
        return [request.sender.wait() if response is None else response for request, response in given]

    return waits


@contextmanager
def loaded_model(name: str, **parameters: str) -> Iterator[Any]:
    """Yield an initialized model of ``python_backend``, imported with a stand-in for Triton's module."""
    fake = types.ModuleType("triton_python_backend_utils")
    vars(fake).update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=Response,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=_FINAL,
        get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, fake.__name__, fake)
        patch.setattr(os, "nice", lambda increment: increment)  # a model in a server has its own process
        for module in [module for module in sys.modules if module.startswith("python_backend.")]:
            patch.delitem(sys.modules, module)
        ending = importlib.import_module("python_backend.end_with_server")
        patch.setattr(ending, "end_with_server", lambda: None)  # likewise
        kind = importlib.import_module(f"python_backend.{name}").TritonPythonModel
        patch.setattr(kind, "execute", _waiting(kind.execute))
        instance = kind()
        instance.initialize(arguments(**parameters))
        yield instance


def arguments(**parameters: str) -> dict[str, str]:
    """Return the arguments of a model's ``initialize``."""
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return {"model_config": json.dumps(config), "model_repository": "/nowhere", "model_version": "1"}
