"""Requests and responses as KServe protobuf.

Tensor names, types and defaults are those of ``model_repository/*/config.pbtxt``.
"""

from __future__ import annotations

import json
import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from lmdeploy.fields.field import FieldInfo, Kind
from lmdeploy.messages import REPETITION
from lmdeploy.serve.cache_report import report_numbers
from lmdeploy.serve.request import FIELDS, GenerateChunk, GenerateRequest, new_request_id

_Number = TypeVar("_Number", int, float)

ENSEMBLE = "ensemble"
ENSEMBLE_VISION = "ensemble_vision"
ENGINE = "turbomind"
PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"

_TENSORS = {  # what a field holds -> datatype, struct's letter of its one number
    Kind.BOOLEAN: ("BOOL", "<?"),
    Kind.INTEGER: ("INT32", "<i"),
    Kind.NUMBER: ("FP32", "<f"),
    Kind.SEED: ("UINT64", "<Q"),
}
_COUNTS = frozenset({"input_token_len", "generate_token_len", "index", "history_token_len", "cached_token_len"})
_ALWAYS = ("text_output", "finish_reason", "input_token_len", "generate_token_len")
_WITH_LOGPROBS = ("token_ids", "token_logprobs", "top_token_ids", "top_logprobs")
_LISTS = {  # name -> struct's letter of its numbers, whether it has a row a token
    f"{of}{name}": layout
    for of in ("", "prompt_")
    for name, layout in {
        "token_ids": ("i", False),
        "token_logprobs": ("f", False),
        "top_token_ids": ("i", True),
        "top_logprobs": ("f", True),
    }.items()
}


def conversation_json(messages: Sequence[dict[str, Any]], options: dict[str, Any] | None) -> str:
    """Return the input ``messages``: a conversation, or an object with it and variables for the chat template."""
    return _json(list(messages) if not options else {"messages": list(messages), "chat_template_kwargs": options})


def encode_generate(request: GenerateRequest) -> service_pb2.ModelInferRequest:
    """Return `request` as one request for the ensemble, or for the engine when its prompt is tokens.

    Raises `ValueError` if a number does not fit its tensor's type.
    """
    message = _streamed(ENSEMBLE_VISION if request.has_images else ENSEMBLE, request.request_id)
    if request.messages is not None:
        _add_texts(message, "messages", [conversation_json(request.messages, request.template_options)])
    elif request.text_input is not None:
        _add_texts(message, "text_input", [request.text_input])
    elif request.input_ids is not None:
        message.model_name = ENGINE
        _add_numbers(message, "input_ids", "UINT32", "<I", request.input_ids)
    if request.tools is not None:
        _add_texts(message, "tools", [_json(request.tools)])
    _add_numbers(message, "stream", "BOOL", "<?", [request.stream])
    for name, value in request.fields.items():
        _add_field(message, FIELDS[name], value)
    _request_outputs(message, _outputs(request))
    return message


def _add_field(message: service_pb2.ModelInferRequest, field: FieldInfo, value: Any) -> None:
    """Add a field as the tensor of its name; a dict of biases is two of them, and an empty list none.

    A number without a tensor is a parameter of the request.
    """
    if not field.is_tensor:
        message.parameters[field.name].string_param = str(value)
        return
    match field.kind:
        case Kind.STRINGS:
            if value:
                _add_texts(message, field.name, value)
        case Kind.TOKENS:
            if value:
                _add_numbers(message, field.name, "INT32", "<i", value)
        case Kind.BIASES:
            if value:
                _add_numbers(message, f"{field.name}_ids", "INT32", "<i", list(value))
                _add_numbers(message, f"{field.name}_values", "FP32", "<f", list(value.values()))
        case Kind.STRING:
            _add_texts(message, field.name, [value])
        case Kind.JSON:
            _add_texts(message, field.name, [_json(value)])
        case _:
            _add_numbers(message, field.name, *_TENSORS[field.kind], [value])


