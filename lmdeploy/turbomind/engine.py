"""The C++ engine in this process, with outputs by callback."""

import atexit
import json
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lmdeploy._turbomind as _turbomind
from lmdeploy.fields.field import FieldInfo, Kind, fields_of
from lmdeploy.messages import (
    ALL_THAT_IS_LEFT,
    REPETITION,
    GenerationConfig,
    LogitsProcessor,
)
from lmdeploy.model_metadata.task_adapters import task_adapters
from lmdeploy.paths import locate_model, located_adapters
from lmdeploy.prompts import ImageRows
from lmdeploy.speculative import located
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.engine_settings import EngineConfig, backend_of, settings_of
from lmdeploy.turbomind.heads.directory import find_head

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_OFFLINE_SETTINGS = {"max_waiting": 2**30}  # offline callers wait; no request is refused as overloaded
# Commands of the processes that the engine starts; in Triton backend_cpp/triton/engine_location.cc names them.
_WORKER = [sys.executable, "-m", "lmdeploy.pytorch.worker"]
_PUBLISHER = [sys.executable, "-m", "lmdeploy.kv_events.publisher"]
_GRAMMAR = [sys.executable, "-m", "lmdeploy.grammars"]
_PARAMS = tuple(field for field in fields_of(GenerationConfig) if field.is_param)

EngineUnavailable = _turbomind.EngineUnavailable


@dataclass(frozen=True)
class SessionOptions:
    """The session of a request, whose tokens the engine keeps between requests."""

    session_id: int  # session id, >= 0
    start: bool = False  # true: start a new session, replacing one of the same id
    end: bool = False  # true: delete the session after this request
    step: int = -1  # first truncate the session to this many tokens; negative: keep all


@dataclass(slots=True)
class EngineOutput:
    """An output of a request: of one step, or with ``stream=False`` a complete response."""

    # Number of the request, and index among its ``n`` responses
    request: int
    index: int
    # New text and tokens, without the stop token
    text: str
    token_ids: list[int]
    # Empty before the last output of the response, then ``stop``, ``length``, ``cancelled`` or ``error``
    finish_reason: str
    is_final: bool  # whether this is the last output of the request
    # Number of tokens of the prompt, of the session before it, and generated so far
    input_token_len: int
    history_token_len: int
    generate_token_len: int
    # For each of ``token_ids``, its log probability and those of the most likely tokens; None: not requested
    logprobs: list[dict[int, float]] | None
    # ``[tokens, vocab]`` and ``[tokens, hidden]`` float32, if requested
    logits: "np.ndarray[Any, np.dtype[np.float32]] | None"
    last_hidden_state: "np.ndarray[Any, np.dtype[np.float32]] | None"
    embedding: "np.ndarray[Any, np.dtype[np.float32]] | None"  # result of ``Engine.embed``: ``[1, hidden]`` float32
    # Result of ``Engine.score``: the sum of -log p over the tokens of the text, and their number
    ppl: tuple[float, int] | None
    # With finish reason ``error``: the message, and whether the request was invalid
    error: str
    is_bad_request: bool
    # With ``length``: ``repetition`` where `GenerationConfig.repetition_detection` ended the response
    stop_reason: Literal["repetition"] | None = None


OutputCallback = Callable[[EngineOutput], None]


def _ignore(output: EngineOutput) -> None:
    """Ignore an output."""


