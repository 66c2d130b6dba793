"""Rotary embeddings of positions that no text stretches."""

import torch
from torch import Tensor

from lmdeploy.turbomind.spec import RopeSpec


def rotated(heads: Tensor, rope: RopeSpec | None) -> Tensor:
    """Return ``[batch, heads, tokens, dim]`` with the first dimensions of each head turned by the token's position."""
    if rope is None:
        return heads
    pairs = len(rope.inv_freq)
    positions = torch.arange(heads.shape[2], device=heads.device, dtype=torch.float32)
    angles = positions[:, None] * torch.tensor(rope.inv_freq, device=heads.device)
    cos, sin = angles.cos() * rope.attention_scaling, angles.sin() * rope.attention_scaling
    turned, rest = heads[..., : 2 * pairs], heads[..., 2 * pairs :]
    if rope.is_interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        both = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :pairs], turned[..., pairs:]
        both = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((both, rest), dim=-1)
