"""ModelSpec: the C++ decoder's description of a model besides its weights, and its validation.

The JSON form is ``spec.json`` of an engine directory (docs/internals/interfaces.md).
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from lmdeploy.turbomind.spec.fields import (
    Count,
    OneOf,
    OptionalSize,
    PerLayer,
    Positive,
    Size,
    Whole,
    problems_of_fields,
)
from lmdeploy.turbomind.spec.parts import (
    AttentionSpec,
    BlockIndexerSpec,
    BlockSpec,
    CompressedAttentionSpec,
    EncoderSpec,
    HeadSpec,
    HyperConnectionsSpec,
    ImagesSpec,
    IndexerSpec,
    LayerInputSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
    NgramsSpec,
    NormSpec,
    OutputSpec,
    RecurrenceSpec,
    RopeSpec,
    SharedBlocksSpec,
    StreamsSpec,
)

T = TypeVar("T")


def from_fields(cls: type[T], fields: Mapping[str, Any]) -> T:
    """Return the dataclass ``cls`` whose ``dataclasses.asdict``, written and read as JSON, is ``fields``.

    Raises `TypeError` if a field is missing, unknown, or an object where none belongs.
    """
    types_of_fields = typing.get_type_hints(cls)
    return cls(**{name: _value(types_of_fields.get(name, Any), value) for name, value in fields.items()})


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(choice for choice in kind.__args__ if choice is not types.NoneType)
    if value is None:
        return None
    if typing.get_origin(kind) is tuple:
        return tuple(_value(kind.__args__[0], item) for item in value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} must be an object, got {value!r}")
        return from_fields(kind, value)
    return value


if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = 2
MIXERS = ("attention", "recurrence", "both", "none", "compressed")
LARGEST_EXPERT_COUNT = 1 << 17  # in all layers


@dataclass(frozen=True)
class ModelSpec:
    """One parametric decoder. Constructing one that is invalid raises ``ValueError`` naming every reason."""

    # As the checkpoint calls itself, and as users call the model
    architecture: str
    model_name: str
    dtype: Annotated[str, OneOf(("float32", "float16", "bfloat16"))]  # of the checkpoint
    # Rows of the token embedding, their width, and the layers that attend to text
    vocab_size: Size
    hidden_size: Size
    num_layers: Count
    intermediate_size: Size  # of an MLP that is no expert
    # Query heads, key and value heads, and the size of a head
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    # Parts of every layer, where the fields below do not give some layers a kind of their own
    norm: NormSpec
    attention: AttentionSpec
    max_position_embeddings: Size  # the longest sequence that the model is made for
    tied_embeddings: bool  # whether the output layer has the token embedding as its weight
    bos_token_id: int | None  # of the token in front of a text; None: there is none
    eos_token_ids: tuple[int, ...]  # tokens that end a response
    # Parts of every layer, where the fields below do not give some layers a kind of their own
    block: BlockSpec = field(default_factory=BlockSpec)
    mlp: MlpSpec = field(default_factory=MlpSpec)
    moe: MoeSpec | None = None  # layers whose MLP is a mixture of experts; None: there are none
    # Token mixer of each layer: ``attention``, ``compressed`` attention, ``recurrence``, the sum of ``both`` (the first
    # and the third), or ``none``. Empty: attention, everywhere.
    layer_mixers: Annotated[tuple[Annotated[str, OneOf(MIXERS, "Mixer")], ...], PerLayer("attention")] = ()
    # For each layer whether it has an MLP or experts. Empty: all have.
    layer_mlps: Annotated[tuple[bool, ...], PerLayer(True)] = ()
    # Further kinds of attention, where layers differ in more than windows and rotation
    attentions: tuple[AttentionSpec, ...] = ()
    # For each layer its kind of attention: 0: ``attention``, n: ``attentions[n - 1]``. Empty: the first, everywhere.
    layer_attentions: Annotated[tuple[OptionalSize, ...], PerLayer(0)] = ()
    # For each layer the earlier one whose keys and values it attends to, in place of its own; -1: its own. Both are of
    # the same kind and have the same window. Empty: all have their own.
    layer_keys: Annotated[tuple[Annotated[int, Whole(-1)], ...], PerLayer(-1)] = ()
    # Recurrence of the layers with ``recurrence`` or ``both``; None: there are none
    recurrence: RecurrenceSpec | None = None
    compressed_attention: CompressedAttentionSpec | None = None  # of layers with ``compressed``; None: there are none
    # How the halves of layers with a recurrence are joined to the residual stream; None: as those of others
    recurrence_block: BlockSpec | None = None
    ropes: tuple[RopeSpec, ...] = ()  # the rotary embeddings
    # For each layer which of them it uses, -1: none. Empty: the first, if there is one.
    layer_ropes: tuple[int, ...] = ()
    output: OutputSpec = field(default_factory=OutputSpec)  # from the last norm to logits
    embedding_scale: Positive = 1.0  # factor of the token embeddings
    has_embedding_norm: bool = False  # the embeddings go through a norm
    layer_input: LayerInputSpec | None = None  # a further input of each layer; None: there is none
    streams: StreamsSpec | None = None  # several residual streams; None: there is one
    # Attention and MLP of layers with ``both``, where layers share them; None: the layers' own
    shared_blocks: SharedBlocksSpec | None = None
    # Several residual streams that both halves of a layer read and add to; None: there is one
    hyper_connections: HyperConnectionsSpec | None = None
    ngrams: NgramsSpec | None = None  # embeddings of n-grams that layers add; None: there are none
    # Rows of a table with an embedding of each position, which is added to the token's; 0: there is none. No sequence
    # is longer.
    learned_positions: OptionalSize = 0
    images: ImagesSpec | None = None  # how the model sees; None: it reads text only
    head: HeadSpec | None = None  # whose head it is; None: it is a model
    # Output of a model that generates nothing for a text; None: it generates. Its output layer is not read.
    encoder: EncoderSpec | None = None

    def has_attention(self, layer: int) -> bool:
        """Return whether a layer attends."""
        return not self.layer_mixers or self.layer_mixers[layer] in {"attention", "both"}

    def has_recurrence(self, layer: int) -> bool:
        """Return whether a layer keeps a state."""
        return bool(self.layer_mixers) and self.layer_mixers[layer] in {"recurrence", "both"}

    def has_mixer(self, layer: int) -> bool:
        """Return whether a layer lets tokens look at earlier ones."""
        return not self.layer_mixers or self.layer_mixers[layer] != "none"

    def block_of(self, layer: int) -> BlockSpec:
        """Return how the halves of a layer are joined to the residual stream."""
        return self.recurrence_block if self.recurrence_block and self.has_recurrence(layer) else self.block

    def has_mlp(self, layer: int) -> bool:
        """Return whether a layer has an MLP or experts."""
        return not self.layer_mlps or self.layer_mlps[layer]

    def attention_of(self, layer: int) -> AttentionSpec:
        """Return a layer's kind of attention, with its sizes filled in."""
        kind = self.layer_attentions[layer] if self.layer_attentions else 0
        attention = self.attentions[kind - 1] if kind else self.attention
        head_dim = attention.head_dim or self.head_dim
        return dataclasses.replace(
            attention,
            num_heads=attention.num_heads or self.num_heads,
            num_kv_heads=attention.num_kv_heads or self.num_kv_heads,
            head_dim=head_dim,
            value_dim=attention.value_dim or head_dim,
        )

    def keys_of(self, layer: int) -> int:
        """Return the earlier layer whose keys and values a layer attends to, -1: its own."""
        return self.layer_keys[layer] if self.layer_keys else -1

    def mlp_size(self, layer: int) -> int:
        """Return the size of a layer's MLP that is no mixture of experts."""
        return self.mlp.sizes[layer] if self.mlp.sizes else self.intermediate_size

    def __post_init__(self) -> None:
        problems = list(problems_of_fields(self, self.num_layers)) or list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    def to_json(self) -> str:
        """Return the text of ``spec.json``."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Self":
        """Return the spec in the text of a ``spec.json``.

        Raises `ValueError` if the text is no JSON, of another format, lacks a field, or describes no possible model.
        """
        fields: Any = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise ValueError(f"not a spec.json of format {FORMAT}")
        try:
            return from_fields(cls, fields)
        except TypeError as error:
            raise ValueError(f"spec.json: {error}") from error


def _problems(spec: ModelSpec) -> Iterator[str]:
    """Yield how sound fields contradict each other. The C++ reader checks again only what memory safety needs."""
    if spec.norm.bias and spec.norm.kind != "layer":
        yield "norm.bias needs norm.kind layer"
    if spec.mlp.activation == "clamped_swiglu" and not spec.mlp.is_gated:
        yield "mlp.activation clamped_swiglu needs mlp.is_gated"
    yield from _block_problems(spec, spec.block, "block")
    if spec.recurrence_block:
        yield from _block_problems(spec, spec.recurrence_block, "recurrence_block")
    if spec.mlp.is_xielu and spec.mlp.is_gated:
        yield "mlp.is_xielu is incompatible with mlp.is_gated"
    if any(spec.mlp.cuts) and not spec.mlp.is_gated:
        yield "mlp.cuts needs mlp.is_gated"
    if spec.streams:
        yield from _stream_problems(spec, spec.streams)
    if spec.shared_blocks and (spec.block != BlockSpec() or spec.recurrence_block or spec.moe or spec.attention.mla):
        yield "shared_blocks needs the standard block, without recurrence_block, moe and attention.mla"
    if spec.shared_blocks and (spec.head or spec.images or spec.streams or spec.hyper_connections or spec.layer_input):
        yield "shared_blocks is incompatible with head, images, streams, hyper_connections or layer_input"
    if spec.hyper_connections:
        yield from _hyper_connection_problems(spec)
    if spec.ngrams:
        yield from spec.ngrams.problems(spec)
    if spec.compressed_attention:
        yield from spec.compressed_attention.problems(spec)
    elif "compressed" in spec.layer_mixers:
        yield "layer_mixers with compressed needs compressed_attention"
    yield from _layer_problems(spec)
    known = range(-1, len(spec.ropes))
    if len(spec.layer_ropes) not in {0, spec.num_layers} or any(index not in known for index in spec.layer_ropes):
        yield f"layer_ropes must have a number below {len(spec.ropes)} for each of {spec.num_layers} layers"
    outside = [token for token in spec.eos_token_ids if not 0 <= token < spec.vocab_size]
    yield from (f"eos_token_ids must be in [0, {spec.vocab_size}), got {token}" for token in outside)
    for rope in spec.ropes:
        yield from _rope_problems(rope)
    if spec.images:
        yield from _image_problems(spec, spec.images)
    if spec.head and spec.head.kind != "eagle3" and spec.head.target_hidden_size != spec.hidden_size:
        yield f"hidden_size must be the model's {spec.head.target_hidden_size}, got {spec.hidden_size}"
    yield from _mixer_problems(spec)
    if spec.encoder:
        yield from _encoder_problems(spec)
    if spec.layer_input and (spec.head or spec.has_embedding_norm or (spec.images and spec.images.cross_layers)):
        yield "layer_input is incompatible with head, has_embedding_norm or images.cross_layers"
    if spec.moe:
        yield from _moe_problems(spec.moe, spec.num_layers)


def _stream_problems(spec: ModelSpec, streams: StreamsSpec) -> Iterator[str]:
    if streams.active >= streams.count:
        yield f"streams.active must be below streams.count {streams.count}, got {streams.active}"
    is_supported = spec.block.has_input_norms and spec.block.has_output_norms and not spec.block.is_parallel
    if not is_supported or spec.head or spec.recurrence or spec.images or not spec.layer_input:
        yield "streams needs layer_input and norms of inputs and outputs, without head or images"


def _hyper_connection_problems(spec: ModelSpec) -> Iterator[str]:
    block = spec.block
    is_bare = not (block.has_output_norms or block.is_parallel or block.has_layer_scale)
    if not is_bare or spec.recurrence_block or (spec.moe and spec.moe.is_alongside_mlp):
        yield "hyper_connections needs a block without output norms, parallel halves, layer scale, moe.is_alongside_mlp"
    if spec.hyper_connections and block.has_input_norms != (spec.hyper_connections.rank == 0):
        yield "hyper_connections needs input norms with rank 0, and none with another"
    adds_images = spec.images and (spec.images.deepstack_layers or spec.images.cross_layers)
    if spec.head or adds_images or spec.encoder or spec.layer_input or spec.streams:
        yield "hyper_connections is incompatible with head, images in layers, encoder, layer_input or streams"


def _encoder_problems(spec: ModelSpec) -> Iterator[str]:
    attention = spec.attention
    if spec.attentions or spec.layer_keys or attention.mla or attention.logn_length or attention.temperature_length:
        yield "encoder is incompatible with attentions, layer_keys, or attention.mla or factors of positions"
    scores = attention.alibi_slopes or attention.bias_reach or attention.softcap or any(attention.windows) or spec.ropes
    if attention.distance_buckets and (scores or attention.num_heads != attention.num_kv_heads):
        yield "attention.distance_buckets is incompatible with alibi_slopes, bias_reach, softcap, windows or ropes"
    if "chunk" in map(attention.reach, range(spec.num_layers)):
        yield "encoder is incompatible with attention in chunks"
    if spec.recurrence or spec.images or spec.head or spec.layer_input or spec.layer_mixers:
        yield "encoder is incompatible with layer_mixers, recurrence, images, head or layer_input"


def _block_problems(spec: ModelSpec, block: BlockSpec, name: str) -> Iterator[str]:
    if block.shares_norm and not block.is_parallel:
        yield f"{name}.shares_norm needs {name}.is_parallel"
    is_bare = not block.has_output_norms and not spec.hyper_connections
    if not block.has_input_norms and (is_bare or block.is_parallel or spec.head):
        yield f"{name} without has_input_norms needs has_output_norms, without is_parallel and head"
    is_supported = block.has_input_norms and not block.norms_stream and not block.shares_norm and not spec.head
    if block.skips_first_norm and not is_supported:
        yield f"{name}.skips_first_norm needs has_input_norms, without norms_stream, shares_norm and head"
    if block.norms_stream and (not block.has_input_norms or block.is_parallel or spec.head):
        yield f"{name}.norms_stream needs has_input_norms, without is_parallel and head"
    if spec.moe and spec.moe.is_alongside_mlp and (not block.has_output_norms or block.is_parallel):
        yield f"moe.is_alongside_mlp needs {name}.has_output_norms, without {name}.is_parallel"


def _layer_problems(spec: ModelSpec) -> Iterator[str]:
    """Yield what is wrong with the layers' attention: each kind is named by the first layer that has it."""
    if any(kind > len(spec.attentions) for kind in spec.layer_attentions):
        wrong = next(i for i, kind in enumerate(spec.layer_attentions) if kind > len(spec.attentions))
        yield f"layer_attentions[{wrong}] must be at most {len(spec.attentions)}, got {spec.layer_attentions[wrong]}"
        return
    if spec.attentions and (spec.attention.mla or any(attention.mla for attention in spec.attentions)):
        yield "attentions is incompatible with attention.mla"
    found: set[int] = set()
    for layer in range(spec.num_layers):
        kind = spec.layer_attentions[layer] if spec.layer_attentions else 0
        if kind not in found and spec.has_attention(layer):
            yield from _attention_problems(spec.attention_of(layer), f"layer {layer}: ")
        found.add(kind)
        yield from _rotation_problems(spec, layer)
        if (source := spec.keys_of(layer)) >= 0:
            yield from _shared_key_problems(spec, layer, source)
    if spec.mlp.sizes and len(spec.mlp.sizes) != spec.num_layers:
        yield f"mlp.sizes must have a value for each of {spec.num_layers} layers, got {len(spec.mlp.sizes)}"