class Engine:
    """A loaded model. Safe to use from any thread.

    Raises `ValueError` if the checkpoint is invalid or unsupported (``CheckpointError``, ``UnsupportedModelError``), or
    a setting is.
    """

    def __init__(
        self,
        model_path: str,  # as in :func:`lmdeploy.turbomind.engine_dir.resolve`
        config: EngineConfig | Mapping[str, Any] | None = None,  # engine settings, as a config or as a dict
        # ``turbomind``, ``pytorch``, ``auto`` (the one that supports the model), or None: by the config, or ``auto``
        backend: str | None = None,
    ) -> None:
        settings = {**settings_of(config), **_OFFLINE_SETTINGS}
        backend = backend or backend_of(config)
        self.directory = resolve(
            model_path,
            settings.get("revision"),
            settings.get("download_dir"),
            None if backend == "auto" else backend,
            settings.get("custom_module_map", ""),
        )
        settings["adapters"] = task_adapters(self.directory.path) | located_adapters(settings.get("adapters"))
        if settings.get("cache_dir"):
            settings["cache_dir"] = str(Path(settings["cache_dir"]).expanduser().absolute())
        if speculation := settings.get("speculative_config"):
            settings["speculative_config"] = located(
                speculation,
                lambda model: str(resolve(model, None, settings.get("download_dir")).path),
                lambda method, model: str(find_head(self.directory.path, method, model, settings.get("download_dir"))),
            )
        self._engine = _turbomind.Engine(str(self.directory.path), json.dumps(settings), _WORKER, _PUBLISHER, _GRAMMAR)
        for note in self._engine.notes:
            logger.warning("%s", note)
        self.session_len: int = self._engine.session_len
        self.vocab_size: int = self._engine.vocab_size
        self._callbacks: dict[int, OutputCallback] = {}
        self._lock = threading.Lock()  # guards _callbacks: the first output of a request waits for its callback
        self._is_closing = False
        self._poller = threading.Thread(target=self._deliver, name="lmdeploy-outputs", daemon=True)
        self._poller.start()
        _open_engines.add(self)

    def submit(
        self,
        input_ids: Sequence[int],  # tokens of the prompt, fewer than ``session_len``
        gen_config: GenerationConfig,  # generation config
        on_output: OutputCallback,  # called on the engine's delivery thread with every output in order; must not block
        *,
        stop_words: Sequence[str] = (),  # strings that end the response, in addition to those of ``gen_config``
        stream: bool = True,  # False: a single output per response
        session: SessionOptions | None = None,  # the session of the request; None: none
        images: Sequence[ImageRows] = (),  # image embeddings that replace those of placeholder tokens, in order
        adapter_name: str | None = None,  # name of the LoRA adapter; None: the base model
    ) -> int:
        """Start a request and return its number.

        Raises `ValueError` if the request is invalid, and `EngineUnavailable` if the engine is closed or has failed.
        """
        given = {field.name: getattr(gen_config, field.name) for field in _PARAMS}
        params = {
            field.name: _for_engine(field, given[field.name]) for field in _PARAMS if given[field.name] is not None
        }
        params |= {name: getattr(gen_config, name) for name in ("output_logits", "output_last_hidden_state")}
        if gen_config.max_new_tokens is None:
            params["max_new_tokens"] = ALL_THAT_IS_LEFT
        params["stop_words"] = [*(gen_config.stop_words or ()), *stop_words]
        if gen_config.logits_processors:
            params["logits_hook"] = _logits_hook(gen_config.logits_processors)
        if session is not None:
            params["session"] = (session.session_id, session.start, session.end, False, session.step)
        params["stream"] = stream
        return self._submit(list(input_ids), params | _added(images, adapter_name), on_output)

    def score(self, input_ids: Sequence[int], on_output: OutputCallback) -> int:
        """Start scoring a text of up to ``session_len`` tokens: a single output, with ``ppl``."""
        return self._submit(list(input_ids), {"max_new_tokens": 0, "scores_prompt": True}, on_output)

    def embed(
        self,
        input_ids: Sequence[int],  # at most ``session_len`` tokens
        on_output: OutputCallback,
        # Index of the first token of the second text of a pair; None: a single text
        second_text_begin: int | None = None,
        *,
        # As for `submit`
        images: Sequence[ImageRows] = (),
        adapter_name: str | None = None,
        of_tokens: bool = False,  # for encoders: ``embedding`` is the hidden state of each token
    ) -> int:
        """Start embedding a text: a single output, with ``embedding``."""
        params: dict[str, Any] = {"max_new_tokens": 0, "output_embedding": True, "stream": False}
        if of_tokens:
            params["output_token_embeddings"] = True
        if second_text_begin is not None:
            params["second_text_begin"] = second_text_begin
        return self._submit(list(input_ids), params | _added(images, adapter_name), on_output)

    def stop_session(self, session_id: int, on_output: OutputCallback = _ignore) -> int:
        """Cancel the running request of a session, which keeps the tokens generated so far."""
        params = {"max_new_tokens": 0, "session": (session_id, False, False, True, -1)}
        return self._submit([], params, on_output)

    def end_session(self, session_id: int, on_output: OutputCallback = _ignore) -> int:
        """Cancel the running request of a session and delete the session."""
        params = {"max_new_tokens": 0, "session": (session_id, False, True, True, -1)}
        return self._submit([], params, on_output)

    def load_adapter(self, name: str, path: str) -> None:
        """Register a LoRA adapter; its weights are loaded when a request first uses it.

        Raises `ValueError` if the name is taken, or the adapter does not match the model, and `OSError` if it cannot be
        read. ``name``: name that requests use. ``path``: a directory as PEFT saves it, or the name of a Hugging Face
        repository.
        """
        self._engine.load_adapter(name, str(locate_model(path)))

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter: later requests are refused, running ones finish.

        Raises `ValueError` if there is none of that name.
        """
        if name not in self.adapters():
            raise ValueError(f"there is no adapter {name}")
        self._engine.unload_adapter(name)

    def adapters(self) -> list[str]:
        """Return the names of the adapters that requests may use."""
        return self._engine.adapters()

    def cancel(self, request: int) -> None:
        """End a request; its last output has the finish reason ``cancelled``. Unknown and ended ones are ignored."""
        self._engine.cancel(request)

    def _submit(self, input_ids: list[int], params: dict[str, Any], on_output: OutputCallback) -> int:
        with self._lock:
            request: int = self._engine.submit(input_ids, params)
            self._callbacks[request] = on_output
        return request

    def metrics(self) -> dict[str, float]:
        """Return the gauges and counters of docs/internals/interfaces.md, without the prefix ``turbomind_``."""
        stats: dict[str, float] = self._engine.stats()
        return stats

    def close(self) -> None:
        """Cancel open requests, deliver the last outputs and free the model."""
        if self._is_closing:
            return
        self._engine.close()
        self._is_closing = True
        if threading.current_thread() is not self._poller:
            self._poller.join()

    def _deliver(self) -> None:
        while True:
            is_last = self._is_closing
            outputs = self._engine.poll(0.0 if is_last else _POLL_SECONDS)
            for output in map(_read_output, outputs):
                with self._lock:
                    callback = self._callbacks[output.request]
                    if output.is_final:
                        del self._callbacks[output.request]
                try:
                    callback(output)
                except Exception:
                    logger.exception("the callback of request %d failed", output.request)
            if is_last and not outputs:
                return


def _for_engine(field: FieldInfo, value: Any) -> Any:
    """Return a field's value as the compiled module takes it."""
    if field.kind is Kind.JSON:
        return json.dumps(value) if value else ""
    return list(value.items()) if field.kind is Kind.BIASES else value


