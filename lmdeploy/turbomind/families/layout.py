"""Tensor layout of a decoder's checkpoint, as data, and the engine tensors that follow."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from lmdeploy.turbomind.families.experts import ExpertNames, has_dense_mlp, has_experts
from lmdeploy.turbomind.families.latent import latent_tensors
from lmdeploy.turbomind.manifest import Constant, Expression, Load, concat, repeated_rows, reshape, rows_of
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec


@dataclass(frozen=True)
class Layout:
    """Names in a checkpoint, without ``.weight`` and ``.bias``. The defaults are Llama's."""

    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    positions: str = ""
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    layer: str = "model.layers.{}."  # beginning of the names of a layer's tensors; ``{}`` is its number
    number: Callable[[int], int] = lambda layer: layer  # the number that a layer of the engine's has in the checkpoint
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_output_norm: str = ""
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str = ""  # one matrix for q, k and v instead of three
    # The rows of ``qkv`` are, for each key/value head, its q heads, k, v; otherwise all q, all k, all v
    is_grouped: bool = False
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    o: str = "self_attn.o_proj"
    output_gate: str = ""  # A matrix for the gate of what attention gives, instead of rows of ``q`` by head
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    xielu: str = "mlp.act_fn"
    gate_up: str = ""  # one matrix for gate and up, gate first, instead of two
    down: str = "mlp.down_proj"
    # From spec and the beginning of a layer's names to the engine tensors of the layer's experts, of its latent
    # attention, of what is in attention's place, or of what rows of images take
    experts: Callable[[ModelSpec, str], dict[str, Expression]] = ExpertNames().tensors
    latent: Callable[[ModelSpec, str], dict[str, Expression]] = latent_tensors
    recurrence: Callable[[ModelSpec, str], dict[str, Expression]] = lambda spec, prefix: {}
    images: Callable[[ModelSpec, str], dict[str, Expression]] = lambda spec, prefix: {}

    def tensors(self, spec: ModelSpec) -> dict[str, Expression]:
        """Return the expression of each engine tensor of a model."""
        engine = model_tensors(spec, self)
        for i in range(spec.num_layers):
            prefix = self.layer.format(self.number(i))
            parts = norm_tensors(spec, self, prefix, i)
            if spec.has_recurrence(i):
                parts |= self.recurrence(spec, prefix)
            if spec.has_attention(i):
                is_latent = spec.attention_of(i).mla is not None
                parts |= self.latent(spec, prefix) if is_latent else attention_tensors(spec, self, prefix, i)
            if spec.has_mlp(i) and has_experts(spec, i):
                parts |= self.experts(spec, prefix)
            if has_dense_mlp(spec, i):
                parts |= mlp_tensors(spec, self, prefix, spec.mlp_size(i))
            parts |= self.images(spec, prefix)
            engine |= {f"layers.{i}.{name}": expression for name, expression in parts.items()}
        return engine


Arrange = Callable[[Expression], Expression]


def linear_tensors(
    name: str,  # the engine's name
    # The checkpoint's names, with the number of outputs of each; they are joined in this order
    sources: dict[str, int],
    in_features: int,  # Inputs
    has_bias: bool,  # whether there are biases
    arrange: Arrange = lambda expression: expression,  # what is done to weight and bias in the end
) -> dict[str, Expression]:
    """Return the engine tensors of a linear layer."""

    def joined(suffix: str, *inputs: int) -> Expression:
        loads = [Load(f"{source}.{suffix}", (rows, *inputs)) for source, rows in sources.items()]
        return arrange(loads[0] if len(loads) == 1 else concat(*loads))

    engine = {f"{name}.weight": joined("weight", in_features)}
    return engine | ({f"{name}.bias": joined("bias")} if has_bias else {})


