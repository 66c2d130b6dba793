"""The parts of a ModelSpec: each feature of a decoder is one field, and one place in the decoder.

A field left at its default is absent from the model. ``make fields`` writes the C++ structs from these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from lmdeploy.turbomind.spec.fields import (
    Cap,
    Count,
    Finite,
    OneOf,
    OptionalSize,
    PerLayer,
    Positive,
    Real,
    Size,
    Whole,
)

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu", "silu_7", "silu_16", "clamped_silu_10")
ROUTER_SCORES = ("softmax", "sigmoid", "sqrt_softplus", "sparsemixer")
COMPRESSIONS = ("none", "sparse", "heavy")
GROUP_SCORES = ("max", "top2")
POOLINGS = ("first", "last", "mean", "mean_sqrt", "max", "weighted_mean")
RECURRENCE_KINDS = ("gated_delta", "kimi_delta", "mamba", "mamba2", "rg_lru", "lightning", "short_convolution")
GATES = ("sigmoid", "silu", "linear", "gelu_tanh")
_SCAN_KEY_DIM = 16  # kMaxScanKeyDim of backend_cpp/kernels/recurrence.h


@dataclass(frozen=True)
class NormSpec:
    """Every norm of the model."""

    eps: Positive  # added to the mean square (``rms``) or variance (``layer``)
    # ``rms``: ``x / sqrt(mean(x^2) + eps)``; ``layer``: the same after the mean is taken off
    kind: Annotated[str, OneOf(("rms", "layer"), "NormKind", "kernels/norm.h")] = "rms"
    offset: Finite = 0.0  # added to every weight (Gemma: 1)
    bias: bool = False  # Whether norms have a bias. Norms of queries and keys never do.


@dataclass(frozen=True)
class BlockSpec:
    """How attention and MLP of a layer are joined to the residual stream."""

    is_parallel: bool = False  # both read the layer's input; otherwise the MLP reads what attention has added to it
    shares_norm: bool = False  # One input norm serves both. Only with ``is_parallel``.
    # Inputs of attention and MLP go through norms of their own. Only with ``has_output_norms`` they may be missing.
    has_input_norms: bool = True
    # The first layer's attention reads the embeddings as they are. Only where attention and MLP have norms of their own
    # in front.
    skips_first_norm: bool = False
    has_output_norms: bool = False  # what attention and MLP give goes through a norm of its own before it is added
    output_norm_eps: Cap = 0.0  # of these norms; 0: as of the others
    residual_scale: Positive = 1.0  # factor of what attention and MLP add
    # The residual stream itself goes through the norms in front of attention and MLP (MiniMax-Text-01)
    norms_stream: bool = False
    stream_scale: Positive = 1.0  # factor of the residual stream that is added to
    has_layer_scale: bool = False  # what a layer hands on is multiplied by a learned number (Gemma 4)


@dataclass(frozen=True)
class MlpSpec:
    """Gated: ``down(activation(gate(x)) * up(x))``; plain: ``down(activation(up(x)))``."""

    # ``silu``, ``gelu`` (by the error function), ``gelu_tanh``, ``relu``, ``relu2`` (squared), or, gated only,
    # ``clamped_swiglu``: ``(up + 1) gate sigmoid(1.702 gate)`` with gate at most 7 and up in [-7, 7] (GPT-OSS), and
    # ``silu_7`` and ``silu_16``: ``min(silu(gate), 7) up`` with up in [-7, 7], or the same with 16 (Step 3.5), and
    # ``clamped_silu_10``: ``silu(min(gate, 10)) up`` with up in [-10, 10] (HY-V4)
    activation: Annotated[str, OneOf(ACTIVATIONS, "Activation", "kernels/activation.h")] = "silu"
    is_gated: bool = True  # whether there is a gate
    bias: bool = False  # whether the projections have biases
    down_bias: bool = False  # Whether the last one has, where the others have none. Not of experts.
    # Factors of ``gate(x)`` and of ``up(x)`` of a gated MLP that is no expert
    gate_scale: Positive = 1.0
    up_scale: Positive = 1.0
    # The activation is xIELU (Huang & Schlag, 2024, arXiv 2411.13010), whose factors each layer has learned, and
    # ``activation`` is not read. Only without a gate.
    is_xielu: bool = False
    # For each layer the size of its MLP; empty: the model's ``intermediate_size``, everywhere
    sizes: tuple[Size, ...] = ()
    # For each layer how many standard deviations above its mean ``gate(x)`` is cut, ``max(gate(x) - cut, 0)``; 0: it
    # stays. Empty: everywhere (Gemma 3n). Only with a gate.
    cuts: Annotated[tuple[Cap, ...], PerLayer(0.0)] = ()


@dataclass(frozen=True)
class RouterSpec:
    """How a mixture of experts chooses."""

    # ``softmax`` over all experts, ``sigmoid`` of each, ``sqrt_softplus``, the square root of each softplus
    # (DeepSeek-V4), or ``sparsemixer`` (Phi-3.5-MoE)
    score: Annotated[str, OneOf(ROUTER_SCORES, "RouterScore", "kernels/moe.h")] = "softmax"
    normalizes: bool = False  # whether the chosen scores are divided by their sum
    scale: Positive = 1.0  # factor of the chosen scores
    # Experts are in ``groups`` equal groups, and only those of the best ``top_groups`` are chosen from
    groups: Size = 1
    top_groups: Size = 1
    # A group's worth: ``max`` of its scores, or the sum of its two best, ``top2``
    group_score: Annotated[str, OneOf(GROUP_SCORES, "GroupScore", "kernels/moe.h")] = "max"
    has_correction: bool = False  # whether a learned number is added to each score for the choice alone
    bias: bool = False  # whether the router's linear layer has a bias
    # Whether the router reads the residual stream through a norm of its own, divided by ``sqrt(hidden_size)``;
    # otherwise it reads what the experts do
    has_input_norm: bool = False
    has_expert_scale: bool = False  # whether each chosen score is multiplied by a learned number of its expert
    # Whether the input of a token's only expert is multiplied by its score, and not what comes out (Llama 4)
    scales_input: bool = False
    jitter: Cap = 0.0  # of ``sparsemixer``: scores further than so much (relative) below the best are not softened


@dataclass(frozen=True)
class MoeSpec:
    """Layers whose MLP is a mixture of experts, each an MLP as ``MlpSpec`` says."""

    # Experts in a layer, and those active for a token
    num_experts: Count
    experts_per_token: Size
    intermediate_size: Size  # of one expert
    router: RouterSpec = RouterSpec()  # how they are chosen
    layers: Annotated[tuple[bool, ...], PerLayer(True)] = ()  # for each layer whether it has experts; empty: all have
    # For each layer whether a table gives the experts of each token of the vocabulary, which the router then weighs
    # alone (DeepSeek-V4); empty: of none
    by_token: Annotated[tuple[bool, ...], PerLayer(False)] = ()
    shared_intermediate_size: OptionalSize = 0  # of the shared expert; 0: none
    has_shared_gate: bool = False  # whether its output is multiplied by the sigmoid of a linear layer with one output
    # Whether the experts' layers have a dense MLP too. Each of both reads the residual stream through a norm of its own
    # and gives through one, and the sum is what the layer's MLP gives (Gemma 4).
    is_alongside_mlp: bool = False
    # Routed experts read a linear layer's this many outputs, and another one reads their sum (Nemotron 3 Super); 0:
    # they read and write what the router and the shared expert do
    latent_size: OptionalSize = 0
    # For each layer of the model the activation of its routed experts, and of the shared one; empty: ``MlpSpec``'s
    activations: tuple[Annotated[str, OneOf(ACTIVATIONS, "Activation", "kernels/activation.h")], ...] = ()
    shared_activations: tuple[Annotated[str, OneOf(ACTIVATIONS, "Activation", "kernels/activation.h")], ...] = ()


@dataclass(frozen=True)
class LayerInputSpec:
    """An input of each layer's own, made of a token's own embedding and of what the first layer reads (Gemma 3n).

    With ``e`` a row ``[num_layers, size]`` of a second table, scaled by ``sqrt(size)``, and ``h`` the scaled embedding,
    the layers' inputs are ``(norm(h P / sqrt(hidden_size)) + e) / sqrt(2)``. After its MLP a layer adds
    ``norm(W (activation(V x) * input))`` to the residual stream ``x``.
    """

    size: Size  # numbers of an input
    image_token: OptionalSize = 0  # the token whose embedding in that table the rows of images have
    # Rows of that table in the checkpoint, if there are fewer than tokens: further tokens read the first. 0: one for
    # each token.
    vocab_size: OptionalSize = 0


@dataclass(frozen=True)
class StreamsSpec:
    """Several residual streams, of which layers compute on one (AltUp; Baykal et al., 2023, arXiv 2301.13310).

    In front of a layer, streams are predicted from each other by factors that a router makes of the active one; after
    it, what the layer changed corrects all of them. Each layer has a low-rank branch besides its attention (LAuReL;
    Menghani et al., 2024, arXiv 2411.07501).
    """

    count: Size  # streams
    active: OptionalSize  # the one that layers compute on
    branch_rank: Size  # of the low-rank branch


@dataclass(frozen=True)
class SharedBlocksSpec:
    """Attention and MLP that layers share, in front of the recurrence of layers with ``both`` (Zamba2).

    With ``x`` the residual stream and ``e`` the embeddings, such a layer adds ``recurrence(norm(x + W mlp(norm(y))))``
    to ``x``, where ``y`` is attention to the norm of ``x`` and ``e`` side by side.
    """

    count: Size  # blocks, which the layers take in turns
    adapter_rank: Size  # of the matrices that each layer adds to ``gate_up``
    adapts_attention: bool  # each adds such matrices to queries, keys and values, too


@dataclass(frozen=True)
class HyperConnectionsSpec:
    """Residual streams that halves of layers read and add to by gates (hyper-connections; arXiv 2409.19606; Qwen 4).

    A half reads the mean of the normed streams times gates, and adds what it makes to each stream with a weight. After
    the last layer, one more such mean goes into the output layer, without another norm.

    With rank 0 it reads the sum of the streams, each times a weight, through its norm, and so does the output (HY-V4).
    Weights come out of all streams normed as one vector: ``sigmoid(scale l + bias) + eps`` those to read, and
    ``magnitude sigmoid(scale l + bias) + eps`` those to add. With ``mixing_iterations``, weights to add have no
    ``eps``, and a half adds to mixed streams: by the matrix that so many of Sinkhorn's iterations make of ``count``
    squared more outputs, ``softmax(scale l + bias) + eps`` by rows (arXiv 2512.24880; DeepSeek-V4).
    """

    count: Annotated[int, Whole(1, 8)]  # streams
    rank: OptionalSize  # of the vectors that the gates come out of, or 0
    # See above
    magnitude: Positive = 1.0
    eps: Cap = 0.0
    mixing_iterations: OptionalSize = 0
    # The output reads the mean of the streams, without weights (GLM-5-Next)
    ends_by_mean: bool = False


@dataclass(frozen=True)
class NgramsSpec:
    """Embeddings of hashed n-grams that some layers add to their streams (Qwen 4). Rows are read from the files.

    An n-gram of ``n`` tokens is the exclusive or of token ``k`` back times ``multipliers[k]``, for k < n. Each of its
    ``heads`` takes it modulo its own size. Tokens before a text, and an ``end_token`` with all before it, count as
    ``end_token``.
    """

    layers: tuple[OptionalSize, ...]  # the layers, ascending
    size: Annotated[int, Whole(2, 8)]  # tokens of the longest n-gram; there are those of 2 tokens on
    heads: Size  # embeddings of each n-gram
    width: Size  # of all embeddings of a token together
    conv_kernel: Size  # taps of the convolution over tokens that are ``size`` apart
    end_token: OptionalSize  # see above
    # For each of the layers, one after the other, ``size`` odd numbers below 2^53
    multipliers: tuple[Annotated[float, Real(above=0, is_double=True)], ...]
    head_sizes: tuple[Size, ...]  # for each of the layers, the rows of each head of 2-grams, 3-grams, ...
    # For each of the layers, rows of the table of all heads, padding included
    table_rows: tuple[Annotated[int, Whole(1, (1 << 31) - 1)], ...]
    parts: Size  # tensors that a checkpoint divides a table into, as even as can be, the last the smallest

    @property
    def table_size(self) -> int:
        """The numbers of all tables."""
        return sum(self.table_rows) * self.width // ((self.size - 1) * self.heads)


@dataclass(frozen=True)
class BlockIndexerSpec:
    """Sparse attention to whole blocks of tokens, which small heads choose by the blocks' mean index keys (Qwen 4)."""

    budget: Size  # tokens of the chosen blocks; the last, incomplete block is seen besides
    block: Size  # tokens of a block; divides ``budget``
    # Index queries of a token, and the size of these and of an index key
    num_heads: Size
    head_dim: Size
    # A block counts as much as its best token, for each key/value head by an index query of its own, and a token's own
    # block is one of the chosen (MiniMax-M3)
    is_by_best: bool = False
    layers: Annotated[tuple[bool, ...], PerLayer(True)] = ()  # which layers choose; the others attend to all tokens