def _streamed(model: str, request_id: str) -> service_pb2.ModelInferRequest:
    """Return an empty request for a stream, whose errors have no code but in their text, and that when asked for."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.parameters["error_codes"].bool_param = True
    return message


def _outputs(request: GenerateRequest) -> list[str]:
    """Return the outputs `request` needs; each one costs time at every token."""
    names, fields = list(_ALWAYS), request.fields
    if fields.get("n", 1) > 1:
        names.append("index")
    if "session_id" in fields:
        names.append("history_token_len")
    if "logprobs" in fields:
        names += _WITH_LOGPROBS
    elif request.return_token_ids:
        names.append("token_ids")
    if fields.get("output_embedding"):
        names.append("embedding")
    if "prompt_logprobs" in fields:
        names += [f"prompt_{name}" for name in _WITH_LOGPROBS]
    if request.return_cached_len:
        names.append("cached_token_len")
    if fields.get("include_cache_report"):
        names.append("cache_report")
    if request.return_stop_string:
        names.append("stop_string")
    if request.return_engine_seconds:
        names += ["engine_seconds", "load_seconds"]
    return names


def encode_stop(request_id: str = "", session_id: int | None = None) -> service_pb2.ModelInferRequest:
    """Return the control request that cancels a request, or what a session is running."""
    message = _streamed(ENGINE, new_request_id())
    _add_numbers(message, "STOP", "INT32", "<i", [1])
    if session_id is None:
        _add_texts(message, "stop_request_id", [request_id])
    else:
        _add_numbers(message, "CORRID", "UINT64", "<Q", [session_id])
    return message


def encode_end_session(session_id: int) -> service_pb2.ModelInferRequest:
    """Return the request that makes the engine forget a session, in the words of LMDeploy's own Triton clients."""
    message = service_pb2.ModelInferRequest(model_name=ENGINE, id=new_request_id())
    for name, value in (("input_ids", 1), ("input_lengths", 1), ("request_output_len", 0)):
        _add_numbers(message, name, "UINT32", "<I", [value])
    for name, value in (("START", 0), ("END", 1), ("STOP", 0)):
        _add_numbers(message, name, "INT32", "<i", [value])
    _add_numbers(message, "CORRID", "UINT64", "<Q", [session_id])
    return message


def encode_control(
    texts: Mapping[str, str | None],  # tensors, as in the engine's config.pbtxt; empty ones are left out
    key: str,
    input_ids: Sequence[int] = (),
    sleep_level: int | None = None,
    keep_alive: float | None = None,
) -> service_pb2.ModelInferRequest:
    """Return a control request of the engine's adapters, cache or memory."""
    message = _with_texts(_streamed(ENGINE, new_request_id()), texts)
    message.parameters["control_key"].string_param = key
    if input_ids:
        _add_numbers(message, "input_ids", "UINT32", "<I", input_ids)
    if sleep_level is not None:
        _add_numbers(message, "sleep_level", "INT32", "<i", [sleep_level])
    if keep_alive is not None:
        _add_field(message, FIELDS["keep_alive"], keep_alive)
    _request_outputs(message, _ALWAYS)
    return message


def encode_limits() -> service_pb2.ModelInferRequest:
    """Return the control request for the engine's limits."""
    message = _streamed(ENGINE, new_request_id())
    _add_numbers(message, "limits", "BOOL", "<?", [True])
    _request_outputs(message, _ALWAYS)
    return message


def encode_preprocessing(texts: Mapping[str, str | None], key: str | None = None) -> service_pb2.ModelInferRequest:
    """Return a request to preprocessing with some texts; with a key it loads or unloads the template of an adapter."""
    message = service_pb2.ModelInferRequest(model_name=PREPROCESSING, id=new_request_id())
    if key is not None:
        message.parameters["control_key"].string_param = key
    message.outputs.add(name="INPUT_ID")
    return _with_texts(message, texts)


def encode_tokenize(
    name: str, text: str, add_special_tokens: bool | None = None, **others: str | None
) -> service_pb2.ModelInferRequest:
    """Return the request for token ids; `name` is ``text_input`` or ``messages``, JSON text as `tools` among others."""
    message = encode_preprocessing(others)
    _add_texts(message, name, [text])
    if add_special_tokens is not None:
        _add_numbers(message, "add_special_tokens", "BOOL", "<?", [add_special_tokens])
    return message


def decode_token_ids(response: service_pb2.ModelInferResponse) -> list[int]:
    """Return the response to `encode_tokenize`."""
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == "INPUT_ID":
            return list(struct.unpack(f"<{len(raw) // 4}I", raw))
    return []