def model_tensors(spec: ModelSpec, layout: Layout) -> dict[str, Expression]:
    """Return the engine tensors outside the layers."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    engine: dict[str, Expression] = {"token_embedding": Load(f"{layout.embedding}.weight", (vocab, hidden))}
    if spec.has_embedding_norm:
        engine |= _norm(spec, "embedding_norm", layout.embedding_norm)
    if spec.learned_positions:
        engine["position_embedding"] = Load(f"{layout.positions}.weight", (spec.learned_positions, hidden))
    if not spec.hyper_connections or not spec.hyper_connections.rank:
        engine |= _norm(spec, "final_norm", layout.final_norm)
    if not spec.tied_embeddings:
        engine["lm_head.weight"] = Load(f"{layout.lm_head}.weight", (vocab, hidden))
    if spec.output.bias:
        engine["lm_head.bias"] = Load(f"{layout.lm_head}.bias", (vocab,))
    return engine


def _norm(spec: ModelSpec, name: str, source: str) -> dict[str, Expression]:
    suffixes = ("weight", "bias") if spec.norm.bias else ("weight",)
    return {f"{name}.{suffix}": Load(f"{source}.{suffix}", (spec.hidden_size,)) for suffix in suffixes}


def without_norm_weights(engine: dict[str, Expression], bare: str = "norm.weight") -> dict[str, Expression]:
    """Return a model's tensors with ones for weights that end so, which the checkpoint does not have."""
    return {name: Constant(x.shape, 1.0) if name.endswith(bare) else x for name, x in engine.items()}


def norm_tensors(spec: ModelSpec, layout: Layout, prefix: str, layer: int) -> dict[str, Expression]:
    """Return the norms of a layer whose tensors begin with ``prefix``, without those of queries and keys."""
    engine: dict[str, Expression] = {}
    block, has_mixer = spec.block_of(layer), spec.has_mixer(layer)
    if block.has_input_norms and has_mixer and not (block.skips_first_norm and layer == 0):
        engine |= _norm(spec, "attention_norm", prefix + layout.attention_norm)
    if block.has_input_norms and spec.has_mlp(layer) and not block.shares_norm:
        engine |= _norm(spec, "mlp_norm", prefix + layout.mlp_norm)
    if block.has_output_norms and has_mixer:
        engine |= _norm(spec, "attention_output_norm", prefix + layout.attention_output_norm)
    if block.has_output_norms and spec.has_mlp(layer):
        engine |= _norm(spec, "mlp_output_norm", prefix + layout.mlp_output_norm)
    return engine


