"""One generation request and the pieces of its answer, as Python and as KServe protobuf.

Tensor names, types and defaults are those of ``model_repository/*/config.pbtxt``.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2

ENSEMBLE = "ensemble"
ENGINE = "turbomind"


def new_request_id() -> str:
    """Return an id no other request has, as cancelling by id needs."""
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class GenerateRequest:
    """What to generate from, and how. ``None`` leaves the default to the served model.

    Attributes
    ----------
    messages : sequence of dict, optional
        OpenAI messages; the chat template is applied. Give this or ``text_input``.
    text_input : str, optional
        A finished prompt, used as is.
    tools : sequence of dict, optional
        OpenAI tools, handed to the chat template.
    stop_words : sequence of str
        Strings that end the answer, beside those of the chat template.
    stream : bool
        True: one chunk a generated step. False: one chunk with the whole answer.
    want_token_ids : bool
        Whether chunks carry token ids.
    request_id : str
        Unique among all requests the engine has at one time.
    """

    messages: Sequence[dict[str, Any]] | None = None
    text_input: str | None = None
    tools: Sequence[dict[str, Any]] | None = None
    stop_words: Sequence[str] = ()
    stream: bool = True
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    random_seed: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Sequence[int] = ()
    skip_special_tokens: bool | None = None
    want_token_ids: bool = False
    request_id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        """Refuse what the ensemble could only refuse later."""
        if (self.messages is None) == (self.text_input is None):
            raise ValueError("give exactly one of messages and text_input")


@dataclass(slots=True)
class GenerateChunk:
    """One response of the engine.

    Attributes
    ----------
    text : str
        New text; empty while the engine holds text back.
    token_ids : tuple of int
        New token ids; empty unless the request wanted them.
    finish_reason : str or None
        None until the last chunk; then ``stop``, ``length`` or ``cancelled``.
    input_token_len, generate_token_len : int
        Tokens in the prompt, and tokens generated so far.
    index : int
        Which of the n choices this belongs to.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    input_token_len: int
    generate_token_len: int
    index: int


# field of GenerateRequest (and tensor) -> datatype, struct format
_SCALARS = {
    "stream": ("BOOL", "<?"),
    "max_new_tokens": ("INT32", "<i"),
    "min_new_tokens": ("INT32", "<i"),
    "do_sample": ("BOOL", "<?"),
    "temperature": ("FP32", "<f"),
    "top_p": ("FP32", "<f"),
    "top_k": ("INT32", "<i"),
    "repetition_penalty": ("FP32", "<f"),
    "random_seed": ("UINT64", "<Q"),
    "ignore_eos": ("BOOL", "<?"),
    "skip_special_tokens": ("BOOL", "<?"),
}
_OUTPUTS = ("text_output", "finish_reason", "input_token_len", "generate_token_len", "index")


def encode_generate(request: GenerateRequest) -> service_pb2.ModelInferRequest:
    """Return `request` as one request for the ensemble.

    Raises
    ------
    ValueError
        A number does not fit its tensor's type.
    """
    message = service_pb2.ModelInferRequest(model_name=ENSEMBLE, id=request.request_id)
    if request.messages is not None:
        _add_texts(message, "messages", [_json(request.messages)])
    if request.text_input is not None:
        _add_texts(message, "text_input", [request.text_input])
    if request.tools is not None:
        _add_texts(message, "tools", [_json(request.tools)])
    if request.stop_words:
        _add_texts(message, "stop_words", request.stop_words)
    for name, (datatype, layout) in _SCALARS.items():
        value = getattr(request, name)
        if value is not None:
            _add_numbers(message, name, datatype, layout, [value])
    if request.stop_token_ids:
        _add_numbers(message, "stop_token_ids", "INT32", "<i", request.stop_token_ids)
    outputs = (*_OUTPUTS, "token_ids") if request.want_token_ids else _OUTPUTS
    message.outputs.extend(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs)
    return message


def encode_stop(request_id: str) -> service_pb2.ModelInferRequest:
    """Return the control request that cancels `request_id` in the engine."""
    message = service_pb2.ModelInferRequest(model_name=ENGINE, id=new_request_id())
    _add_numbers(message, "STOP", "INT32", "<i", [1])
    _add_texts(message, "stop_request_id", [request_id])
    return message


def decode_chunk(response: service_pb2.ModelInferResponse) -> GenerateChunk:
    """Return one response of the ensemble as a chunk. Reads raw bytes: this runs once a token."""
    chunk = GenerateChunk("", (), None, 0, 0, 0)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        name = output.name
        if name == "text_output":
            chunk.text = raw[4:].decode()  # BYTES: 4 bytes of length, then one UTF-8 string
        elif name == "finish_reason":
            chunk.finish_reason = raw[4:].decode() or None
        elif name == "token_ids":
            chunk.token_ids = struct.unpack(f"<{len(raw) // 4}i", raw)
        elif name in ("input_token_len", "generate_token_len", "index"):
            setattr(chunk, name, int.from_bytes(raw, "little", signed=True))
    return chunk


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _add_texts(message: service_pb2.ModelInferRequest, name: str, texts: Sequence[str]) -> None:
    encoded = [text.encode() for text in texts]
    raw = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    _add_input(message, name, "BYTES", len(texts), raw)


def _add_numbers(
    message: service_pb2.ModelInferRequest, name: str, datatype: str, layout: str, values: Iterable[float]
) -> None:
    try:
        packed = [struct.pack(layout, value) for value in values]
    except (struct.error, OverflowError):
        raise ValueError(f"{name} must fit {datatype}, got {values}") from None
    _add_input(message, name, datatype, len(packed), b"".join(packed))


def _add_input(message: service_pb2.ModelInferRequest, name: str, datatype: str, count: int, raw: bytes) -> None:
    tensor = message.inputs.add()
    tensor.name, tensor.datatype = name, datatype
    tensor.shape.extend((1, count))  # [batch, count]
    message.raw_input_contents.append(raw)
