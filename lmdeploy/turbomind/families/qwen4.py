"""Qwen 4 (experimental): Qwen 3.5's mixers and experts on hyper-connections, with n-grams and attention to blocks."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, reject_unless
from lmdeploy.turbomind.families.qwen import QWEN3_5_MOE, QWEN3_5_MOE_LAYOUT, qwen3_5_moe_spec
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import BlockIndexerSpec, BlockSpec, HyperConnectionsSpec, ModelSpec, NgramsSpec

_WORD = 1 << 64
_EXACT_VOCABULARY = 1024  # from which on the multipliers of tokens are exact in a float64


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    plain = qwen3_5_moe_spec(config, checkpoint)
    reject_unless(config.indexer_n_heads is not None, "Qwen 4 without an indexer (indexer_n_heads)")
    reject_unless(plain.recurrence is not None, "Qwen 4 without linear attention")
    indexer = BlockIndexerSpec(
        config.indexer_budget, config.indexer_compress_ratio, config.indexer_n_heads, config.indexer_head_dim
    )
    gate = config.output_gate_type or config.hidden_act
    return dataclasses.replace(
        plain,
        block=BlockSpec(has_input_norms=False),
        attention=dataclasses.replace(plain.attention, block_indexer=indexer),
        recurrence=dataclasses.replace(plain.recurrence, gate=gate) if plain.recurrence else None,
        hyper_connections=HyperConnectionsSpec(config.hc_count, config.hc_lowrank),
        ngrams=_ngrams(config),
    )


def _ngrams(config: Any) -> NgramsSpec | None:
    """Return the n-grams: their hashes follow from a seed, their heads' sizes are primes, one after the other."""
    given = getattr(config, "ngrams", None) or {}  # of a GGUF file, which has what else is computed
    fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    if fields:
        return NgramsSpec(**fields)
    if not config.ple_layer_ids:
        return None
    reject_unless(config.vocab_size >= _EXACT_VOCABULARY, f"a hash of a vocabulary below {_EXACT_VOCABULARY}")
    count, heads = len(config.ple_layer_ids), (config.ngram_size - 1) * config.heads_per_ngram
    sizes = tuple(itertools.islice(_primes(config.ngram_vocab_size_base), count * heads))
    divisor = config.make_ngram_vocab_size_divisible_by
    ends = config.eos_token_id
    return NgramsSpec(
        layers=tuple(layer - 1 for layer in config.ple_layer_ids),
        size=config.ngram_size,
        heads=config.heads_per_ngram,
        width=config.ple_embed_dim,
        conv_kernel=config.ple_conv_kernel_size,
        end_token=ends[0] if isinstance(ends, list) else ends,
        multipliers=tuple(_multiplier(config, layer, k) for layer in range(count) for k in range(config.ngram_size)),
        head_sizes=sizes,
        table_rows=tuple(-(-sum(sizes[i * heads : (i + 1) * heads]) // divisor) * divisor for i in range(count)),
        parts=config.split_ngram_parts,
    )


def _primes(least: int) -> Iterator[int]:
    """Yield the odd primes from ``least`` on."""
    for number in itertools.count(max(least, 3) | 1, 2):
        if all(number % divisor for divisor in range(3, math.isqrt(number) + 1, 2)):
            yield number


def _multiplier(config: Any, layer: int, token: int) -> float:
    """Return an odd number by SplitMix64 (Steele et al., 2014), which times a token fits into 63 bits."""
    mixed = (config.seed + 10007 * layer + 0x9E3779B97F4A7C15 * (token + 2)) % _WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ mixed >> shift) * factor % _WORD
    return float(2 * (mixed % max(1, ((1 << 63) - 1) // config.vocab_size // 2)) + 1)


def _tensors(spec: ModelSpec) -> dict[str, Expression]:
    engine = QWEN3_5_MOE_LAYOUT.tensors(spec) | _mixer(spec, "hyper.", "model.hyper_connection_mixer.")
    for i in range(spec.num_layers):
        prefix, engine_prefix = f"model.layers.{i}.", f"layers.{i}."
        for half, source in (("mixer", "attn"), ("mlp", "mlp")):
            engine |= _mixer(spec, f"{engine_prefix}hyper.{half}.", f"{prefix}{source}_hyper_connection.", adds=True)
        if spec.has_attention(i):
            engine |= _indexer(spec, f"{engine_prefix}attention.block_indexer.", f"{prefix}self_attn.indexer.")
        if spec.ngrams and i in spec.ngrams.layers:
            engine |= _ngram_tensors(spec, spec.ngrams, i)
    return engine


def _width(spec: ModelSpec) -> tuple[int, int]:
    """Return how many streams there are, and their numbers together."""
    count = spec.hyper_connections.count if spec.hyper_connections else 0
    return count, count * spec.hidden_size


def _mixer(spec: ModelSpec, engine: str, prefix: str, *, adds: bool = False) -> dict[str, Expression]:
    assert spec.hyper_connections
    (count, width), rank = _width(spec), spec.hyper_connections.rank
    sources: dict[str, tuple[str, tuple[int, ...]]] = {
        "norm": ("hc_norm", (width,)),
        "down": ("input_mix_weight_down", (rank, width)),
        "up": ("input_mix_weight_up", (width, rank)),
    }
    sources |= {"add": ("block_inject_weight", (count, width))} if adds else {}
    return {
        f"{engine}{name}.weight": Load(f"{prefix}{source}.weight", shape) for name, (source, shape) in sources.items()
    }


def _indexer(spec: ModelSpec, engine: str, prefix: str) -> dict[str, Expression]:
    indexer = spec.attention.block_indexer
    assert indexer
    queries, size = indexer.num_heads * indexer.head_dim, indexer.head_dim
    both = Load(f"{prefix}index_qk_proj.weight", (queries + size, spec.hidden_size))
    return {
        f"{engine}queries.weight": rows_of(both, 0, queries),
        f"{engine}keys.weight": rows_of(both, queries, queries + size),
        f"{engine}query_norm.weight": Load(f"{prefix}q_layernorm.weight", (size,)),
        f"{engine}key_norm.weight": Load(f"{prefix}k_layernorm.weight", (size,)),
    }


def _ngram_tensors(spec: ModelSpec, ngrams: NgramsSpec, layer: int) -> dict[str, Expression]:
    _, width = _width(spec)
    prefix, engine = f"model.layers.{layer}.ple.", f"layers.{layer}.ngrams."
    rows, size = ngrams.table_rows[ngrams.layers.index(layer)], ngrams.width // ((ngrams.size - 1) * ngrams.heads)
    begins = range(0, rows, -(-rows // ngrams.parts))
    table = (
        Load(f"{prefix}ple_embedding.ngram_embedding.shard_{i}.weight", (min(begins.step, rows - begin), size))
        for i, begin in enumerate(begins)
    )
    found: dict[str, Expression] = {
        f"{engine}table": concat(*table),
        f"{engine}keys.weight": Load(f"{prefix}key_proj.weight", (width, ngrams.width)),
        f"{engine}values.weight": Load(f"{prefix}value_proj.weight", (spec.hidden_size, ngrams.width)),
        f"{engine}conv": reshape(
            Load(f"{prefix}conv1d.weight", (width, 1, ngrams.conv_kernel)), width, ngrams.conv_kernel
        ),
    }
    for name in ("key", "query", "conv"):
        found[f"{engine}{name}_norm.weight"] = Load(f"{prefix}norm_{name}.weight", (width,))
    return found


FAMILY = Family(("Qwen4ExpForCausalLM",), spec, _tensors, sizes=QWEN3_5_MOE.sizes)
