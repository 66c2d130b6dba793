"""Roofline estimate of memory, rates and replicas for a model, a device and a load.

A step takes as long as reading its bytes, or as computing its products, whichever is longer (Williams et al., 2009).
With b sequences of context c, a step that generates reads the weights once and b c cached tokens, and gives b tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmdeploy.capacity.devices import Device
from lmdeploy.capacity.sizes import Sizes

# Below 16 bits each 32 weights have a scale of 16 bits, the output layer has 8 bits, and the table of embeddings 16.
_GROUP, _SCALE = 32, 16


@dataclass(frozen=True)
class Storage:
    """How numbers are kept."""

    # Bits of a weight, and of a key's or value's number
    weight_bits: int = 16
    cache_bits: int = 16
    cache_share: float = 0.8  # of the memory that weights leave, for the cache (``cache_max_entry_count``)
    # Of the cache's files (``cache_dir_bytes``), and bytes a second at which they are read
    disk_bytes: float = 0.0
    disk_bandwidth: float = 1e9

    @property
    def weight_bytes(self) -> float:
        """Of a weight in the layers."""
        return _bytes(self.weight_bits)

    @property
    def output_bytes(self) -> float:
        """Of a weight in the output layer."""
        return _bytes(max(self.weight_bits, 8))

    def total(self, sizes: Sizes) -> float:
        """Return the bytes of all weights."""
        layers = (sizes.dense + sizes.experts * sizes.expert) * self.weight_bytes
        is_one_table = sizes.is_tied and self.weight_bits >= 16
        table = 0.0 if is_one_table else sizes.embedding * max(self.weight_bits, 16) / 8
        return layers + table + sizes.output * self.output_bytes


def _bytes(bits: int) -> float:
    return (bits if bits >= 16 else bits + _SCALE / _GROUP) / 8


@dataclass(frozen=True)
class Load:
    """Workload to plan for."""

    # Mean tokens of a request
    prompt: float
    output: float
    rate: float = 0.0  # requests a second of all callers
    prefix: float = 0.0  # share of the prompts' tokens that is found in the cache
    token_seconds: float = math.inf  # most time from token to token of a response
    use: float = 0.8  # share of a replica's rate that is planned with, so that queues stay short


@dataclass(frozen=True)
class Efficiency:
    """Shares of bandwidth and operations that a real engine reaches."""

    bandwidth: float = 0.75
    operations: float = 0.5


@dataclass(frozen=True)
class Plan:
    """Capacity of one replica, and the number of replicas."""

    weights: float  # Bytes
    cache_token: float  # bytes of the cache a token, in all layers
    cache_tokens: int  # tokens that the cache holds of such requests
    sequences: int  # requests that it holds whole
    batch: int  # sequences that a step has, under the load's bounds
    prompt_seconds: float  # to compute a prompt alone
    token_seconds: float  # from token to token of a response, prompts of others in between
    single_rate: float  # tokens a second of a response alone
    output_rate: float  # tokens a second of all responses
    request_rate: float  # requests a second of a replica, at its best
    replicas: int  # for the load; 0 where it has no rate
    disk_tokens: int  # tokens that the cache's files hold
    disk_seconds: float  # to read what they hold of a prompt, in place of computing it


class Roofline:
    """Times of steps of a model on a device."""

    def __init__(self, sizes: Sizes, device: Device, storage: Storage, efficiency: Efficiency) -> None:
        self._sizes = sizes
        self._bandwidth = device.bandwidth * efficiency.bandwidth
        self._operations = device.operations * efficiency.operations
        self._storage = storage
        self.cache_token = sizes.cached * storage.cache_bits / 8

    def token_step(self, batch: float, context: float) -> float:
        """Return the seconds of a step in which each of `batch` sequences gets a token."""
        seen = self._sizes.seen(context)
        read = self._weights(batch) + batch * seen * self.cache_token
        products = batch * (self._sizes.active + seen * self._sizes.attention)
        return max(read / self._bandwidth, 2 * products / self._operations)

    def prompt_step(self, tokens: float, found: float = 0.0) -> float:
        """Return the seconds to compute a prompt of which `found` tokens are in the cache."""
        new = tokens - found
        layers = self._sizes.active - self._sizes.output  # of a prompt, the last row alone has an output
        seen = new * self._sizes.seen(found + new / 2)
        products = new * layers + seen * self._sizes.attention + self._sizes.output
        read = self._weights(new) + self._sizes.seen(found) * self.cache_token
        return max(read / self._bandwidth, 2 * products / self._operations)

    def _weights(self, rows: float) -> float:
        """Return the bytes of weights that a step of this many rows reads."""
        layers = self._sizes.touched(rows) - self._sizes.output
        return layers * self._storage.weight_bytes + self._sizes.output * self._storage.output_bytes


def plan(
    sizes: Sizes,
    device: Device,
    storage: Storage,
    load: Load,
    efficiency: Efficiency | None = None,
    max_requests: int = 256,  # sequences in a step (``max_batch_size``)
) -> Plan:
    """Return the plan.

    Raises `ValueError` if the model does not fit, or not with one request, or one alone is slower than the load allows.
    """
    roofline = Roofline(sizes, device, storage, efficiency or Efficiency())
    weights = storage.total(sizes)
    if weights > device.memory:
        raise ValueError(
            f"the weights take {weights / 1e9:.1f} GB and {device.name} has {device.memory / 1e9:.0f} GB; "
            "take more devices (--tp) or fewer bits (--weight-bits)"
        )
    # Layers with a window keep that much of a request.
    request = load.prompt + load.output
    request_bytes = sizes.seen(request) * roofline.cache_token
    requests = (device.memory - weights) * storage.cache_share / request_bytes
    cache_tokens = int(requests * request)
    sequences = int(requests)
    if not sequences:
        raise ValueError(
            f"the cache holds {cache_tokens} tokens alongside the weights, a request needs "
            f"{request:.0f}; take more devices (--tp) or fewer bits (--weight-bits, --quant-policy)"
        )
    context = load.prompt + load.output / 2
    prompt_seconds = roofline.prompt_step(load.prompt, load.prompt * load.prefix)

    def request_rate(batch: int) -> float:
        """Return requests a second: each takes its prompt's time, and its share of its tokens' steps."""
        return 1 / (prompt_seconds + load.output * roofline.token_step(batch, context) / batch)

    def token_seconds(batch: int) -> float:
        return batch / (request_rate(batch) * load.output)  # Little's law

    fit = [batch for batch in range(1, min(sequences, max_requests) + 1) if token_seconds(batch) <= load.token_seconds]
    if not fit:
        raise ValueError(
            f"one response alone gets a token every {token_seconds(1) * 1e3:.1f} ms, and "
            f"{load.token_seconds * 1e3:.1f} ms are asked for"
        )
    batch = max(fit, key=request_rate)
    rate = request_rate(batch)
    return Plan(
        weights=weights,
        cache_token=roofline.cache_token,
        cache_tokens=cache_tokens,
        sequences=sequences,
        batch=batch,
        prompt_seconds=prompt_seconds,
        token_seconds=token_seconds(batch),
        single_rate=1 / roofline.token_step(1, context),
        output_rate=rate * load.output,
        request_rate=rate,
        replicas=math.ceil(load.rate / (rate * load.use) - 1e-9),
        disk_tokens=int(storage.disk_bytes / roofline.cache_token),
        disk_seconds=sizes.seen(load.prompt) * roofline.cache_token / storage.disk_bandwidth,
    )
