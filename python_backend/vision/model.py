"""The model's life in Triton: initialize, execute. Each request of a batch succeeds or fails by itself."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.engine_dir import resolve
from python_backend.images import NAMES, packed_rows, unpacked
from python_backend.inputs import array, texts
from python_backend.parameters import model_path
from python_backend.respond import respond

if TYPE_CHECKING:
    from lmdeploy.vl.encoder import VisionEncoder

_NICENESS = 10  # alongside the engine, whose responses are running


class TritonPythonModel:
    """Tower and projector of one model; nothing for a model that reads text only."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load them; an exception here keeps the model from becoming ready."""
        checkpoint = resolve(model_path(args)).vision_checkpoint
        self._encoder: VisionEncoder | None = None
        if checkpoint is not None:
            from lmdeploy.vl.encoder import load_encoder

            os.nice(_NICENESS)
            self._encoder = load_encoder(checkpoint)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request of a batch, in order."""
        return [respond(request, self._outputs) for request in requests]

    def _outputs(self, request: Any) -> dict[str, Any]:
        given = {name: array(request, name) for name in NAMES}
        if given["IMAGES"] is None:
            return {}
        if self._encoder is None:
            raise ValueError("this model reads text only")
        images = unpacked(given, texts(request, "IMAGE_OPTIONS"))
        return packed_rows(self._encoder.placed(images))
