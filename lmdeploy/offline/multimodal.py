"""Preparation of prompts with images, in this process."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.extras import require
from lmdeploy.prompts import PreparedPrompt, Prompt, PromptPreparer
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lmdeploy.vl.encoder import VisionEncoder


class MultimodalPreparer(PromptPreparer):
    """Prepares prompts with the embeddings of their images. Safe to use from any thread.

    ``checkpoint``: has the vision tower, which is loaded for the first image. ``session_len``: images of prompts that
    are not shorter are not looked at.
    """

    def __init__(
        self, checkpoint: Path, tokenizer: Tokenizer, template: ChatTemplate, session_len: int, max_log_len: int | None
    ) -> None:
        require("vision", "a vision-language model")
        from lmdeploy.vl.prompts import image_writer
        from lmdeploy.vl.sources import ANYTHING

        writer = image_writer(checkpoint, tokenizer, template, ANYTHING)
        super().__init__(tokenizer, template, max_log_len=max_log_len, images=writer)
        self._checkpoint = checkpoint
        self._session_len = session_len
        self._loading = threading.Lock()
        self._encoder: VisionEncoder | None = None  # guarded by _loading

    @property
    def encoder(self) -> "VisionEncoder":
        """The vision tower."""
        from lmdeploy.vl.encoder import load_encoder

        with self._loading:
            if self._encoder is None:
                self._encoder = load_encoder(self._checkpoint)
            return self._encoder

    def prepare(self, prompt: Prompt, *args: Any, **options: Any) -> PreparedPrompt:
        """Return the engine's input for a prompt; as :meth:`PromptPreparer.prepare`."""
        prepared = super().prepare(prompt, *args, **options)
        if not prepared.images or len(prepared.ids) >= self._session_len:
            return prepared
        return prepared._replace(rows=tuple(self.encoder.placed(prepared.images)))
