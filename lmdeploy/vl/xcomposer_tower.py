"""The towers and projectors of InternLM-XComposer2 and 2.5, which ``transformers`` does not have."""

import torch
from torch import Tensor, nn
from transformers import CLIPVisionModel, LlavaConfig, PreTrainedModel

from lmdeploy.vl.phi3_tower import Phi3Tower


class TiledTower(Phi3Tower):
    """That of the 4KHD model and of 2.5: as Phi-3-vision's, with the last layer seen and the whole image in front."""

    seen = -1

    def ordered(self, lines: Tensor, whole: Tensor) -> Tensor:
        """Return the lines of the whole image and those of the tiles, one after the other."""
        return torch.cat([whole, self.separator[None], lines])


class SquareTower(PreTrainedModel):  # type: ignore[misc]
    """That of the first models: a row a patch of the image in one size.

    ``config``: with CLIP's as ``vision_config``, and the width of the rows in ``text_config``.
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        seen, hidden = config.vision_config.hidden_size, config.text_config.hidden_size
        self.vision_tower = CLIPVisionModel(config.vision_config)
        self.projection = nn.Sequential(nn.Linear(seen, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.post_init()

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the rows ``[tokens, hidden]`` of an image ``[3, side, side]``."""
        states = self.vision_tower(pixels[None].to(self.dtype), output_hidden_states=True).hidden_states[-1]
        rows: Tensor = self.projection(states[0, 1:])
        return rows
