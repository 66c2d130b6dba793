"""The model's life in Triton: initialize, execute. Each request of a batch succeeds or fails by itself."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from lmdeploy.model import chat_template_for
from lmdeploy.token_bytes import TokenBytes
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from python_backend.parameters import model_path, parameter
from python_backend.preprocessing.prompt import PromptEncoder

logger = logging.getLogger(__name__)


class TritonPythonModel:
    """Chat template and tokenizer of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load template and tokenizer; an exception here keeps the model from becoming ready."""
        path = model_path(args)
        engine = resolve(path)
        tokenizer = Tokenizer(str(engine.path))
        template = chat_template_for(path, parameter(args, "chat_template") or None, tokenizer)
        longest_token = max(map(len, TokenBytes.read(engine.path / "token_bytes.bin").tokens))
        self._encoder = PromptEncoder(tokenizer, template, engine.spec.max_position_embeddings * longest_token)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request of a batch, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            prompt = self._encoder.encode(
                text=_text(request, "text_input"),
                messages=_text(request, "messages"),
                tools=_text(request, "tools"),
                stop_words=_texts(request, "stop_words"),
            )
        except ValueError as error:
            return _refusal(str(error), pb_utils.TritonError.INVALID_ARG)
        except Exception as error:
            logger.exception("request %s failed", request.request_id())
            return _refusal(f"internal error: {error!r}", pb_utils.TritonError.INTERNAL)
        stop_words = np.array([[word.encode() for word in prompt.stop_words]], dtype=np.object_)
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("INPUT_ID", np.array([prompt.ids], dtype=np.uint32)),
                pb_utils.Tensor("REQUEST_INPUT_LEN", np.array([[len(prompt.ids)]], dtype=np.uint32)),
                pb_utils.Tensor("STOP_WORDS", stop_words.reshape(1, -1)),
            ]
        )


def _refusal(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


def _texts(request: Any, name: str) -> list[str]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return []
    try:
        return [bytes(item).decode() for item in tensor.as_numpy().reshape(-1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8 text ({error.reason} at byte {error.start})") from error


def _text(request: Any, name: str) -> str | None:
    texts = _texts(request, name)
    return texts[0] if texts else None
