"""The preprocessing model: each request of a batch gets its token ids or its own error."""

import importlib
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

MESSAGES = [{"role": "user", "content": "Hi, 你好 🙂"}]


@dataclass
class Tensor:
    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


class TritonError(Exception):
    INTERNAL, INVALID_ARG = 1, 3

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Response:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def array(self, name: str) -> Any:
        return next(tensor.array for tensor in self.output_tensors if tensor.name == name)


class Request:
    """A request with ``[1, n]`` string inputs, as Triton hands them over for max_batch_size 1."""

    def __init__(self, **inputs: str | bytes | list[str]) -> None:
        self.tensors = {}
        for name, value in inputs.items():
            items = value if isinstance(value, list) else [value]
            encoded = [item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass") for item in items]
            self.tensors[name] = Tensor(name, np.array([encoded], dtype=np.object_).reshape(1, -1))

    def request_id(self) -> str:
        return "test"


@pytest.fixture(scope="module")
def model(default_model_dir: Path) -> Iterator[Any]:
    fake = types.ModuleType("triton_python_backend_utils")
    vars(fake).update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=Response,
        get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, fake.__name__, fake)
        for name in ("python_backend.preprocessing", "python_backend.preprocessing.model"):
            patch.delitem(sys.modules, name, raising=False)
        instance = importlib.import_module("python_backend.preprocessing").TritonPythonModel()
        instance.initialize(arguments(model_path=str(default_model_dir)))
        yield instance


def arguments(**parameters: str) -> dict[str, str]:
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    return {"model_config": json.dumps(config), "model_repository": "/nowhere", "model_version": "1"}


def test_messages_become_the_ids_transformers_gives(model: Any, default_model_dir: Path) -> None:
    reference = AutoTokenizer.from_pretrained(default_model_dir)
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    [response] = model.execute([Request(messages=json.dumps(MESSAGES))])
    ids = response.array("INPUT_ID")
    assert ids.tolist() == [expected]
    assert (ids.dtype, ids.shape) == (np.uint32, (1, len(expected)))
    assert response.array("REQUEST_INPUT_LEN").tolist() == [[len(expected)]]


def test_text_is_used_as_it_is(model: Any, default_model_dir: Path) -> None:
    [response] = model.execute([Request(text_input="Once upon")])
    assert response.array("INPUT_ID").tolist() == [AutoTokenizer.from_pretrained(default_model_dir).encode("Once upon")]


def test_without_stop_words_the_tensor_is_empty_but_there(model: Any) -> None:
    [response] = model.execute([Request(text_input="x")])
    assert response.array("STOP_WORDS").shape == (1, 0)


def test_the_callers_stop_words_and_the_templates_are_joined(
    model: Any, default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CHAT_TEMPLATE", "internlm2")
    other = type(model)()
    other.initialize(arguments(model_path=str(default_model_dir), chat_template="base"))
    [response] = other.execute([Request(messages=json.dumps(MESSAGES), stop_words=["终", "<|im_end|>"])])
    assert response.array("STOP_WORDS").tolist() == [["终".encode(), b"<|im_end|>", b"<|action_end|>"]]


def test_the_environment_overrides_the_configured_model(
    model: Any, default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_MODEL_PATH", str(default_model_dir))
    type(model)().initialize(arguments(model_path="/nowhere/at/all"))


def test_a_relative_model_path_starts_at_the_version_directory(
    model: Any, default_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "preprocessing" / "1").mkdir(parents=True)
    (tmp_path / "there").symlink_to(default_model_dir)
    args = arguments(model_path="../../there") | {"model_repository": str(tmp_path / "preprocessing")}
    type(model)().initialize(args)


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "one of text_input and messages must be given, got neither"),
    "both": ({"text_input": "x", "messages": json.dumps(MESSAGES)}, "must not both be given"),
    "empty text": ({"text_input": ""}, "at least one token"),
    "no json": ({"messages": "hello"}, "messages must be JSON"),
    "not a list": ({"messages": "{}"}, "messages must be a list, got dict"),
    "no messages": ({"messages": "[]"}, "at least one message"),
    "bad role": ({"messages": '[{"role": "bot", "content": "x"}]'}, "role must be one of"),
    "deep nesting": ({"messages": "[" * 100_000}, "messages must be JSON"),
    "tools no list": ({"messages": json.dumps(MESSAGES), "tools": '"f"'}, "tools must be a list"),
    "tools": ({"messages": json.dumps(MESSAGES), "tools": '[{"type": "function"}]'}, "tools are not supported"),
    "tools with text": ({"text_input": "x", "tools": '[{"type": "function"}]'}, "tools must come with messages"),
    "no utf-8": ({"text_input": b"ab\xff"}, "text_input must be UTF-8 text (invalid start byte at byte 2)"),
    "surrogate": ({"messages": r'[{"role": "user", "content": "\ud800"}]'}, "lone surrogate"),
    "empty stop word": ({"text_input": "x", "stop_words": [""]}, "stop_words must be non-empty strings"),
    "ten megabytes": ({"text_input": "x" * 10_000_000}, "at most 663552 bytes to fit the model, got 10000000"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_refused_and_its_neighbours_are_answered(model: Any, case: str) -> None:
    inputs, reason = BAD_REQUESTS[case]
    first, bad, last = model.execute([Request(text_input="a"), Request(**inputs), Request(text_input="b")])
    assert reason in str(bad.error)
    assert bad.error.code == TritonError.INVALID_ARG
    assert first.error is None
    assert last.error is None


def test_a_bug_becomes_an_internal_error_of_its_request(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(model._encoder, "encode", fail)
    [response] = model.execute([Request(text_input="a")])
    assert response.error.code == TritonError.INTERNAL
    assert "surprise" in str(response.error)


def test_the_repositorys_model_is_this_one(model: Any) -> None:
    source = Path(__file__).parents[2] / "model_repository" / "preprocessing" / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("repository_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TritonPythonModel is type(model)
