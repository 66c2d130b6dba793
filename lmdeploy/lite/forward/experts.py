"""Mixture of experts, routed and summed as backend_cpp/kernels/cpu/moe.cc does."""

import torch
from torch import Tensor

from lmdeploy.lite.forward.parts import LayerWeights, activate
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def mixture(spec: ModelSpec, moe: MoeSpec, weights: LayerWeights, x: Tensor, stream: Tensor, layer: int) -> Tensor:
    """Return the mixture of experts for its normed input ``[..., hidden]``; some routers read the stream."""
    rows = x.flatten(0, -2)
    read = rows
    if moe.router.has_input_norm:
        read = weights.norm("moe.router_norm", stream.flatten(0, -2), spec.norm) * spec.hidden_size**-0.5
    logits = weights.linear("moe.router", read)
    chosen, shares = _route(moe, logits, weights.tensors.get("moe.router.correction"))
    if moe.router.has_expert_scale:
        shares = shares * weights.tensors["moe.router.scales"][chosen]
    activation, shared_activation = (
        of_layers[layer] if of_layers else spec.mlp.activation
        for of_layers in (moe.activations, moe.shared_activations)
    )
    total = torch.zeros_like(rows)
    for number in range(moe.num_experts):
        row, rank = (chosen == number).nonzero(as_tuple=True)
        if len(row):
            share = shares[row, rank, None]
            name = f"moe.experts.{number}"
            if moe.router.scales_input:
                output = _expert(spec, weights, name, rows[row] * share, activation)
            else:
                output = _expert(spec, weights, name, rows[row], activation) * share
            total.index_add_(0, row, output)
    if moe.shared_intermediate_size:
        shared = _expert(spec, weights, "moe.shared", rows, shared_activation)
        if moe.has_shared_gate:
            shared = shared * torch.sigmoid(weights.linear("moe.shared_gate", rows))
        total += shared
    return total.view_as(x)


def _expert(spec: ModelSpec, weights: LayerWeights, name: str, rows: Tensor, activation: str) -> Tensor:
    is_gated = spec.mlp.is_gated
    up = weights.linear(f"{name}.gate_up" if is_gated else f"{name}.up", rows)
    inner = activate(activation, up, is_gated=is_gated)
    return weights.linear(f"{name}.down", inner)


def _route(moe: MoeSpec, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return numbers and shares of each row's experts, ``[rows, experts_per_token]``."""
    router = moe.router
    if router.score == "sparsemixer":
        chosen, shares = _mix(router, logits, moe.experts_per_token)
    else:
        scores = logits.sigmoid() if router.score == "sigmoid" else logits.softmax(-1)
        choice = scores if correction is None else scores + correction
        if router.top_groups < router.groups:
            choice = _of_best_groups(router, choice)
        chosen = choice.topk(moe.experts_per_token, dim=-1).indices
        shares = scores.gather(-1, chosen)
    if router.normalizes:
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen, shares * router.scale


def _of_best_groups(router: RouterSpec, choice: Tensor) -> Tensor:
    grouped = choice.unflatten(-1, (router.groups, -1))
    worth = grouped.topk(2, dim=-1).values.sum(-1) if router.group_score == "top2" else grouped.amax(-1)
    is_kept = torch.zeros_like(worth, dtype=torch.bool)
    is_kept.scatter_(-1, worth.topk(router.top_groups, dim=-1).indices, value=True)
    return grouped.masked_fill(~is_kept[..., None], float("-inf")).flatten(-2)


def _mix(router: RouterSpec, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return experts one after the other, each with its share among those near it that are not taken (SparseMixer)."""
    chosen, shares = [], []
    left = logits
    for _ in range(count):
        top, best = left.max(-1, keepdim=True)
        is_far = (top - logits) / torch.maximum(logits.abs(), top) > 2 * router.jitter
        shares.append(left.masked_fill(is_far, float("-inf")).softmax(-1).gather(-1, best))
        chosen.append(best)
        left = left.scatter(-1, best, float("-inf"))
    return torch.cat(chosen, -1), torch.cat(shares, -1)