@dataclass(frozen=True)
class IndexerSpec:
    """Sparse attention (DeepSeek-V3.2): a scorer of small heads chooses the tokens that a token attends to."""

    top_k: Size  # how many are chosen; a token that sees no more attends to all of them
    # Index queries of a token, and the size of these and of its one index key
    num_heads: Size
    head_dim: Size
    is_interleaved: bool  # whether their rotation takes neighbours as pairs, as RopeSpec.is_interleaved
    norm_eps: Positive  # of the LayerNorm of the keys
    # Which layers choose; the others attend to what the last one before chose
    layers: Annotated[tuple[bool, ...], PerLayer(True)] = ()
    # Tokens that are chosen together, by one key: the sum of theirs, each number weighted by the softmax of gates. A
    # token sees its own, incomplete pool besides. More than 1 needs keys without rotation (GLM-5-Next)
    pool: Size = 1


@dataclass(frozen=True)
class CompressedAttentionSpec:
    """Attention to the last tokens, and to keys that stand for several tokens each (DeepSeek-V4).

    Queries come out of a vector of ``q_rank`` numbers; one key, which is its value too, serves all heads. The last
    numbers of a head are rotated, and those of what attention gives are rotated back. Groups of heads go through a
    linear layer each, and what these give through one.
    """

    # For each layer what it attends to besides the last ``window`` tokens: ``none``, the ``top_k`` keys of
    # ``sparse_ratio`` tokens that an indexer chooses, or all keys of ``heavy_ratio`` tokens
    layers: tuple[Annotated[str, OneOf(COMPRESSIONS, "Compression")], ...]
    window: Size
    sparse_ratio: Size
    heavy_ratio: Size
    q_rank: Size  # see above
    # Groups of heads, and what the linear layer of one gives
    output_groups: Size
    output_rank: Size
    # Keys that a token chooses, and the index queries of a token and their size
    top_k: Size
    index_heads: Size
    index_head_dim: Size

    def sizes(self, layer: int, head_dim: int) -> tuple[int, int]:
        """Return the numbers that a layer keeps of each of the last tokens, and of every token."""
        kind = self.layers[layer]
        if kind == "none":
            return head_dim, 0
        ratio = self.sparse_ratio if kind == "sparse" else self.heavy_ratio
        last = 5 * head_dim + 4 * self.index_head_dim if kind == "sparse" else 3 * head_dim
        return last, -(-(head_dim + self.index_head_dim) // ratio)


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2): keys and values come out of one small vector a token."""

    kv_rank: Size  # size of that vector
    q_rank: OptionalSize  # size of the vector queries come out of; 0: they come from the hidden state
    # Parts of a query and key head without and with rotation; the rotated part of the key is one for all heads
    nope_dim: Size
    rope_dim: OptionalSize
    value_dim: Size  # size of a value head
    norm_eps: Positive  # of the norms of the two vectors
    # Indexer, which chooses the tokens that a token attends to; None: it attends to all before it
    indexer: IndexerSpec | None = None
    has_gate: bool = False  # what attention gives is multiplied by the sigmoid of a linear layer of what it reads


@dataclass(frozen=True)
class AttentionSpec:
    """Attention beyond ``softmax(scale q k) v``."""

    scale: Positive  # factor of q·k
    # Query heads, key and value heads, and the size of a head, in layers of this kind; 0: the model's
    num_heads: OptionalSize = 0
    num_kv_heads: OptionalSize = 0
    head_dim: OptionalSize = 0
    value_dim: OptionalSize = 0  # size of a value head; 0: as large as a head
    # Which projections have a bias
    qkv_bias: bool = False
    o_bias: bool = False
    # Norm of queries and keys: ``none``, ``head`` (each head, one weight for all), ``each_head`` (each head, with a
    # weight of its own), ``projection`` (all heads together), ``unit`` (each head without a weight, in layers that
    # rotate; Llama 4)
    qk_norm: Annotated[str, OneOf(("none", "head", "each_head", "projection", "unit"), "QkNorm")] = "none"
    norms_rotated: bool = False  # that norm follows rotation; otherwise rotation follows it
    norms_values: bool = False  # each head of values goes through a norm without a weight
    # One projection makes keys and values, which differ by norms and rotation alone: its rows stand twice in ``qkv``
    keys_are_values: bool = False
    qkv_clip: Cap = 0.0  # queries, keys and values are kept in [-qkv_clip, qkv_clip]; 0: they stay
    softcap: Cap = 0.0  # scores become ``softcap tanh(score / softcap)``; 0: they stay
    # For each layer of the model, how many of the last positions a token sees, itself included; 0: all. Empty: all,
    # everywhere. Those of layers of another kind are not read. In an encoder a token sees as many of the next.
    windows: Annotated[tuple[OptionalSize, ...], PerLayer(0)] = ()
    # Whether windows are chunks, counted from position 0: a token sees those of its own chunk up to itself
    is_chunked: bool = False
    # Tokens of an image see what is before them alone, where ``images.whole_rows`` has other layers see all of it
    is_causal_in_images: bool = False
    # For each head the amount taken off a score for each position of distance; empty: none
    alibi_slopes: tuple[Finite, ...] = ()
    # Each head has a learned bias of a score for each distance from a token to another, as far as this to both sides,
    # and beyond it the last; 0: none (MPNet)
    bias_reach: OptionalSize = 0
    # Scores have products with learned vectors of distances too (DeBERTa; He et al., 2021, arXiv 2006.03654): which
    # vector each distance has, from the same number of tokens after a token to that many before, and beyond them the
    # first and the last; empty: they have none
    distance_buckets: tuple[OptionalSize, ...] = ()
    # Whether each head has a learned logit that takes its share of the softmax and gives nothing
    has_sinks: bool = False
    # From this position on, queries are multiplied by log(position + 1) / log(logn_length); 0: never
    logn_length: OptionalSize = 0
    # Queries are multiplied by 1 + temperature_scale log(1 + floor(position / temperature_length)); length 0: never
    temperature_length: OptionalSize = 0
    temperature_scale: Cap = 0.0
    tempers_unrotated: bool = False  # only layers that do not rotate do so, and count positions from 1 (Llama 4)
    # Outputs of attention are multiplied by the sigmoid of a gate, as many rows of ``qkv`` after the values as there
    # are of queries (Qiu et al., 2025, arXiv 2505.06708)
    has_output_gate: bool = False
    gates_by_softplus: bool = False  # that gate goes through softplus in place of sigmoid (Laguna)
    # A checkpoint has one row of the gate for each head, which stands in ``qkv`` for each number of the head
    gates_heads: bool = False
    value_scale: Positive = 1.0  # factor of values
    mla: MlaSpec | None = None  # multi-head latent attention instead of plain key and value heads
    # A token attends to chosen blocks of tokens; None: to all that it sees
    block_indexer: BlockIndexerSpec | None = None

    def reach(self, layer: int) -> str:
        """Return the layer's kind of cache: ``paged`` (all tokens), ``window`` or ``chunk``."""
        if not self.windows or self.windows[layer] == 0:
            return "paged"
        return "chunk" if self.is_chunked else "window"


