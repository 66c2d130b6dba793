"""The model class for OpenCompass's config files: ``type=lmdeploy.evaluation.opencompass.PipelineModel``.

It has the methods and arguments that OpenCompass's ``BaseModel`` and its TurboMind model have, and is a ``BaseModel``
where OpenCompass is installed. Without it, it works alone on texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmdeploy.evaluation.scored_model import ScoredModel
from lmdeploy.messages import GenerationConfig

try:
    from opencompass.models.base import BaseModel
except ModuleNotFoundError as error:
    if error.name != "opencompass":  # it is there, and lacks something itself
        raise

    class BaseModel:  # type: ignore[no-redef]
        """Interface of OpenCompass's class, as far as it is used."""

        def __init__(self, path: str, max_seq_len: int = 2048, meta_template: dict[str, Any] | None = None) -> None:
            self.path, self.max_seq_len = path, max_seq_len


class PipelineModel(BaseModel):
    """A pipeline as OpenCompass uses a model.

    Parameters
    ----------
    path
        The model, as for ``pipeline``.
    engine_config
        Fields of ``TurbomindEngineConfig``, with ``backend="pytorch"`` of ``PytorchEngineConfig``.
    gen_config
        Fields of ``GenerationConfig``.
    max_seq_len
        Most tokens of prompt and answer; the session length, where ``engine_config`` names none.
    concurrency
        Most prompts answered at a time.
    meta_template
        How OpenCompass writes conversations; its own parser reads it.
    end_str
        Where answers are cut off.
    backend
        ``turbomind`` or ``pytorch``.
    """

    is_api = False

    def __init__(
        self,
        path: str,
        engine_config: Mapping[str, Any] | None = None,
        gen_config: Mapping[str, Any] | None = None,
        max_seq_len: int = 2048,
        concurrency: int = 8,
        meta_template: dict[str, Any] | None = None,
        end_str: str | None = None,
        backend: str = "turbomind",
    ) -> None:
        super().__init__(path=path, max_seq_len=max_seq_len, meta_template=meta_template)
        settings = {"session_len": max_seq_len, "max_batch_size": concurrency, **(engine_config or {})}
        self._model = ScoredModel(path, {"backend": backend, **settings})
        self._gen_config = dict(gen_config or {})
        self._end_str = end_str

    def generate(self, inputs: Sequence[str], max_out_len: int = 512, **fields: Any) -> list[str]:
        """Return continuations of prompts, at most ``max_out_len`` tokens each.

        ``stopping_criteria`` are further texts that end an answer; other fields of OpenCompass's are not used.
        """
        stop_words = [*fields.get("stopping_criteria", ()), *([self._end_str] if self._end_str else [])]
        config = GenerationConfig(**{**self._gen_config, "max_new_tokens": max_out_len, "stop_words": stop_words})
        return self._model.generate([str(text) for text in inputs], [config] * len(inputs))

    def get_ppl(
        self, inputs: Sequence[str], mask_length: Sequence[int] | None = None
    ) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return the mean cross-entropy of texts in nats a token, without the first ``mask_length`` tokens of each."""
        encoded = [self._model.tokenizer.encode(str(text)) for text in inputs]
        skipped = [max(1, length) for length in mask_length or [1] * len(encoded)]
        pairs = [(ids[:skip], ids[skip:]) for ids, skip in zip(encoded, skipped, strict=True)]
        scores = self._model.score(pairs)
        return np.array([-total / max(1, len(rest)) for (total, _), (_, rest) in zip(scores, pairs, strict=True)])

    def get_loglikelihood(
        self, inputs: Sequence[str], conts: Sequence[str], mask_length: Sequence[int] | None = None
    ) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return the log-probabilities of continuations; each input ends with its continuation, as OpenCompass does."""
        pairs = [
            self._model.pair(str(text).removesuffix(continuation), continuation)
            for text, continuation in zip(inputs, conts, strict=True)
        ]
        return np.array([total for total, _ in self._model.score(pairs)])

    def get_token_len(self, prompt: str) -> int:
        """Return the number of tokens of a text, without what the tokenizer puts around it."""
        return len(self._model.tokenizer.encode(str(prompt), add_bos=False))
