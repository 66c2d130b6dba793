"""Weight and cache sizes of a decoder, read from its config.json: no weights are needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError
from lmdeploy.paths import locate_model

# Synonyms in configurations.
_NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_size": ("moe_intermediate_size", "intermediate_size"),
}
_MATRICES = 3  # of an MLP: gate, up and down


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder, all in numbers, not bytes."""

    embedding: int  # in the table of token embeddings
    output: int  # in the output layer, also where it is the embeddings'
    is_tied: bool  # whether these are one
    dense: int  # in the matrices that every token uses, those two apart
    expert: int  # in one expert, summed over layers
    # Experts in a layer, and those active for a token; 0: no experts
    experts: int
    experts_per_token: int
    cached: int  # keys and values of a token, summed over layers
    attention: int  # multiplications of a token with one token before it, summed over layers: scores and values
    # Layers with a sliding window, or a chunk, see, and keep, at most this many tokens; their share of what a token
    # caches
    window: int = 0
    sliding: float = 0.0

    def seen(self, tokens: float) -> float:
        """Return how many of a sequence's `tokens` tokens a layer sees and keeps, on the mean over what is cached."""
        return (1 - self.sliding) * tokens + self.sliding * min(tokens, self.window)

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.embedding + (0 if self.is_tied else self.output) + self.dense + self.experts * self.expert

    @property
    def active(self) -> int:
        """Those that a token is multiplied with."""
        return self.output + self.dense + self.experts_per_token * self.expert

    def touched(self, rows: float) -> float:
        """Return the parameters that a step of this many rows reads; each chooses its experts evenly."""
        if not self.experts:
            return float(self.output + self.dense)
        share: float = 1 - (1 - self.experts_per_token / self.experts) ** rows
        return self.output + self.dense + share * self.experts * self.expert

    @classmethod
    def read(cls, model: str | Path) -> Sizes:
        """Return the sizes of a model, named as `lmdeploy.paths.locate_model` takes it, or of its config.json.

        Raises `CheckpointError` if there is no such model on this machine, no config.json in it, or a size is missing
        there.
        """
        file = Path(model).expanduser()
        if file.suffix != ".json":
            file = locate_model(str(model), may_download=False) / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise CheckpointError(file, ["cannot be read; a model is a directory with a config.json"]) from None
        except ValueError as error:
            raise CheckpointError(file, [f"is not JSON: {error}"]) from None
        if not isinstance(config, dict):
            raise CheckpointError(file, ["must hold a JSON object"])
        try:
            return cls.of_config(config)
        except ValueError as error:
            raise CheckpointError(file, [str(error)]) from None

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Sizes:
        """Return the sizes of a model, from the fields of its config.json; raise `ValueError` if a size is missing."""
        config = config.get("text_config") or config.get("llm_config") or config
        hidden, layers = _whole(config, "hidden_size"), _whole(config, "layers")
        heads = _whole(config, "heads")
        kv_heads = _whole(config, "kv_heads", heads)
        vocabulary = int(config.get("vocab_size") or _missing("vocab_size"))
        inner = _whole(config, "intermediate_size", 4 * hidden)
        if ratios := _ratios(config, layers):
            attention, cached, products, sliding = _compressed_attention(config, hidden, heads, ratios)
            window = int(config["sliding_window"])
        elif rank := int(config.get("kv_lora_rank") or 0):
            attention, cached, products = (layers * part for part in _latent_attention(config, hidden, heads, rank))
            window, sliding = _sliding(config, layers)
        else:
            shapes = _shapes(config, layers, kv_heads, int(config.get("head_dim") or hidden // heads))
            attention = sum(hidden * head * (2 * heads + 2 * kv) for kv, head in shapes)
            cached, products = sum(2 * kv * head for kv, head in shapes), sum(2 * heads * head for _, head in shapes)
            window, sliding = _sliding(config, layers, [kv * head for kv, head in shapes])
        experts = _whole(config, "experts", 0)
        experts = experts if experts > 1 else 0
        first_dense = int(config.get("first_k_dense_replace") or 0) if experts else layers
        sparse = layers - first_dense
        expert = _MATRICES * hidden * _whole(config, "expert_size", inner)
        shared = int(config.get("n_shared_experts") or 0) * expert
        shared += _MATRICES * hidden * int(config.get("shared_expert_intermediate_size") or 0)
        dense = attention + first_dense * _MATRICES * hidden * inner
        dense += sparse * (shared + hidden * experts)  # the router is a matrix of this shape
        return cls(
            embedding=vocabulary * hidden,
            output=vocabulary * hidden,
            is_tied=bool(config.get("tie_word_embeddings", False)),
            dense=dense,
            expert=sparse * expert if experts else 0,
            experts=experts,
            experts_per_token=_whole(config, "experts_per_token", 1) if experts else 0,
            cached=cached,
            attention=products,
            window=window,
            sliding=sliding,
        )


def _shapes(config: Mapping[str, Any], layers: int, kv_heads: int, head: int) -> list[tuple[int, int]]:
    """Return key/value heads and the size of a head of each layer; 0 heads where the keys are another layer's."""
    kinds = config.get("layer_types") or [""] * layers
    each_layer = config.get("per_layer_config") or {}
    shapes = []
    for layer, kind in enumerate(kinds):
        overrides = each_layer.get(str(layer)) or {}
        is_full = kind == "full_attention"
        size = overrides.get("head_dim") or (config.get("global_head_dim") if is_full else None) or head
        heads = config.get("num_global_key_value_heads") if is_full else None
        is_shared = layer >= layers - int(config.get("num_kv_shared_layers") or 0)
        shapes.append((0 if is_shared else int(overrides.get("num_key_value_heads") or heads or kv_heads), int(size)))
    return shapes


def _sliding(config: Mapping[str, Any], layers: int, cached: Sequence[int] = ()) -> tuple[int, float]:
    """Return the window, or chunk, of a model and the share of what a token caches in layers that have it.

    ``cached``: by layer; nothing: as much in each.
    """
    if chunk := int(config.get("attention_chunk_size") or 0):
        kinds = config.get("layer_types") or []
        return (chunk, kinds.count("chunked_attention") / layers) if "chunked_attention" in kinds else (0, 0.0)
    window = int(config.get("sliding_window") or 0)
    if not window or config.get("use_sliding_window") is False:
        return 0, 0.0
    if kinds := config.get("layer_types"):
        weights = cached or [1] * layers
        sliding_weight = sum(weight for kind, weight in zip(kinds, weights, strict=True) if kind == "sliding_attention")
        return window, sliding_weight / sum(weights)
    # Gemma 2 and 3, before `layer_types`: each second layer, or each of `sliding_window_pattern`, sees everything.
    pattern = int(config.get("sliding_window_pattern") or (2 if config.get("model_type") == "gemma2" else 0))
    return window, 1 - (layers // pattern) / layers if pattern else 1.0


def _latent_attention(config: Mapping[str, Any], hidden: int, heads: int, rank: int) -> tuple[int, int, int]:
    """Return parameters, cached numbers and products of a layer of latent attention (DeepSeek-V2, arXiv:2405.04434)."""
    rope, nope = int(config["qk_rope_head_dim"]), int(config["qk_nope_head_dim"])
    value, query_rank = int(config["v_head_dim"]), int(config.get("q_lora_rank") or 0)
    query = heads * (rope + nope)
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    parameters = queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    return parameters, rank + rope, heads * (2 * rank + rope)


def _ratios(config: Mapping[str, Any], layers: int) -> list[int]:
    """Return the tokens of a compressed key in each layer, 0: it has none; empty: another kind of attention."""
    rates = config.get("compress_rates") or {}
    given = config.get("compress_ratios") or [rates.get(kind, 0) for kind in (config.get("layer_types") or ()) if rates]
    return [int(ratio) for ratio in given[:layers]]


def _compressed_attention(
    config: Mapping[str, Any], hidden: int, heads: int, ratios: Sequence[int]
) -> tuple[int, int, int, float]:
    """Return parameters, cached numbers, products and the share of the window of all layers (DeepSeek-V4).

    Layers with the smaller ratio have two series of values and gates, and an indexer.
    """
    head, rank, inner = (int(config[name]) for name in ("head_dim", "q_lora_rank", "o_lora_rank"))
    index, index_heads = int(config["index_head_dim"]), int(config["index_n_heads"])
    groups = int(config["o_groups"])
    sparse = min((ratio for ratio in ratios if ratio), default=0)
    parameters = last = paged = products = 0.0
    for ratio in ratios:
        parameters += (
            hidden * rank + rank * heads * head + hidden * head + inner * heads * head + hidden * groups * inner
        )
        series = (2 if ratio == sparse else 1) if ratio else 0
        parameters += 2 * series * head * hidden
        last += head + 2 * series * head
        products += 2 * heads * head / max(ratio, 1)
        if ratio:
            paged += (head + index) / ratio
        if ratio == sparse and ratio:
            parameters += 4 * index * hidden + index_heads * (index * rank + hidden)
            last += 4 * index
    return int(parameters), int(last + paged), int(products), last / (last + paged)


def _whole(config: Mapping[str, Any], what: str, default: int | None = None) -> int:
    for name in _NAMES[what]:
        if isinstance(value := config.get(name), int) and value > 0:
            return value
    return _missing(" or ".join(_NAMES[what])) if default is None else default


def _missing(name: str) -> int:
    raise ValueError(f"has no {name}, from which the model's size follows")