def _attention_problems(attention: AttentionSpec, where: str) -> Iterator[str]:
    if attention.num_heads % attention.num_kv_heads:
        yield f"{where}num_heads must be a multiple of num_kv_heads {attention.num_kv_heads}, got {attention.num_heads}"
    if attention.head_dim % 2:
        yield f"{where}head_dim must be even, got {attention.head_dim}"
    if len(attention.alibi_slopes) not in {0, attention.num_heads}:
        yield f"{where}attention.alibi_slopes must have a finite number for each of {attention.num_heads} heads"
    buckets = attention.distance_buckets
    if buckets and (len(buckets) % 2 == 0 or list(buckets) != sorted(buckets)):
        yield f"{where}attention.distance_buckets must be an odd number of numbers, none below the one before it"
    if attention.bias_reach and attention.mla:
        yield f"{where}attention.bias_reach is incompatible with attention.mla"
    if attention.has_output_gate and attention.mla:
        yield f"{where}attention.has_output_gate is incompatible with attention.mla"
    if attention.gates_by_softplus and not attention.has_output_gate:
        yield f"{where}attention.gates_by_softplus needs attention.has_output_gate"
    if attention.mla and attention.mla.indexer:
        yield from _indexer_problems(attention.mla, attention.mla.indexer, where)
    if attention.block_indexer:
        yield from _block_indexer_problems(attention, attention.block_indexer, where)


