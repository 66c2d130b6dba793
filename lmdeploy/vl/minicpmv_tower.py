"""The tower and resampler of MiniCPM-V 2.5 to 4.5, which ``transformers`` does not have.

A SigLIP with patches of any number and shape, whose positions are read off a square table (NaViT; Dehghani et al.,
2023, arXiv 2307.06304), then a fixed number of learned queries that attend to its patches.
"""

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, PreTrainedModel
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

_HEAD_DIM = 128
_EPS = 1e-6


class MiniCpmTower(PreTrainedModel):  # type: ignore[misc]
    """Makes ``image_seq_length`` rows of each view of an image.

    ``config``: with SigLIP's as ``vision_config``, and the width of the rows in ``text_config``;
    ``values_have_positions`` says whether the positions of patches are added to their values, not to their keys (4.5).
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.vpm = Idefics2VisionTransformer(config.vision_config)
        self.resampler = _Resampler(
            config.image_seq_length,
            config.vision_config.hidden_size,
            config.text_config.hidden_size,
            values_have_positions=bool(getattr(config, "values_have_positions", False)),
        )
        self.post_init()

    def forward(self, views: Tensor, line: int = 0) -> Tensor:
        """Return the rows of views.

        ``views``: of one size ``[views, 3, height, width]``. ``line``: 0, or at how many positions along a table's
        first line all patches are, in reading order; where there are more positions than patches, grey ones follow
        (2.5, as trained). Returns ``[views * queries, hidden]``.
        """
        embeddings = self.vpm.embeddings
        patches = embeddings.patch_embedding(views.to(self.dtype))
        rows, columns = patches.shape[2:]
        side = embeddings.num_patches_per_side
        states = patches.flatten(2).transpose(1, 2)
        positions = (_bucketed(rows, side)[:, None] * side + _bucketed(columns, side)).flatten()
        if line:
            grey = embeddings.patch_embedding.bias.expand(len(views), line - states.shape[1], -1)
            states, positions = torch.cat([states, grey], dim=1), _bucketed(line, side)
        states = states + embeddings.position_embedding(positions)
        states = self.vpm.post_layernorm(self.vpm.encoder(inputs_embeds=states).last_hidden_state)
        found: Tensor = self.resampler(states[:, : rows * columns], rows, columns)
        return found.flatten(0, 1)


def _bucketed(count: int, side: int) -> Tensor:
    """Return where along a table of ``side`` each of ``count`` patches is, rounded as in training."""
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    return torch.bucketize(torch.arange(0, 1 - 1e-6, 1 / count), bounds, right=True)


class _Resampler(nn.Module):  # type: ignore[misc]
    def __init__(self, queries: int, inputs: int, hidden: int, *, values_have_positions: bool) -> None:
        super().__init__()
        self.values_have_positions = values_have_positions
        self.query = nn.Parameter(torch.zeros(queries, hidden))
        self.kv_proj = nn.Linear(inputs, hidden, bias=False) if inputs != hidden else nn.Identity()
        self.attn = nn.MultiheadAttention(hidden, hidden // _HEAD_DIM, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(hidden, eps=_EPS) for _ in range(3))
        self.proj = nn.Parameter(torch.zeros(hidden, hidden))

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Return the resampler's queries ``[views, queries, hidden]`` over ``rows * columns`` patches each."""
        unrotated = self.ln_kv(self.kv_proj(patches))
        placed = unrotated + _positions(rows, columns, unrotated.shape[-1]).to(unrotated)
        keys, values = (unrotated, placed) if self.values_have_positions else (placed, unrotated)
        queries = self.ln_q(self.query).expand(len(values), -1, -1)
        found, _ = self.attn(queries, keys, values, need_weights=False)
        result: Tensor = self.ln_post(found) @ self.proj
        return result


def _positions(rows: int, columns: int, hidden: int) -> Tensor:
    """Return sines and cosines of each patch's column, then of its row ``[rows * columns, hidden]``."""
    turns = 10000.0 ** -(torch.arange(hidden // 4) / (hidden // 4))

    def waves(count: int) -> Tensor:
        angles = torch.outer(torch.arange(count).float(), turns)
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    across, down = waves(columns)[None, :], waves(rows)[:, None]
    shape = (rows, columns, hidden // 2)
    return torch.cat([across.expand(shape), down.expand(shape)], dim=-1).flatten(0, 1)
