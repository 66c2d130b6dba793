"""What steps of a shape must move and compute, and how fast a device could at best do whole workloads of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.shapes import Shape
from tools.gpu_check.checkpoints import tensors

_BITS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "I32": 32}


@dataclass(frozen=True)
class Limits:
    """A device's, a second: bytes read and written by a copy, operations of matrix products."""

    bandwidth: float
    operations: float


@dataclass(frozen=True)
class Cost:
    """Of a model.

    Attributes
    ----------
    dense_bytes, expert_bytes
        Of the weights that every step reads, output layer included, and of all experts.
    experts, top_k
        Of a layer, and how many of them a row takes.
    cache_bytes
        Read for every token of a context.
    row_operations
        In the layers' matrices for one row; a multiplication and an addition are two.
    head_operations
        In the output layer, for one row.
    attention_operations
        For one row and one token of its context.
    """

    dense_bytes: int
    expert_bytes: int
    experts: int
    top_k: int
    cache_bytes: int
    row_operations: float
    head_operations: float
    attention_operations: float

    def weight_bytes(self, rows: int) -> float:
        """Return the weights' bytes that a step of this many rows reads, where all experts are equally likely."""
        if not self.experts:
            return float(self.dense_bytes)
        taken = 1 - (1 - self.top_k / self.experts) ** rows
        return self.dense_bytes + self.expert_bytes * taken

    def decode_bytes(self, batch: int, context: float) -> float:
        """Return what a step reads in which this many sequences decode after this many tokens each."""
        return self.weight_bytes(batch) + batch * context * self.cache_bytes

    def step_seconds(self, limits: Limits, rows: int, sampled: int, contexts: float) -> float:
        """Return the least seconds of a step.

        Parameters
        ----------
        limits
            Of the device.
        rows
            All of the step; ``sampled`` of them pass the output layer.
        contexts
            Tokens that its decoding rows attend to, summed over these; attention within prompts is left out.
        """
        operations = rows * self.row_operations + sampled * self.head_operations + contexts * self.attention_operations
        moved = self.weight_bytes(rows) + contexts * self.cache_bytes
        return max(moved / limits.bandwidth, operations / limits.operations)


def cost_of(shape: Shape, cache_bits: int = 16) -> Cost:
    """Return the cost of a shape with cached values of this many bits."""
    dense = expert = 0
    head = row = expert_row = 0
    top_k = shape.config.get("num_experts_per_tok", 0)
    for tensor in tensors(shape):
        size = math.prod(tensor.shape)
        bits = size * _BITS[tensor.dtype] // 8
        elements = size * 8 if tensor.dtype == "I32" else size
        if tensor.role == "expert":
            expert += bits
            expert_row += elements
        elif tensor.role != "embedding":
            dense += bits
        if tensor.name == "lm_head.weight":
            head = elements
        elif tensor.role == "matrix":
            row += elements
    chosen = expert_row * top_k // shape.experts if shape.experts else 0
    c = shape.config
    if "kv_lora_rank" in c:
        widths = c["kv_lora_rank"] + c["qk_rope_head_dim"] + c["kv_lora_rank"]
    else:
        widths = 2 * shape.head_dim
    return Cost(
        dense,
        expert,
        shape.experts,
        top_k,
        shape.cached_values * cache_bits // 8,
        2.0 * (row + chosen),
        2.0 * head,
        2.0 * c["num_hidden_layers"] * c["num_attention_heads"] * widths,
    )


def least_seconds(
    cost: Cost, limits: Limits, lengths: Sequence[tuple[int, int]], batch: int, tokens_a_step: int
) -> float:
    """Return the seconds that requests would take if every step ran at a limit of the device.

    Requests are taken in their order, as soon as one of ``batch`` places is free; a step has all that decode, and of
    prompts what fits into ``tokens_a_step``.

    Parameters
    ----------
    lengths
        Of each request's prompt and response, in tokens.
    """
    waiting = list(reversed(lengths))
    running: list[list[int]] = []  # tokens of the prompt still to be computed, context so far, tokens still to come
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < batch:
            prompt, response = waiting.pop()
            running.append([prompt, 0, response])
        decoding = [state for state in running if state[0] == 0]
        rows = sampled = len(decoding)
        contexts = float(sum(state[1] for state in decoding))
        for state in decoding:
            state[1] += 1
            state[2] -= 1
        for state in running:
            taken = min(state[0], tokens_a_step - rows)
            if taken <= 0:
                continue
            state[0] -= taken
            state[1] += taken
            rows += taken
            if state[0] == 0:  # its last row chooses the first token
                sampled += 1
                state[2] -= 1
        seconds += cost.step_seconds(limits, rows, sampled, contexts)
        running = [state for state in running if state[0] > 0 or state[2] > 0]
    return seconds
