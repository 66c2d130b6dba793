"""The tower and resampler of Qwen-VL, which ``transformers`` does not have (Bai et al., 2023, arXiv 2308.12966).

A ViT whose learned positions are stretched to the number of patches, then learned queries that attend to its patches.
"""

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PreTrainedModel

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
        self.resblocks = nn.ModuleList(_Layer(vision) for _ in range(vision.num_hidden_layers))
        self.attn_pool = _Resampler(config.image_seq_length, width, hidden)
        self.ln_post = nn.LayerNorm(hidden, eps=_EPS)
        self.proj = nn.Parameter(torch.zeros(hidden, hidden))
        self.post_init()

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the rows ``[tokens, hidden]`` of an image ``[3, side, side]``."""
        patches = self.conv1(pixels[None].to(self.dtype)).flatten(2).transpose(1, 2)
        states = self.ln_pre(patches + _stretched(self.positional_embedding, patches.shape[1]))
        for layer in self.resblocks:
            states = layer(states)
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


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=_EPS)
        self.attn = _Attention(config.hidden_size, config.num_attention_heads)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=_EPS)
        self.mlp = _Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, states: Tensor) -> Tensor:
        """Return the states after this layer."""
        states = states + self.attn(self.ln_1(states))
        result: Tensor = states + self.mlp(self.ln_2(states))
        return result


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(hidden, 3 * hidden)  # a head's query, key and value are adjacent
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        """Return full self-attention of the states."""
        joined = self.in_proj(states).unflatten(2, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*joined.unbind())
        result: Tensor = self.out_proj(found.transpose(1, 2).flatten(2))
        return result


class _Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden, inner)
        self.c_proj = nn.Linear(inner, hidden)

    def forward(self, states: Tensor) -> Tensor:
        """Return the MLP's update of the states."""
        result: Tensor = self.c_proj(nn.functional.gelu(self.c_fc(states)))
        return result


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