def _indexer_problems(mla: MlaSpec, indexer: IndexerSpec, where: str) -> Iterator[str]:
    name = f"{where}attention.mla.indexer"
    if not mla.q_rank:
        yield f"{name} needs attention.mla.q_rank, which its queries come out of"
    if indexer.head_dim % 2 or indexer.head_dim < mla.rope_dim:
        yield f"{name}.head_dim must be even and at least rope_dim {mla.rope_dim}, got {indexer.head_dim}"
    if indexer.layers and not indexer.layers[0]:
        yield f"{name}.layers[0] must be true: there is no choice before it"


def _block_indexer_problems(attention: AttentionSpec, indexer: BlockIndexerSpec, where: str) -> Iterator[str]:
    name = f"{where}attention.block_indexer"
    if indexer.budget % indexer.block:
        yield f"{name}.budget must be a multiple of block {indexer.block}, got {indexer.budget}"
    if indexer.head_dim % 2:
        yield f"{name}.head_dim must be even, got {indexer.head_dim}"
    if attention.mla or any(attention.windows) or attention.alibi_slopes or attention.bias_reach:
        yield f"{name} cannot be had with mla, windows, alibi_slopes or bias_reach"
    if indexer.is_by_best and indexer.num_heads != attention.num_kv_heads:
        yield f"{name}.num_heads must be those of keys, {attention.num_kv_heads}, got {indexer.num_heads}"


