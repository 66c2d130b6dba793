"""The C++ engine in this process: submit a prompt, get its outputs by callback."""

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import lmdeploy._turbomind as _turbomind
from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.supported import refuse_unsupported, refuse_unsupported_engine

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_OFFLINE_SETTINGS = {"max_waiting": 2**30}  # the caller waits; nothing is refused as overloaded
_PARAMS = (
    "max_new_tokens", "min_new_tokens", "do_sample", "temperature", "top_p", "top_k", "repetition_penalty",
    "random_seed", "ignore_eos", "skip_special_tokens",
)  # fmt: skip

EngineUnavailable = _turbomind.EngineUnavailable


class EngineOutput(NamedTuple):
    """What one step, or with ``stream=False`` the whole answer, brought for a request.

    ``finish_reason`` is empty until the last output, then ``stop``, ``length``, ``cancelled`` or ``error``.
    """

    request: int
    text: str
    token_ids: list[int]
    finish_reason: str
    input_token_len: int
    generate_token_len: int
    error: str


OutputCallback = Callable[[EngineOutput], None]


class Engine:
    """One model, ready to generate. Safe to use from any thread.

    Parameters
    ----------
    model_path
        As in :func:`lmdeploy.turbomind.engine_dir.resolve`.
    config
        Engine settings.

    Raises
    ------
    ValueError
        If the checkpoint cannot be used (``CheckpointError``, ``UnsupportedModelError``) or a setting is bad.
    """

    def __init__(self, model_path: str, config: TurbomindEngineConfig | None = None) -> None:
        config = config or TurbomindEngineConfig()
        refuse_unsupported_engine(config)
        self.directory = resolve(model_path, config.revision, config.download_dir)
        settings = {**dataclasses.asdict(config), **_OFFLINE_SETTINGS}
        self._engine = _turbomind.Engine(str(self.directory.path), json.dumps(settings))
        self.session_len: int = self._engine.session_len
        self.vocab_size: int = self._engine.vocab_size
        self._callbacks: dict[int, OutputCallback] = {}
        self._lock = threading.Lock()  # of _callbacks: a request's first output waits until its callback is there
        self._is_closing = False
        self._poller = threading.Thread(target=self._deliver, name="lmdeploy-outputs", daemon=True)
        self._poller.start()

    def submit(
        self,
        input_ids: Sequence[int],
        gen_config: GenerationConfig,
        on_output: OutputCallback,
        *,
        stop_words: Sequence[str] = (),
        stream: bool = True,
    ) -> int:
        """Start a request and return its number.

        Parameters
        ----------
        input_ids
            The prompt's tokens, fewer than ``session_len``.
        gen_config
            How to generate.
        on_output
            Called on the engine's delivery thread with every output in order; must not block.
        stop_words
            Strings that end the answer, beside those of ``gen_config``.
        stream
            False: one output with the whole answer.

        Raises
        ------
        ValueError
            If the request is bad.
        EngineUnavailable
            If the engine is closed or has failed.
        """
        refuse_unsupported(gen_config)
        params = {name: getattr(gen_config, name) for name in _PARAMS}
        params["max_new_tokens"] = min(gen_config.max_new_tokens, self.session_len)
        params["stop_words"] = [*(gen_config.stop_words or ()), *stop_words]
        params["stop_token_ids"] = list(gen_config.stop_token_ids or ())
        params["stream"] = stream
        with self._lock:
            request: int = self._engine.submit(list(input_ids), params)
            self._callbacks[request] = on_output
        return request

    def cancel(self, request: int) -> None:
        """End a request; its last output has the finish reason ``cancelled``. Unknown and ended ones are ignored."""
        self._engine.cancel(request)

    def metrics(self) -> dict[str, float]:
        """Return the gauges and counters of docs/interfaces.md, without the prefix ``turbomind_``."""
        stats: dict[str, float] = self._engine.stats()
        return stats

    def close(self) -> None:
        """Cancel what is open, deliver the last outputs and free the model."""
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
            for output in map(EngineOutput._make, outputs):
                with self._lock:
                    callback = self._callbacks[output.request]
                    if output.finish_reason:
                        del self._callbacks[output.request]
                try:
                    callback(output)
                except Exception:
                    logger.exception("the callback of request %d failed", output.request)
            if is_last and not outputs:
                return
