"""The tower of GLM-4V 9B and of CogVLM, which ``transformers`` does not have: EVA-CLIP with norms after its halves.

Four patches, or in the first CogVLM one, are a row, by a convolution and a gated MLP (Sun et al., 2023, arXiv
2303.15389; Wang et al., 2023, arXiv 2311.03079).
"""

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PreTrainedModel
from transformers.models.clip.modeling_clip import CLIPMLP, CLIPAttention


class Glm4vTower(PreTrainedModel):  # type: ignore[misc]
    """Makes the rows of an image.

    ``config``: with the tower's sizes in ``vision_config``, those of the rows and of the MLP that makes them in
    ``text_config``, ``merged_size`` of four patches (0: they stay apart; by default, as wide as a row), and
    ``scaling_factor``, by which rows are divided.
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        vision, hidden = config.vision_config, config.text_config.hidden_size
        vision._attn_implementation = "sdpa"
        self.patch_embedding = _PatchEmbedding(vision)
        self.layers = nn.ModuleList(_Layer(vision) for _ in range(vision.num_hidden_layers))
        merged = getattr(config, "merged_size", hidden)
        self.conv = nn.Conv2d(vision.hidden_size, merged, kernel_size=2, stride=2) if merged else nn.Identity()
        self.linear_proj = _Projector(merged or vision.hidden_size, hidden, config.text_config.intermediate_size)
        self.boi = nn.Parameter(torch.zeros(1, 1, hidden))
        self.eoi = nn.Parameter(torch.zeros(1, 1, hidden))
        self.post_init()

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the rows ``[tokens, hidden]`` of an image ``[3, side, side]``."""
        states = self.patch_embedding(pixels[None].to(self.dtype))
        for layer in self.layers:
            states = layer(states)
        side = int((states.shape[1] - 1) ** 0.5)
        patches = states[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        rows = self.linear_proj(self.conv(patches).flatten(2).transpose(1, 2))
        whole: Tensor = torch.cat([self.boi, rows, self.eoi], dim=1)[0] / self.config.scaling_factor
        return whole


class _PatchEmbedding(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, config.hidden_size, kernel_size=config.patch_size, stride=config.patch_size)
        self.cls_embedding = nn.Parameter(torch.zeros(1, config.hidden_size))
        self.position_embedding = nn.Embedding((config.image_size // config.patch_size) ** 2 + 1, config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the image's own state and its patches' ``[1, 1 + patches, hidden]``."""
        patches = self.proj(pixels).flatten(2).transpose(1, 2)
        states: Tensor = torch.cat([self.cls_embedding[None], patches], dim=1) + self.position_embedding.weight
        return states


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.attention = CLIPAttention(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = CLIPMLP(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        """Return the states after this layer."""
        states = states + self.input_layernorm(self.attention(states)[0])
        result: Tensor = states + self.post_attention_layernorm(self.mlp(states))
        return result


class _Projector(nn.Module):  # type: ignore[misc]
    def __init__(self, merged: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.linear_proj = nn.Linear(merged, hidden, bias=False)
        self.norm1 = nn.LayerNorm(hidden)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.dense_h_to_4h = nn.Linear(hidden, inner, bias=False)
        self.dense_4h_to_h = nn.Linear(inner, hidden, bias=False)

    def forward(self, merged: Tensor) -> Tensor:
        """Return the rows of merged patches."""
        normed = nn.functional.gelu(self.norm1(self.linear_proj(merged)))
        gated = nn.functional.silu(self.gate_proj(normed)) * self.dense_h_to_4h(normed)
        rows: Tensor = self.dense_4h_to_h(gated)
        return rows
