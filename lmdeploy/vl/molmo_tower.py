"""The tower and pooling of Molmo, which ``transformers`` does not have (Deitke et al., 2024, arXiv 2409.17146).

A CLIP of which two layers are seen; two by two patches become one by attention from their mean.
"""

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PreTrainedModel
from transformers.models.clip.modeling_clip import CLIPEncoderLayer

_SEEN = (-2, -9)  # layers
_SPECIAL = 4  # embeddings that images are written with


class MolmoTower(PreTrainedModel):  # type: ignore[misc]
    """Makes a row of four patches.

    ``config``: with CLIP's as ``vision_config``; the width of the rows and the size of their MLP in ``text_config``.
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        vision, text = config.vision_config, config.text_config
        width, seen = vision.hidden_size, len(_SEEN) * vision.hidden_size
        self.image_vit = _Vit(vision)
        self.pad_embed = nn.Parameter(torch.zeros(2, seen))
        self.image_pooling_2d = _Attention(seen, width, vision.num_attention_heads)
        self.image_projector = _Projector(width, text.intermediate_size, text.hidden_size)
        self.special = nn.Parameter(torch.zeros(_SPECIAL, text.hidden_size))
        self.post_init()

    def forward(self, crops: Tensor, masks: Tensor) -> Tensor:
        """Return the rows of crops.

        ``crops``: their patches ``[crops, patches, numbers]``. ``masks``: what part of a patch is of the image, 0 to 1,
        or -1 where that was not looked at ``[crops, patches]``. Returns ``[crops, rows, columns, hidden]``, half as
        many as patches.
        """
        states = self.image_vit(crops.to(self.dtype))
        is_empty = masks == 0
        is_partial = (masks < 1) & ~is_empty
        states = states + self.pad_embed[0] * is_empty[..., None] + self.pad_embed[1] * is_partial[..., None]
        side = int(crops.shape[1] ** 0.5) // 2
        squares = states.view(len(crops), side, 2, side, 2, -1).permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(0, 2)
        pooled = self.image_pooling_2d(squares.mean(dim=1, keepdim=True), squares)
        rows: Tensor = self.image_projector(pooled).view(len(crops), side, side, -1)
        return rows


class _Vit(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        positions = (config.image_size // config.patch_size) ** 2
        self.class_embedding = nn.Parameter(torch.zeros(width))
        self.positional_embedding = nn.Parameter(torch.zeros(positions + 1, width))
        self.patch_embedding = nn.Linear(3 * config.patch_size**2, width, bias=False)
        self.pre_ln = nn.LayerNorm(width, eps=eps)
        config._attn_implementation = "sdpa"
        self.resblocks = nn.ModuleList(CLIPEncoderLayer(config) for _ in range(config.num_hidden_layers))

    def forward(self, crops: Tensor) -> Tensor:
        """Return the selected layers' features of each patch, side by side ``[crops, patches, 2 width]``."""
        patches = self.patch_embedding(crops)
        whole = self.class_embedding.expand(len(crops), 1, -1)
        states = self.pre_ln(torch.cat([whole, patches], dim=1) + self.positional_embedding)
        outputs = []
        for layer in self.resblocks:
            states = layer(states, None)
            outputs.append(states)
        return torch.cat([outputs[layer][:, 1:] for layer in _SEEN], dim=-1)


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv = nn.Linear(inputs, width), nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.wo = nn.Linear(width, width)

    def forward(self, queries: Tensor, states: Tensor) -> Tensor:
        """Return attention of queries over states, both ``[batch, rows, inputs]``."""
        joined = (self.wq(queries), self.wk(states), self.wv(states))
        parts = [part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in joined]
        found = nn.functional.scaled_dot_product_attention(*parts)
        result: Tensor = self.wo(found.transpose(1, 2).flatten(2))
        return result


class _Projector(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, inner: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the rows of pooled patches."""
        rows: Tensor = self.w2(nn.functional.silu(self.w1(pooled)) * self.w3(pooled))
        return rows
