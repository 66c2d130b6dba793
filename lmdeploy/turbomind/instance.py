"""Token-level engine interface with LMDeploy's names: ``TurboMind`` and its instances."""

import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.messages import EngineOutput, GenerationConfig, ResponseType, TurbomindEngineConfig
from lmdeploy.paths import locate_model
from lmdeploy.turbomind.engine import Engine, SessionOptions
from lmdeploy.turbomind.engine import EngineOutput as Piece
from lmdeploy.turbomind.engine_settings import settings_of

if TYPE_CHECKING:
    from typing_extensions import Self


class TurboMind:
    """A loaded model without tokenizer and chat template. Safe to use from many threads.

    Raises `ValueError` if the checkpoint cannot be used or a setting is bad. ``model_path``: a Hugging Face directory
    or the name of a repository, or a workspace of ``lmdeploy convert``.
    """

    def __init__(self, model_path: str, engine_config: TurbomindEngineConfig | Mapping[str, Any] | None = None) -> None:
        config = engine_config or TurbomindEngineConfig()  # engine settings; default: ``TurbomindEngineConfig()``
        settings = settings_of(config)
        path = locate_model(model_path, settings.get("revision"), settings.get("download_dir"))
        self.engine = Engine(str(path), config, "turbomind")

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str,
        engine_config: TurbomindEngineConfig | Mapping[str, Any] | None = None,
    ) -> "Self":
        """Return a loaded model; parameters and errors are those of the class."""
        return cls(pretrained_model_name_or_path, engine_config)

    def create_instance(self) -> "TurboMindInstance":
        """Return an instance that runs one request after another; each thread may have its own."""
        return TurboMindInstance(self.engine)

    def close(self) -> None:
        """Cancel what is running and free the model."""
        self.engine.close()


class TurboMindInstance:
    """Runs requests by token ids; made by ``TurboMind.create_instance``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stream_infer(
        self,
        session_id: int,  # the caller's number of the conversation, >= 0
        input_ids: Sequence[int],  # the tokens of this turn alone
        gen_config: GenerationConfig | None = None,  # how to generate; default: ``GenerationConfig()``
        # Whether the session begins with this request, and ends with it
        sequence_start: bool = True,
        sequence_end: bool = False,
        step: int = 0,  # keep only this many of the session's tokens first; 0: all
        stream_output: bool = False,
    ) -> Iterator[EngineOutput]:
        """Yield what a request has generated so far: after each step if ``stream_output``, else once.

        Raises `ValueError` if a setting is bad.

        Yields
        ------
        EngineOutput
            A request that fails yields one with the status that says why. Leaving early cancels the request.
        """
        options = SessionOptions(session_id, sequence_start, sequence_end, step or -1)
        ids = list(input_ids)
        if not ids or len(ids) >= self._engine.session_len:
            yield EngineOutput(ResponseType.INPUT_LENGTH_ERROR, [], 0)
            return
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        request = self._engine.submit(
            ids, gen_config or GenerationConfig(), pieces.put, stream=stream_output, session=options
        )
        tokens: list[int] = []
        logprobs: list[dict[int, float]] = []
        is_final = False
        try:
            while not is_final:
                piece = pieces.get()
                is_final = piece.is_final
                tokens += piece.token_ids
                logprobs += piece.logprobs or []
                yield _output(piece, list(tokens), list(logprobs) or None)
        finally:
            if not is_final:
                self._engine.cancel(request)

    def cancel(self, session_id: int) -> None:
        """Stop the session's running request; it keeps the tokens made so far."""
        done: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._engine.stop_session(session_id, done.put)
        done.get()

    def end(self, session_id: int) -> None:
        """Forget the session, after cancelling its running request."""
        done: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._engine.end_session(session_id, done.put)
        done.get()


def _output(piece: Piece, tokens: list[int], logprobs: list[dict[int, float]] | None) -> EngineOutput:
    import torch

    status = ResponseType.FINISH if piece.is_final else ResponseType.SUCCESS
    if piece.finish_reason == "error":
        is_missing = piece.is_bad_request and "session" in piece.error
        status = ResponseType.SESSION_NOT_EXIST if is_missing else ResponseType.INTERNAL_ENGINE_ERROR
    extras = [None if rows is None else torch.from_numpy(rows) for rows in (piece.logits, piece.last_hidden_state)]
    return EngineOutput(status, tokens, len(tokens), logprobs, *extras)
