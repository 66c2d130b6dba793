"""The tower and projector of Phi-3-vision, which ``transformers`` does not have.

Every tile gives a square of patches. The squares are side by side as the tiles do in the image; two by two patches
are one row of embeddings, and every line of them ends in its own vector. The lines of the tiles come first, then
a separator, then those of the whole image.
"""

import torch
from torch import Tensor, nn
from transformers import CLIPVisionModel, LlavaConfig, PreTrainedModel


class Phi3Tower(PreTrainedModel):  # type: ignore[misc]
    """Makes rows of tiles.

    ``config``: with CLIP's as ``vision_config``, and the width of the rows in ``text_config``.
    """

    config_class = LlavaConfig
    seen = -2  # layer

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        merged, hidden = 4 * config.vision_config.hidden_size, config.text_config.hidden_size
        self.vision_tower = CLIPVisionModel(config.vision_config)
        self.projection = nn.Sequential(nn.Linear(merged, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.line_end = nn.Parameter(torch.zeros(merged))
        self.separator = nn.Parameter(torch.zeros(merged))
        self.post_init()

    def forward(self, whole: Tensor, tiles: Tensor) -> Tensor:
        """Return the rows of an image.

        ``whole``: the image as one tile ``[3, side, side]``. ``tiles``: the image in tiles ``[rows, columns, 3, side,
        side]``. Returns ``[tokens, hidden]``.
        """
        pixels = torch.cat([tiles.flatten(0, 1), whole[None]]).to(self.dtype)
        patches = self.vision_tower(pixels, output_hidden_states=True).hidden_states[self.seen][:, 1:]
        lines = self._lines(patches[:-1], tiles.shape[0], tiles.shape[1])
        rows: Tensor = self.projection(self.ordered(lines, self._lines(patches[-1:], 1, 1)))
        return rows

    def ordered(self, lines: Tensor, whole: Tensor) -> Tensor:
        """Return the lines of the tiles and those of the whole image, one after the other."""
        return torch.cat([lines, self.separator[None], whole])

    def _lines(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Return the merged patches of ``rows * columns`` tiles, line by line ``[tokens, merged]``."""
        side = int(patches.shape[1] ** 0.5) // 2
        split = patches.view(rows, columns, side, 2, side, 2, -1)
        lines = split.permute(0, 2, 1, 4, 3, 5, 6).reshape(rows * side, columns * side, -1)
        ends = self.line_end.expand(len(lines), 1, -1)
        return torch.cat([lines, ends], dim=1).flatten(0, 1)