def _read_output(members: dict[str, Any]) -> EngineOutput:
    total, count = members.pop("score")
    entries = members.pop("logprobs")
    logprobs = [
        {token: chosen, **dict(top)} for token, (chosen, top) in zip(members["token_ids"], entries, strict=False)
    ]
    ppl = (total, count) if count else None
    if members["finish_reason"] == REPETITION:
        members |= {"finish_reason": "length", "stop_reason": REPETITION}
    return EngineOutput(**members, logprobs=logprobs or None, ppl=ppl)


def _added(images: Sequence[ImageRows], adapter_name: str | None) -> dict[str, Any]:
    """Return the parameters of images and of an adapter, if any."""
    added: dict[str, Any] = {} if adapter_name is None else {"lora_name": adapter_name}
    if images:
        rows = [(p.begin, p.tokens, p.rows, p.dtype, p.digest, p.grid, p.frame_step) for p in images]
        added["embeddings"] = rows
    return added


def _logits_hook(processors: Sequence[LogitsProcessor]) -> Callable[[Any, Any], None]:
    """Return a function that runs processors on arrays ``(token ids, logits)`` and leaves the result in the logits."""
    import torch

    def hook(tokens: Any, logits: Any) -> None:
        ids, row = torch.from_numpy(tokens), torch.from_numpy(logits)
        changed = row
        for processor in processors:
            changed = processor(ids, changed)
        if changed is not row:
            row.copy_(changed)

    return hook


# Engines that were never closed must stop before the interpreter exits, or their threads would outlive it.
_open_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()
