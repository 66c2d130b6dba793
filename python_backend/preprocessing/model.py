"""The model's life in Triton: initialize, execute. Each request of a batch succeeds or fails by itself."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmdeploy.model import chat_template_for
from lmdeploy.prompts import ImageReader, PlacedImage, PromptBound, PromptPreparer
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.token_bytes import longest_token
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from python_backend.images import packed
from python_backend.inputs import flag, has, integer, text, texts
from python_backend.parameters import model_path, parameter
from python_backend.preprocessing.adapters import adapter_of, control
from python_backend.preprocessing.prompt import RequestEncoder, SessionTurn
from python_backend.respond import respond


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
            longest_token(engine.path / "token_bytes.bin"),
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

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request of a batch, in order."""
        return [respond(request, self._outputs) for request in requests]

    def _outputs(self, request: Any) -> dict[str, Any]:
        if has(request, "lora_control"):
            return control(request, self._adapters)
        rows, stop_words, images = self._encode(request)
        tensors: dict[str, Any] = {}
        if images and "STOP_WORDS" in (wanted := request.requested_output_names()):  # a response is to follow
            if "IMAGES" not in wanted:
                raise ValueError("prompts with images are for the model ensemble_vision")
            tensors = packed(images)
        return tensors | {
            "INPUT_ID": _right_padded(rows, self._encoder.padding),
            "REQUEST_INPUT_LEN": np.array([[len(row)] for row in rows], dtype=np.uint32),
            "STOP_WORDS": np.array([word.encode() for word in stop_words], dtype=np.object_).reshape(1, -1),
        }

    def _encode(self, request: Any) -> tuple[list[list[int]], list[str], tuple[PlacedImage, ...]]:
        """Return the token ids of each text, one but for QUERY, the stop words and the images."""
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
        )
        return [prompt.ids], prompt.stop_words, prompt.images


def _image_reader(checkpoint: Path | None, tokenizer: Tokenizer, template: ChatTemplate) -> ImageReader | None:
    """Return what reads images, for a vision-language model; nothing heavy is imported for another one."""
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