def encode_detokenize(
    token_ids: Sequence[int], skip_special_tokens: bool, *, as_bytes: bool = False
) -> service_pb2.ModelInferRequest:
    """Return the request for the text of tokens, or for the bytes of each by itself."""
    message = service_pb2.ModelInferRequest(model_name=POSTPROCESSING, id=new_request_id())
    if as_bytes:
        message.parameters["as_bytes"].bool_param = True
    count = len(token_ids)
    message.inputs.add(name="TOKENS_BATCH", datatype="UINT32", shape=(1, count, 1) if as_bytes else (1, 1, count))
    message.raw_input_contents.append(struct.pack(f"<{count}I", *token_ids))
    _add_numbers(message, "sequence_length", "UINT32", "<I", [0] * count if as_bytes else [0])
    _add_numbers(message, "skip_special_tokens", "INT32", "<i", [int(skip_special_tokens)])
    return message


def decode_token_bytes(response: service_pb2.ModelInferResponse) -> list[bytes]:
    """Return the response to `encode_detokenize` with `as_bytes`."""
    items: list[bytes] = deserialize_bytes_tensor(response.raw_output_contents[0]).tolist()
    return items


def decode_text(response: service_pb2.ModelInferResponse) -> str:
    """Return the response to `encode_detokenize`."""
    raw: bytes = response.raw_output_contents[0]
    return raw[4:].decode(errors="replace")


def decode_json(response: service_pb2.ModelInferResponse) -> Any:
    """Return the response to a control request."""
    return json.loads(decode_chunk(response).text)


def decode_chunk(response: service_pb2.ModelInferResponse) -> GenerateChunk:
    """Return one response as a chunk. Reads raw bytes: this runs once a token."""
    chunk = GenerateChunk()
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        name = output.name
        if name == "text_output":
            chunk.text = raw[4:].decode()  # BYTES: 4 bytes of length, then one UTF-8 string
        elif name == "finish_reason":
            chunk.finish_reason = raw[4:].decode() or None
            if chunk.finish_reason == REPETITION:
                chunk.finish_reason, chunk.stop_reason = "length", REPETITION
        elif name in _COUNTS:
            setattr(chunk, name, int.from_bytes(raw, "little", signed=True))
        elif name == "stop_string":
            chunk.stop_string = raw[4:].decode()
        elif name == "cache_report":
            chunk.cache_report = report_numbers(raw)
        elif name == "engine_seconds":
            chunk.engine_seconds = struct.unpack("<3f", raw)
        elif name == "load_seconds":
            (chunk.load_seconds,) = struct.unpack("<f", raw)
        elif name == "embedding":
            chunk.embedding = raw
        elif name in _LISTS:
            letter, has_rows = _LISTS[name]
            values = struct.unpack(f"<{len(raw) // 4}{letter}", raw)
            setattr(chunk, name, _rows(values, output.shape[-1]) if has_rows else values)
    return chunk


def _rows(flat: tuple[_Number, ...], width: int) -> tuple[tuple[_Number, ...], ...]:
    return tuple(flat[begin : begin + width] for begin in range(0, len(flat), width)) if width else ()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _request_outputs(message: service_pb2.ModelInferRequest, names: Iterable[str]) -> None:
    message.outputs.extend(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names)


def _with_texts(
    message: service_pb2.ModelInferRequest, texts: Mapping[str, str | None]
) -> service_pb2.ModelInferRequest:
    for name, text in texts.items():
        if text:
            _add_texts(message, name, [text])
    return message


def _add_texts(message: service_pb2.ModelInferRequest, name: str, texts: Sequence[str]) -> None:
    encoded = [text.encode() for text in texts]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    _add_input(message, name, "BYTES", len(texts), raw)


def _add_numbers(
    message: service_pb2.ModelInferRequest, name: str, datatype: str, layout: str, values: Iterable[float]
) -> None:
    given = tuple(values)
    try:
        packed = struct.pack(f"<{len(given)}{layout[-1]}", *given)
    except (struct.error, OverflowError):
        raise ValueError(f"{name} must fit {datatype}, got {reprlib.repr(list(given))}") from None
    _add_input(message, name, datatype, len(given), packed)


def _add_input(message: service_pb2.ModelInferRequest, name: str, datatype: str, count: int, raw: bytes) -> None:
    tensor = message.inputs.add()
    tensor.name, tensor.datatype = name, datatype
    tensor.shape.extend((1, count))  # [batch, count]
    message.raw_input_contents.append(raw)