@dataclass(frozen=True)
class RecurrenceSpec:
    """Layers that keep a state of a fixed size a sequence in place of keys and values of every token."""

    # ``gated_delta``: the gated delta rule (Yang et al., 2024, arXiv 2412.06464), with queries and keys of length 1;
    # ``kimi_delta``: the same with a decay for each channel of a key (Kimi Team, 2025, arXiv 2510.26692); ``mamba``: a
    # selective scan (Gu & Dao, 2023, arXiv 2312.00752), whose C, the queries, and B, the keys, all channels of x, the
    # values, share, and whose decays differ in each; ``mamba2``: state space duality (Dao & Gu, 2024, arXiv
    # 2405.21060), whose C are the queries, B the keys and x the values; ``rg_lru``: the real-gated linear recurrent
    # unit (De et al., 2024, arXiv 2402.19427), whose states are one number a channel, key_dim 1; ``lightning``: decays
    # that are constants (Qin et al., 2024, arXiv 2401.04658); ``short_convolution``: nothing but a gated convolution of
    # values (LFM2)
    kind: Annotated[str, OneOf(RECURRENCE_KINDS, "RecurrenceKind")]
    # Heads of values, each with a state, and of queries and keys, which neighbouring value heads share
    num_heads: Size
    num_key_heads: Size
    # Sizes of a head; a state is a matrix ``[key_dim, value_dim]``
    key_dim: Annotated[int, Whole(1, 256)]
    value_dim: Size
    # Tokens that the causal convolution of queries, keys and values looks at, the current one included; 1: there is no
    # convolution
    conv_kernel: Annotated[int, Whole(1, 8)]
    # Whether the convolution has a bias, and the linear layers before and after it
    conv_bias: bool = False
    bias: bool = False
    # Of what comes out: ``head`` (each head, one weight for all), ``groups`` (equal parts of all heads, with a weight
    # of their own) or ``none``; in ``mamba`` also of what steps, keys and queries come out of: ``inputs``, or
    # ``plain_inputs`` without weights
    norm: Annotated[str, OneOf(("head", "groups", "inputs", "plain_inputs", "none"), "RecurrenceNorm")] = "head"
    norm_groups: Size = 1  # how many parts
    norm_eps: Cap = 0.0  # of that norm; 0: as of the others
    # Function of the gate that what comes out is multiplied by: ``silu``, ``sigmoid``, ``gelu_tanh`` or ``linear``
    gate: Annotated[str, OneOf(GATES, "GateKind", "kernels/recurrence.h")] = "silu"
    norms_gated: bool = False  # the norm follows the gate; otherwise the gate follows it
    # Bounds of a step's length in ``mamba2``; 0: none
    min_step: Cap = 0.0
    max_step: Cap = 0.0
    write_scale: Positive = 1.0  # factor of the strength that is written with in ``gated_delta``
    # Size of the vectors that decays and the gate of ``kimi_delta`` and steps of ``mamba`` come out of; 0 in
    # ``kimi_delta``: they come out of the layer's input
    gate_rank: OptionalSize = 0
    # Of ``kimi_delta``: the logarithm of a decay is minus this times ``sigmoid(exp(a_log) (a + dt_bias))``; 0: it is
    # ``-exp(a_log) softplus(a + dt_bias)``
    decay_bound: Cap = 0.0
    # Of ``lightning``: for each head, and for each layer; the logarithm of a decay is minus their product
    slopes: tuple[Positive, ...] = ()
    slope_factors: Annotated[tuple[Positive, ...], PerLayer(1.0)] = ()
    # Factors of what the linear layer in front gives, and of what goes into the one after it
    query_scale: Positive = 1.0
    key_scale: Positive = 1.0
    value_scale: Positive = 1.0
    gate_scale: Positive = 1.0
    step_scale: Positive = 1.0
    output_scale: Positive = 1.0

    def problems(self) -> Iterator[str]:
        """Yield how sizes contradict each other."""
        if self.kind == "mamba" and self.key_dim > _SCAN_KEY_DIM:
            yield f"recurrence.key_dim must be at most {_SCAN_KEY_DIM} in mamba, got {self.key_dim}"
        for part in ("num_key_heads", "norm_groups"):
            if self.num_heads % getattr(self, part):
                multiple = f"recurrence.{part} {getattr(self, part)}"
                yield f"recurrence.num_heads must be a multiple of {multiple}, got {self.num_heads}"

    def gates(self) -> tuple[str, ...]:
        """Return the layers besides ``in`` that read the normed stream."""
        end = "down" if self.gate_rank else "up"
        names = {"gated_delta": ("gates",), "kimi_delta": ("gates", f"decay_{end}", f"gate_{end}")}
        return names.get(self.kind, ())