def _rotation_problems(spec: ModelSpec, layer: int) -> Iterator[str]:
    number = spec.layer_ropes[layer] if len(spec.layer_ropes) == spec.num_layers else 0
    if not 0 <= number < len(spec.ropes) or not spec.has_attention(layer):
        return
    attention = spec.attention_of(layer)
    rotated, pairs = attention.mla.rope_dim if attention.mla else attention.head_dim, len(spec.ropes[number].inv_freq)
    if 2 * pairs > rotated:
        yield f"layer {layer}: rope must have 1 to head_dim / 2 = {rotated / 2:g} inv_freq, got {pairs}"


def _shared_key_problems(spec: ModelSpec, layer: int, source: int) -> Iterator[str]:
    name = f"layer_keys[{layer}]"
    if source >= layer:
        yield f"{name} must be an earlier layer, got {source}"
    elif spec.keys_of(source) >= 0 or not (spec.has_attention(layer) and spec.has_attention(source)):
        yield f"{name} must be a layer that attends to keys of its own, got {source}"
    else:
        memory, other = (_memory_of(spec, it) for it in (layer, source))
        if memory != other:
            names = ("kind of attention", "window")
            differing = [f"{n} {a} and {b}" for n, a, b in zip(names, memory, other, strict=True) if a != b]
            yield f"{name} must be a layer with the same memory; layer {source} differs: {', '.join(differing)}"
    is_cross = spec.images and spec.images.cross_layers
    if spec.attention.mla or spec.attention_of(layer).has_output_gate or spec.head or is_cross:
        yield f"{name} is incompatible with attention.mla, attention.has_output_gate, head or images.cross_layers"