def attention_tensors(spec: ModelSpec, layout: Layout, prefix: str, layer: int) -> dict[str, Expression]:
    """Return the attention of layer number ``layer``, whose tensors begin with ``prefix``."""
    attn = spec.attention_of(layer)
    has_keys = spec.keys_of(layer) < 0
    hidden, q = (2 if spec.shared_blocks else 1) * spec.hidden_size, attn.num_heads * attn.head_dim
    k, v = attn.num_kv_heads * attn.head_dim, attn.num_kv_heads * attn.value_dim
    bias = attn.qkv_bias
    if not has_keys:
        engine = linear_tensors("attention.qkv", {prefix + layout.q: q}, hidden, bias)
    elif attn.has_output_gate and layout.output_gate:
        sources = {prefix + layout.q: q, prefix + layout.k: k, prefix + layout.v: v}
        sources[prefix + layout.output_gate] = attn.num_heads if attn.gates_heads else q
        arrange = _spread_gate(attn, q, k, v) if attn.gates_heads else lambda expression: expression
        engine = linear_tensors("attention.qkv", sources, hidden, bias, arrange)
    elif attn.has_output_gate:
        sources = {prefix + layout.q: 2 * q, prefix + layout.k: k, prefix + layout.v: v}
        engine = linear_tensors("attention.qkv", sources, hidden, bias, _gate_last(attn))
    elif layout.qkv:
        arrange = ungrouped(attn) if layout.is_grouped else lambda expression: expression
        engine = linear_tensors("attention.qkv", {prefix + layout.qkv: q + k + v}, hidden, bias, arrange)
    elif attn.keys_are_values:
        sources = {prefix + layout.q: q, prefix + layout.k: k}
        engine = linear_tensors("attention.qkv", sources, hidden, bias, lambda qk: concat(qk, rows_of(qk, q, q + k)))
    else:
        sources = {prefix + layout.q: q, prefix + layout.k: k, prefix + layout.v: v}
        engine = linear_tensors("attention.qkv", sources, hidden, bias)
    if attn.qk_norm not in {"none", "unit"}:
        for name, source, size in (("q_norm", layout.q_norm, q), ("k_norm", layout.k_norm, k))[: 1 + has_keys]:
            head = attn.head_dim
            shapes = {"head": (head,), "each_head": (size // head, head), "projection": (size,)}
            weight = Load(f"{prefix}{source}.weight", shapes[attn.qk_norm])
            engine[f"attention.{name}.weight"] = reshape(weight, size) if len(weight.shape) == 2 else weight
    if attn.has_sinks:
        engine["attention.sinks"] = Load(prefix + layout.sinks, (attn.num_heads,))
    found = attn.num_heads * attn.value_dim
    return engine | linear_tensors("attention.o", {prefix + layout.o: spec.hidden_size}, found, attn.o_bias)


def _gate_last(attn: AttentionSpec) -> Arrange:
    """Return the permutation of rows q and gate by head, then k, v, into all q, k, v, all gates."""
    size = attn.num_heads * attn.head_dim

    def arrange(whole: Expression) -> Expression:
        rows, *inputs = whole.shape
        heads = reshape(rows_of(whole, 0, 2 * size), attn.num_heads, 2, attn.head_dim, *inputs)
        queries, gates = (reshape(rows_of(heads, i, i + 1, dim=1), size, *inputs) for i in (0, 1))
        keys = attn.num_kv_heads * attn.head_dim
        return concat(queries, rows_of(whole, 2 * size, 2 * size + keys), rows_of(whole, 2 * size + keys, rows), gates)

    return arrange


def _spread_gate(attn: AttentionSpec, *sizes: int) -> Arrange:
    """Return the repetition of the gate's rows, which follow those of q, k, v, for each number of their head."""

    def arrange(whole: Expression) -> Expression:
        ends = list(itertools.accumulate(sizes))
        spread = repeated_rows(rows_of(whole, ends[-1], whole.shape[0]), attn.head_dim)
        return concat(*map(functools.partial(rows_of, whole), [0, *ends], ends), spread)

    return arrange


def ungrouped(attn: AttentionSpec) -> Arrange:
    """Return the permutation of rows by key/value head into all q, all k, all v."""
    group = attn.num_heads // attn.num_kv_heads

    def arrange(whole: Expression) -> Expression:
        inputs = whole.shape[1:]
        heads = reshape(whole, attn.num_kv_heads, group + 2, attn.head_dim, *inputs)
        parts = [(0, group), (group, group + 1), (group + 1, group + 2)]
        rows = [(end - begin) * attn.num_kv_heads * attn.head_dim for begin, end in parts]
        slices = [rows_of(heads, begin, end, dim=1) for begin, end in parts]
        return concat(*(reshape(part, count, *inputs) for part, count in zip(slices, rows, strict=True)))

    return arrange


def mlp_tensors(spec: ModelSpec, layout: Layout, prefix: str, size: int) -> dict[str, Expression]:
    """Return the dense MLP, of ``size`` channels, of a layer whose tensors begin with ``prefix``."""
    hidden, bias = spec.hidden_size, spec.mlp.bias
    if not spec.mlp.is_gated:
        engine = linear_tensors("mlp.up", {prefix + layout.up: size}, hidden, bias)
        if spec.mlp.is_xielu:
            for name, source, *shape in (("positive", "alpha_p", 1), ("negative", "alpha_n", 1), ("linear", "beta")):
                stored = Load(f"{prefix}{layout.xielu}.{source}", tuple(shape))
                engine[f"mlp.xielu.{name}"] = reshape(stored, 1)
    elif layout.gate_up:
        engine = linear_tensors("mlp.gate_up", {prefix + layout.gate_up: 2 * size}, hidden, bias)
    else:
        engine = linear_tensors("mlp.gate_up", {prefix + layout.gate: size, prefix + layout.up: size}, hidden, bias)
    has_last = bias or spec.mlp.down_bias
    return engine | linear_tensors("mlp.down", {prefix + layout.down: hidden}, size, has_last)