@dataclass(frozen=True)
class StretchSpec:
    """Frequencies that depend on the length of a sequence's prompt, beyond ``length``."""

    # ``dynamic``: theta grows with the prompt (NTK); ``qwen``: it grows in powers of two (Qwen 1); ``long``: other
    # frequencies, ``inv_freq``, are used (longrope)
    kind: Annotated[str, OneOf(("dynamic", "qwen", "long"), "StretchKind")]
    length: Size  # longest prompt that is not stretched
    factor: Annotated[float, Real(low=1)] = 1.0  # of ``dynamic``
    inv_freq: tuple[Positive, ...] = ()  # of ``long``


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of the first ``2 len(inv_freq)`` dimensions of a head, every static scaling already applied."""

    theta: Annotated[float, Real(above=0, is_double=True)]  # base of the frequencies
    inv_freq: tuple[Cap, ...]  # radians a position of each pair, float32 values; 0: the pair stays
    attention_scaling: Positive = 1.0  # factor of cos and sin (YaRN, longrope)
    is_interleaved: bool = False  # pairs are neighbours, 2 i and 2 i + 1; otherwise i and i + len(inv_freq)
    stretch: StretchSpec | None = None  # what changes with the prompt's length
    # Which of a position's three numbers (frame, row, column) turns each pair (M-RoPE; Wang et al., 2024, arXiv
    # 2409.12191); empty: positions have one number
    axes: tuple[Annotated[int, Whole(0, 2)], ...] = ()


@dataclass(frozen=True)
class ImagesSpec:
    """A vision-language model: rows that a request brings may take the place of token embeddings, unscaled."""

    # After each of this many first layers, further numbers of an image's rows are added to the residual stream
    # (DeepStack; Meng et al., 2024, arXiv 2406.04334): a row is ``(1 + deepstack_layers) hidden_size`` wide
    deepstack_layers: OptionalSize = 0
    # Tokens of an image, where these see all of it; 0: they see what is before them, as those of text do
    whole_rows: OptionalSize = 0
    # In front of which layers are those that look at images by gated cross-attention, with a gated MLP (Alayrac et al.,
    # 2022, arXiv 2204.14198; Llama 3.2 Vision), ascending; ``num_layers`` does not count them. An image has one token
    # then. Empty: images are among the tokens.
    cross_layers: tuple[OptionalSize, ...] = ()
    # Rows of images take other weights than those of text in the projections of attention (``qkv``, ``o``), and in the
    # MLP (visual experts; Wang et al., 2023, arXiv 2311.03079)
    own_attention: bool = False
    own_mlp: bool = False
    own_bias: bool = False  # those of ``qkv`` have a bias, where those of text have none
    # Of matrices that linear layers of attention and MLP add for rows of images (partial LoRA; Dong et al., 2024, arXiv
    # 2401.16420); 0: none
    low_rank: OptionalSize = 0
    # Rows that bring no place on a grid take what those of text do (the mark that ends a CogVLM image)
    own_on_grid: bool = False

    @property
    def has_own_weights(self) -> bool:
        """Return whether linear layers have further weights for rows of images."""
        return self.own_attention or self.own_mlp or self.low_rank > 0


@dataclass(frozen=True)
class OutputSpec:
    """From the last norm to logits: ``softcap tanh(scale (x W + b) / softcap)``."""

    scale: Positive = 1.0  # factor of the logits
    softcap: Cap = 0.0  # bound of the logits; 0: none
    bias: bool = False  # whether the output layer has one
    normalizes_weight: bool = False  # whether each row of W is divided by its length first (Baichuan2)
    has_plain_norm: bool = False  # the weight of the norm in front is as stored, without ``norm.offset``


@dataclass(frozen=True)
class HeadSpec:
    """Layers that draft for another model, out of its hidden states (``backend_cpp/model/head_input.h``)."""

    # ``mtp`` (DeepSeek-V3, Qwen3-Next, Qwen3.5), ``eagle`` or ``eagle3``
    kind: Annotated[str, OneOf(("mtp", "eagle", "eagle3"), "HeadKind")]
    target_hidden_size: Size  # of the model
    # In front of which of the model's layers hidden states are taken, joined; empty: after its last norm
    target_layers: tuple[OptionalSize, ...] = ()
    bias: bool = False  # whether the linear layer that joins hidden states and embeddings has one
    # Those it drafts among, in the order of its logits; empty: the whole vocabulary
    tokens: tuple[OptionalSize, ...] = ()


@dataclass(frozen=True)
class EncoderSpec:
    """A model that reads a text whole: each token attends to those after it as well, and nothing is generated.

    A text runs in one step, and nothing of it is kept. What comes of it is one vector.
    """

    # Pooling of the hidden states after the last norm into that vector: the ``first``, the ``last``, their ``mean``,
    # their sum divided by the square root of their number (``mean_sqrt``), the ``max`` of each channel, or their mean
    # weighted with 1, 2, ... (``weighted_mean``).
    pooling: Annotated[str, OneOf(POOLINGS, "TextPooling")] = "first"
    # Rows of a table, one of which is added to each token's embedding: the first to those of the first text of a pair,
    # the second to those of the other; 0: there is none
    token_types: OptionalSize = 0
