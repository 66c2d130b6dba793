"""Triton model class of `vision`: initialize, execute. Each request succeeds or fails by itself, callers in turn."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.engine_dir import resolve
from python_backend.images import NAMES, packed_rows, unpacked
from python_backend.inputs import array, texts
from python_backend.lanes import Job, Lanes
from python_backend.parameters import model_path

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
        self._lanes = Lanes(self._outputs, {"images": 1})

    def execute(self, requests: Sequence[Any]) -> list[None]:
        """Let requests wait for their turn."""
        for request in requests:
            self._lanes.put("images", request)
        return [None] * len(requests)

    def _outputs(self, job: Job) -> dict[str, Any]:
        request = job.request
        given = {name: array(request, name) for name in NAMES}
        if given["IMAGES"] is None:
            return {}
        if self._encoder is None:
            raise ValueError("this model reads text only")
        images = unpacked(given, texts(request, "IMAGE_OPTIONS"))
        return packed_rows(self._encoder.placed(images))
