"""Self-attention of a whole text, multi-head or latent."""

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.turbomind.spec import AttentionSpec, MlaSpec, ModelSpec, RopeSpec

_QUERIES = 256  # whose scores are in memory at a time


def attention(
    spec: ModelSpec, weights: LayerWeights, layer: int, x: Tensor, shared: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return a layer's attention for its normed input ``[batch, tokens, hidden]``, and its keys and values.

    ``shared``: keys and values ``[batch, kv_heads, tokens, dim]`` of another layer, where the layer has none of its
    own.
    """
    attn = spec.attention_of(layer)
    rope = _rope_of(spec, layer)
    gate: Tensor | None = None
    if attn.mla is not None:
        q, k, v = _latent_heads(spec, attn.mla, weights, rope, x)
        gate = weights.linear("attention.gate", x) if attn.mla.has_gate else None
    elif shared is not None:
        q, (k, v) = _normed_heads(spec, attn, weights, rope, weights.linear("attention.qkv", x), "q"), shared
    else:
        q, k, v, gate = _default_heads(spec, attn, weights, rope, x)
    made = (k, v)
    q = _tempered(attn, rope, q)
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    window = attn.windows[layer] if attn.windows else 0
    found = _attention(attn, weights, q, k, v, 0 if window >= x.shape[1] else window)
    joined = found.transpose(1, 2).flatten(2)
    if gate is not None:
        joined = joined * (functional.softplus(gate) if attn.gates_by_softplus else gate.sigmoid())
    return weights.linear("attention.o", joined), made


def _rope_of(spec: ModelSpec, layer: int) -> RopeSpec | None:
    number = spec.layer_ropes[layer] if spec.layer_ropes else 0
    return spec.ropes[number] if spec.ropes and number >= 0 else None


def _tempered(attn: AttentionSpec, rope: RopeSpec | None, q: Tensor) -> Tensor:
    """Return queries ``[batch, heads, tokens, dim]`` times what grows with their positions."""
    if not attn.temperature_length or (attn.tempers_unrotated and rope is not None):
        return q
    positions = torch.arange(q.shape[2], device=q.device) + int(attn.tempers_unrotated)
    return q * (1 + attn.temperature_scale * torch.log1p(positions // attn.temperature_length))[:, None]


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _default_heads(
    spec: ModelSpec, attn: AttentionSpec, weights: LayerWeights, rope: RopeSpec | None, x: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return queries, keys and values, ``[batch, heads, tokens, head_dim]``, and the gate of what comes out, if any."""
    joined = weights.linear("attention.qkv", x)
    if clip := attn.qkv_clip:
        joined = joined.clamp(-clip, clip)
    queries, keys = attn.num_heads * attn.head_dim, attn.num_kv_heads * attn.head_dim
    values, gates = attn.num_kv_heads * attn.value_dim, attn.num_heads * attn.value_dim
    q, k, v, *rest = joined.split((queries, keys, values, *((gates,) * attn.has_output_gate)), dim=-1)
    v = _heads(v, attn.num_kv_heads)
    if attn.norms_values:
        v = functional.rms_norm(v, v.shape[-1:], eps=spec.norm.eps)
    v = attn.value_scale * v
    q = _normed_heads(spec, attn, weights, rope, q, "q")
    return q, _normed_heads(spec, attn, weights, rope, k, "k"), v, rest[0] if rest else None


def _normed_heads(
    spec: ModelSpec, attn: AttentionSpec, weights: LayerWeights, rope: RopeSpec | None, rows: Tensor, name: str
) -> Tensor:
    """Return heads of queries or keys, normed and rotated."""
    if attn.qk_norm == "projection":
        rows = weights.norm(f"attention.{name}_norm", rows, spec.norm)
    heads = _heads(rows, attn.num_heads if name == "q" else attn.num_kv_heads)
    if attn.norms_rotated:
        heads = _rotated(heads, rope)
    if attn.qk_norm in ("head", "each_head"):
        heads = weights.norm(f"attention.{name}_norm", heads, spec.norm)
    if attn.qk_norm == "unit" and rope is not None:
        heads = functional.rms_norm(heads, heads.shape[-1:], eps=spec.norm.eps)
    return heads if attn.norms_rotated else _rotated(heads, rope)


def _latent_heads(
    spec: ModelSpec, mla: MlaSpec, weights: LayerWeights, rope: RopeSpec | None, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of latent attention, ``[batch, heads, tokens, ...]``."""
    if mla.q_rank:
        latent = weights.norm("attention.q_down_norm", weights.linear("attention.q_down", x), spec.norm, mla.norm_eps)
        q = weights.linear("attention.q_up", latent)
    else:
        q = weights.linear("attention.q", x)
    q_nope, q_turned = _heads(q, spec.num_heads).split((mla.nope_dim, mla.rope_dim), dim=-1)
    latent, shared_key = weights.linear("attention.kv_down", x).split((mla.kv_rank, mla.rope_dim), dim=-1)
    latent = weights.norm("attention.kv_down_norm", latent, spec.norm, mla.norm_eps)
    k_nope, v = _heads(weights.linear("attention.kv_up", latent), spec.num_heads).split(
        (mla.nope_dim, mla.value_dim), dim=-1
    )
    key = _rotated(shared_key[:, None], rope).expand(-1, spec.num_heads, -1, -1)
    return torch.cat((q_nope, _rotated(q_turned, rope)), -1), torch.cat((k_nope, key), -1), v


def _attention(attn: AttentionSpec, weights: LayerWeights, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Return causal attention of each query, ``[batch, heads, tokens, value_dim]``."""
    sinks = weights.tensors.get("attention.sinks")
    if not (window or attn.softcap or attn.alibi_slopes or sinks is not None):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attn.scale)
    slopes = torch.tensor(attn.alibi_slopes, device=q.device)
    found = []
    for begin in range(0, q.shape[2], _QUERIES):
        end = min(begin + _QUERIES, q.shape[2])
        first = begin // window * window if attn.is_chunked and window else max(0, begin - window + 1) if window else 0
        distance = (
            torch.arange(begin, end, device=q.device)[:, None] - torch.arange(first, end, device=q.device)[None, :]
        )
        scores = attn.scale * (q[:, :, begin:end] @ k[:, :, first:end].transpose(-1, -2))
        if attn.softcap:
            scores = attn.softcap * torch.tanh(scores / attn.softcap)
        if len(slopes):
            scores = scores - slopes[:, None, None] * distance
        is_hidden = distance < 0
        if window and attn.is_chunked:
            windows = torch.arange(first, end, device=q.device) // window
            is_hidden |= windows[begin - first :, None] != windows
        elif window:
            is_hidden |= distance >= window
        scores = scores.masked_fill(is_hidden, float("-inf"))
        if sinks is None:
            shares = scores.softmax(-1)
        else:
            sink = sinks[None, :, None, None].expand(len(q), -1, end - begin, 1)
            shares = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        found.append(shares @ v[:, :, first:end])
    return torch.cat(found, dim=2)


def _rotated(heads: Tensor, rope: RopeSpec | None) -> Tensor:
    """Apply RoPE to the first dimensions of heads ``[batch, heads, tokens, dim]``."""
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
