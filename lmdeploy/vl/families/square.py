"""Images in one size whatever their shape, as CLIP's towers were trained to see colours."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL.Image import Image, Resampling

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Squarer:
    """Makes images squares of ``side`` pixels."""

    side: int

    def pixels(self, image: Image) -> "torch.Tensor":
        """Return the normalized pixels ``[3, side, side]`` of an image."""
        import numpy as np
        import torch
        from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

        resized = image.resize((self.side, self.side), Resampling.BICUBIC)
        values = torch.from_numpy(np.asarray(resized, dtype=np.float32) / 255)
        return ((values - torch.tensor(OPENAI_CLIP_MEAN)) / torch.tensor(OPENAI_CLIP_STD)).permute(2, 0, 1)