def _memory_of(spec: ModelSpec, layer: int) -> tuple[int, int]:
    """Return a layer's kind of attention, and its window; layers where both are alike can share keys."""
    kind = spec.layer_attentions[layer] if spec.layer_attentions else 0
    windows = spec.attention_of(layer).windows
    return kind, windows[layer] if windows else 0


def _mixer_problems(spec: ModelSpec) -> Iterator[str]:
    layers, recurrence = range(spec.num_layers), spec.recurrence
    if any(map(spec.has_recurrence, layers)) != (recurrence is not None):
        yield "recurrence must be there where layer_mixers has it, and only there"
    is_partial = "none" in spec.layer_mixers or not all(map(spec.has_mlp, layers))
    has_more = spec.layer_input or any(it.has_layer_scale for it in (spec.block, spec.recurrence_block) if it)
    if is_partial and (spec.block.is_parallel or spec.head or has_more):
        lacking = "block.is_parallel, block.has_layer_scale, layer_input or head"
        yield f"layers without a mixer or an MLP are incompatible with {lacking}"
    if spec.recurrence_block and (spec.recurrence_block.is_parallel or recurrence is None):
        yield "recurrence_block needs a recurrence, and cannot be parallel"
    if recurrence:
        yield from recurrence.problems()


def _image_problems(spec: ModelSpec, images: ImagesSpec) -> Iterator[str]:
    if images.deepstack_layers > spec.num_layers:
        yield f"images.deepstack_layers must be 0 to num_layers, got {images.deepstack_layers}"
    if images.whole_rows and spec.attention.alibi_slopes:
        yield "images.whole_rows is incompatible with attention.alibi_slopes"
    if images.has_own_weights:
        yield from _image_weight_problems(spec, images)
    layers, block = images.cross_layers, spec.block
    if not layers:
        return
    if list(layers) != sorted(layers) or layers[-1] >= spec.num_layers:
        yield f"images.cross_layers must be layers, ascending, got {layers}"
    if len(layers) > spec.num_layers:
        yield f"images.cross_layers must be at most num_layers, got {len(layers)}"
    is_supported = not block.is_parallel and not block.has_output_norms and block.residual_scale == 1
    if not is_supported or spec.moe or spec.attentions or spec.attention.mla or any(spec.attention.windows):
        lacking = "attention.mla, attention.windows, attentions, moe, or other blocks"
        yield f"images.cross_layers is incompatible with {lacking}"
    if images.deepstack_layers or images.whole_rows:
        yield "images.cross_layers is incompatible with images.deepstack_layers or images.whole_rows"


