"""Yi-VL: `transformers`' LLaVA of the same tensors with the projector that Yi-VL's authors describe, in float64."""

from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from transformers import LlavaForConditionalGeneration, LlavaImageProcessorPil

from tests.support import tiny_own_layouts as own


def make_tiny_yi_vl(directory: Path) -> Path:
    """Make a Yi-VL in its authors' layout, its tower in a folder alongside it."""
    return own.make_tiny_llava_original(directory, normed=True)


class YiVlReference:
    """Logits of a checkpoint made by :func:`make_tiny_yi_vl`."""

    def __init__(self, directory: Path) -> None:
        native = own.native_of(directory)
        self._model = LlavaForConditionalGeneration.from_pretrained(native, dtype=torch.float64)
        self._pixels = LlavaImageProcessorPil.from_pretrained(native)
        prefix = "model.mm_projector."
        tensors = load_file(directory / "model.safetensors")
        projector = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
        hidden, seen = projector["0.weight"].shape
        layers = (nn.Linear(seen, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden))
        whole = nn.Sequential(*layers, nn.LayerNorm(hidden))
        whole.load_state_dict(projector)
        self._model.model.multi_modal_projector = whole.double()

    def __call__(self, ids: list[int], images: list[Image.Image]) -> torch.Tensor:
        """Return the logits [tokens, vocab] of a text with images."""
        shown = {"pixel_values": self._pixels(images, return_tensors="pt")["pixel_values"].double()} if images else {}
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([ids]), **shown).logits[0]
        return logits
