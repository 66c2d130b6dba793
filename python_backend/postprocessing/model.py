"""Triton model class of `postprocessing`: initialize, execute. It keeps nothing between requests."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmdeploy.token_bytes import TokenBytes
from lmdeploy.turbomind.engine_dir import resolve
from python_backend.end_with_server import end_with_server
from python_backend.inputs import array, flag
from python_backend.parameters import model_path
from python_backend.respond import respond


class TritonPythonModel:
    """Detokenizer of one model, for clients that ask for the text of the tokens they got."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the token table; an exception here keeps the model from becoming ready."""
        end_with_server()
        self._table = TokenBytes.read(resolve(model_path(args)).path / "token_bytes.bin")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request of a batch, in order."""
        return [respond(request, self._outputs) for request in requests]

    def _outputs(self, request: Any) -> dict[str, Any]:
        tokens, shown = array(request, "TOKENS_BATCH"), array(request, "sequence_length")
        if tokens is None or shown is None:
            raise ValueError("TOKENS_BATCH and sequence_length must both be given")
        rows, starts = tokens[0], shown[0]  # [rows, tokens], [rows]
        if len(starts) != len(rows):
            raise ValueError(
                f"sequence_length must be as long as TOKENS_BATCH has rows, {len(rows)}, got {len(starts)}"
            )
        skip = flag(request, "skip_special_tokens", default=True)
        texts = [self._table.shown(row[start:].tolist(), skip) for row, start in zip(rows, starts, strict=True)]
        if not json.loads(request.parameters() or "{}").get("as_bytes"):
            texts = [text.decode(errors="replace").encode() for text in texts]
        # Of rank 1, without the batch dimension: the clients take the first item for the text.
        return {"OUTPUT": np.array(texts, dtype=np.object_)}
