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
    BlockSpec,
    CompressedAttentionSpec,
    EncoderSpec,
    HeadSpec,
    HyperConnectionsSpec,
    ImagesSpec,
    LayerInputSpec,
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
    """Yield how sizes that a checkpoint's files give contradict each other.

    Features that do not go together the C++ reader refuses (``backend_cpp/model/spec/model_spec.cc``).
    """
    if wrong := [layer for layer, kind in enumerate(spec.layer_attentions) if kind > len(spec.attentions)]:
        kind = spec.layer_attentions[wrong[0]]
        yield f"layer_attentions[{wrong[0]}] must be at most {len(spec.attentions)}, got {kind}"
        return
    found: set[int] = set()
    for layer in filter(spec.has_attention, range(spec.num_layers)):
        kind = spec.layer_attentions[layer] if spec.layer_attentions else 0
        if kind not in found:
            yield from _attention_problems(spec.attention_of(layer), f"layer {layer}: ")
        found.add(kind)
        yield from _rotation_problems(spec, layer)
    if spec.mlp.sizes and len(spec.mlp.sizes) != spec.num_layers:
        yield f"mlp.sizes must have a value for each of {spec.num_layers} layers, got {len(spec.mlp.sizes)}"
    outside = [token for token in spec.eos_token_ids if not 0 <= token < spec.vocab_size]
    yield from (f"eos_token_ids must be in [0, {spec.vocab_size}), got {token}" for token in outside)
    if spec.recurrence:
        yield from spec.recurrence.problems()
    if spec.moe:
        yield from _moe_problems(spec.moe, spec.num_layers)


def _attention_problems(attention: AttentionSpec, where: str) -> Iterator[str]:
    if attention.num_heads % attention.num_kv_heads:
        yield f"{where}num_heads must be a multiple of num_kv_heads {attention.num_kv_heads}, got {attention.num_heads}"
    if attention.head_dim % 2:
        yield f"{where}head_dim must be even, got {attention.head_dim}"


def _rotation_problems(spec: ModelSpec, layer: int) -> Iterator[str]:
    number = spec.layer_ropes[layer] if len(spec.layer_ropes) == spec.num_layers else 0
    if not 0 <= number < len(spec.ropes):
        return
    attention = spec.attention_of(layer)
    rotated, pairs = attention.mla.rope_dim if attention.mla else attention.head_dim, len(spec.ropes[number].inv_freq)
    if 2 * pairs > rotated:
        yield f"layer {layer}: rope must have 1 to head_dim / 2 = {rotated / 2:g} inv_freq, got {pairs}"


def _moe_problems(moe: MoeSpec, num_layers: int) -> Iterator[str]:
    router = moe.router
    if moe.num_experts * num_layers > LARGEST_EXPERT_COUNT:
        yield f"moe.num_experts must be at most {LARGEST_EXPERT_COUNT} in all layers, got {moe.num_experts} in each"
    if moe.num_experts % router.groups or router.top_groups > router.groups:
        yield f"moe.router.groups must divide the {moe.num_experts} experts and be >= top_groups {router.top_groups}"
    elif moe.experts_per_token > moe.num_experts // router.groups * router.top_groups:
        yield f"moe.experts_per_token must be at most the experts to choose from, got {moe.experts_per_token}"