def _image_weight_problems(spec: ModelSpec, images: ImagesSpec) -> Iterator[str]:
    if spec.moe or spec.attention.mla or spec.recurrence or spec.attentions or images.cross_layers:
        yield "images' own weights exclude moe, attention.mla, attentions, recurrence or images.cross_layers"
    if images.low_rank and (images.own_attention or images.own_mlp):
        yield "images.low_rank is incompatible with images.own_attention or images.own_mlp"


def _rope_problems(rope: RopeSpec) -> Iterator[str]:
    if not rope.inv_freq:
        yield "rope must have 1 or more inv_freq, got 0"
    if rope.axes and (len(rope.axes) != len(rope.inv_freq) or rope.stretch):
        yield f"rope.axes must have {len(rope.inv_freq)} values from 0 to 2, without a stretch, got {rope.axes}"
    if rope.stretch and rope.stretch.kind == "long" and len(rope.stretch.inv_freq) != len(rope.inv_freq):
        yield f"rope.stretch.inv_freq must have {len(rope.inv_freq)} values, got {len(rope.stretch.inv_freq)}"


def _moe_problems(moe: MoeSpec, num_layers: int) -> Iterator[str]:
    router = moe.router
    for name in ("activations", "shared_activations"):
        if (count := len(getattr(moe, name))) not in {0, num_layers}:
            yield f"moe.{name} must have a value for each of {num_layers} layers, got {count}"
    if moe.num_experts * num_layers > LARGEST_EXPERT_COUNT:
        yield f"moe.num_experts must be at most {LARGEST_EXPERT_COUNT} in all layers, got {moe.num_experts} in each"
    if moe.num_experts % router.groups or router.top_groups > router.groups:
        yield f"moe.router.groups must divide the {moe.num_experts} experts and be >= top_groups {router.top_groups}"
    elif router.scales_input and moe.experts_per_token != 1:
        yield f"moe.router.scales_input needs moe.experts_per_token 1, got {moe.experts_per_token}"
    elif router.scales_input and moe.latent_size:
        yield f"moe.router.scales_input is incompatible with moe.latent_size, got {moe.latent_size}"
    elif moe.experts_per_token > moe.num_experts // router.groups * router.top_groups:
        yield f"moe.experts_per_token must be at most the experts to choose from, got {moe.experts_per_token}"
