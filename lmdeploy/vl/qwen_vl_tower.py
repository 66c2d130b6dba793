"""The tower and resampler of Qwen-VL, which ``transformers`` does not have (Bai et al., 2023, arXiv 2308.12966).

A ViT whose learned positions are stretched to the number of patches, then learned queries that attend to its patches.
"""

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PreTrainedModel
from transformers.models.clip.modeling_clip import CLIPEncoder

_EPS = 1e-6
_POSITIONS = 256  # of the table, whatever an image's size
_HEAD_DIM = 128  # of the queries


class QwenVlTower(PreTrainedModel):  # type: ignore[misc]
    """Makes ``image_seq_length`` rows of an image.

    ``config``: with the tower's sizes in ``vision_config``, and the width of the rows in ``text_config``.
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        vision, hidden = config.vision_config, config.text_config.hidden_size
        width, patch = vision.hidden_size, vision.patch_size
        self.conv1 = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros(_POSITIONS, width))
        self.ln_pre = nn.LayerNorm(width, eps=_EPS)
        vision._attn_implementation = "sdpa"
        self.encoder = CLIPEncoder(vision)
        self.attn_pool = _Resampler(config.image_seq_length, width, hidden)
        self.ln_post = nn.LayerNorm(hidden, eps=_EPS)
        self.proj = nn.Parameter(torch.zeros(hidden, hidden))
        self.post_init()

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the rows ``[tokens, hidden]`` of an image ``[3, side, side]``."""
        patches = self.conv1(pixels[None].to(self.dtype)).flatten(2).transpose(1, 2)
        states = self.ln_pre(patches + _stretched(self.positional_embedding, patches.shape[1]))
        states = self.encoder(states).last_hidden_state
        rows: Tensor = self.ln_post(self.attn_pool(states)[0]) @ self.proj
        return rows


def _stretched(table: Tensor, count: int) -> Tensor:
    """Return a square table of positions ``[places, width]`` for a square of ``count`` places."""
    before, after = int(len(table) ** 0.5), int(count**0.5)
    if before == after:
        return table
    square = table.float().unflatten(0, (before, before)).permute(2, 0, 1)[None]
    resized = nn.functional.interpolate(square, size=(after, after), mode="bicubic", align_corners=False)
    return resized[0].flatten(1).T.to(table.dtype)


class _Resampler(nn.Module):  # type: ignore[misc]
    def __init__(self, queries: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(queries, hidden))
        self.pos_embed = nn.Parameter(torch.zeros(queries, hidden))
        self.kv_proj = nn.Linear(inputs, hidden, bias=False) if inputs != hidden else nn.Identity()
        self.attn = nn.MultiheadAttention(hidden, hidden // _HEAD_DIM, batch_first=True)
        self.ln_q, self.ln_kv = nn.LayerNorm(hidden, eps=_EPS), nn.LayerNorm(hidden, eps=_EPS)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the resampler's queries over the patches ``[1, queries, hidden]``."""
        values = self.ln_kv(self.kv_proj(patches))
        queries = (self.ln_q(self.query) + self.pos_embed)[None]
        keys = values + _stretched(self.pos_embed, values.shape[1])
        found: Tensor = self.attn(queries, keys, values, need_weights=False)[0]
        return found
