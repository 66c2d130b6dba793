"""Triton model class of `preprocessing`: initialize, execute. Each request succeeds or fails by itself, in its lane."""

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdeploy.model import chat_template_for
from lmdeploy.prompts import ImageReader, PromptBound, PromptImage, PromptPreparer
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.token_bytes import max_token_bytes
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from python_backend.images import packed
from python_backend.inputs import array, flag, has, integer, text, texts
from python_backend.lanes import Job, Lanes
from python_backend.parameters import model_path, parameter
from python_backend.preprocessing.adapters import adapter_of, control
from python_backend.preprocessing.prompt import RequestEncoder, SessionTurn
from python_backend.respond import respond

# Threads of each lane. Images are decoded, and templates of adapters rendered, in processes that the threads wait for.
_THREADS = {"short": 1, "long": 1, "adapters": 1, "media": 2}
_SHORT = 32 << 10  # bytes
# A text of so many bytes costs less than the way through a lane, if nothing waited: since the last request was handed
# over, so many seconds went by.
_TINY = 4 << 10
_ALONE_SECONDS = 1e-3
# Types of parts, as `lmdeploy.vl.prompts` reads them, which JSON may also write in escapes.
_MEDIA = (b'"image_', b'"video_', b"\\u")
_SWITCH_SECONDS = 1e-3  # after which a thread lets another one run
_NO_PROMPT = {"INPUT_ID": np.zeros((1, 0), np.uint32)}


class TritonPythonModel:
    """Chat template and tokenizer of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load template and tokenizer; an exception here keeps the model from becoming ready."""
        path = model_path(args)
        engine = resolve(path)
        tokenizer = Tokenizer(str(engine.path))
        template = chat_template_for(path, parameter(args, "chat_template") or None, tokenizer)
        max_log_len = int(parameter(args, "max_log_len") or 0)
        if max_log_len:
            logging.basicConfig(level=logging.INFO)  # tritonserver's log
        settings = json.loads(parameter(args, "engine_config") or "{}")
        bound = PromptBound(
            settings.get("session_len") or engine.spec.max_position_embeddings,
            max_token_bytes(engine.path / "token_bytes.bin"),
        )
        preparer = PromptPreparer(
            tokenizer,
            template,
            bound=bound,
            max_log_len=max_log_len,
            images=_image_reader(engine.vision_checkpoint, tokenizer, template),
            split_special_tokens=parameter(args, "split_special_tokens") == "true",
        )
        self._adapters = preparer.adapter_templates
        self._adapters.add_all(settings.get("adapters") or {})
        self._encoder = RequestEncoder(preparer)
        self._has_images = preparer.has_images
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._lanes = Lanes(self._outputs, _THREADS)
        self._returned = 0.0  # when `execute` did, by the monotonic clock

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Respond to a tiny text that comes alone; let all others wait in their lanes, which respond to them."""
        is_alone = len(requests) == 1 and time.monotonic() - self._returned > _ALONE_SECONDS
        responses = [self._response(request, is_alone) for request in requests]
        self._returned = time.monotonic()
        return responses

    def _response(self, request: Any, is_alone: bool) -> Any:
        """Return the response to a request, or None where its lane responds."""
        size, lane = self._size_and_lane(request)
        if is_alone and lane == "short" and size <= _TINY and self._lanes.is_idle("short"):
            return respond(request, lambda _: self._outputs(Job(request)))
        self._lanes.put(lane, request)
        return None

    def _size_and_lane(self, request: Any) -> tuple[int, str]:
        """Return the bytes of a request's texts, and the lane for what it may cost."""
        given = [array(request, name) for name in ("messages", "text_input", "tools", "QUERY")]
        contents = [item for items in given if items is not None for item in items.reshape(-1)]
        size = sum(map(len, contents))
        if self._has_images and any(tag in content for tag in _MEDIA for content in contents):
            return size, "media"
        if has(request, "lora_control") or (not self._adapters.is_empty and self._adapters.get(adapter_of(request))):
            return size, "adapters"
        return size, "short" if size <= _SHORT else "long"

    def _outputs(self, job: Job) -> dict[str, Any]:
        request = job.request
        if (stopped := text(request, "stop_request_id")) is not None:
            self._lanes.drop(stopped)
            return _NO_PROMPT
        if has(request, "lora_control"):
            control(request, self._adapters)
            return _NO_PROMPT
        rows, stop_words, images = self._encode(job)
        tensors: dict[str, Any] = {}
        if images and "STOP_WORDS" in (requested := request.requested_output_names()):  # a response is to follow
            if "IMAGES" not in requested:
                raise ValueError("prompts with images are for the model ensemble_vision")
            tensors = packed(images)
        return tensors | {
            "INPUT_ID": _right_padded(rows, self._encoder.padding),
            "REQUEST_INPUT_LEN": np.array([[len(row)] for row in rows], dtype=np.uint32),
            "STOP_WORDS": np.array([word.encode() for word in stop_words], dtype=np.object_).reshape(1, -1),
        }

    def _encode(self, job: Job) -> tuple[list[list[int]], list[str], tuple[PromptImage, ...]]:
        """Return the token ids of each text, one but for QUERY, the stop words and the images."""
        request = job.request
        inputs = {name: text(request, name) for name in ("text_input", "messages", "tools")}
        queries = texts(request, "QUERY")
        if queries:
            if any(inputs.values()):
                raise ValueError("QUERY must come alone, got text_input, messages or tools too")
            return [self._encoder.encode_query(query) for query in queries], [], ()
        session = integer(request, "session_id")
        prompt = self._encoder.encode(
            inputs["text_input"],
            inputs["messages"],
            inputs["tools"],
            texts(request, "stop_words"),
            None if session is None else SessionTurn(session, is_first=flag(request, "sequence_start")),
            None if self._adapters.is_empty else adapter_of(request),
            flag(request, "add_special_tokens") if has(request, "add_special_tokens") else None,
            job.raise_if_cancelled,
        )
        return [prompt.ids], prompt.stop_words, prompt.images


def _image_reader(checkpoint: Path | None, tokenizer: Tokenizer, template: ChatTemplate) -> ImageReader | None:
    """Return the image processor of a vision-language model; nothing heavy is imported for another one."""
    if checkpoint is None:
        return None
    from lmdeploy.vl.decoder_process import DecoderProcess
    from lmdeploy.vl.prompts import image_writer
    from lmdeploy.vl.sources import DATA_ONLY

    return image_writer(checkpoint, tokenizer, template, replace(DATA_ONLY, decoder=DecoderProcess()))


def _right_padded(rows: list[list[int]], padding: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    padded = np.full((len(rows), max(map(len, rows))), padding, dtype=np.uint32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded
