"""ModelSpec: everything the C++ decoder has to know about a model besides its weights.

The JSON form is ``spec.json`` of an engine directory (docs/interfaces.md). Each feature of a decoder is one field here
and one place in the decoder; a field left at its default is absent from the model.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.json_dataclass import from_fields
from lmdeploy.turbomind.spec_problems import problems_of

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = 2


@dataclass(frozen=True)
class NormSpec:
    """Every norm of the model.

    Parameters
    ----------
    eps
        Added to the mean square (``rms``) or variance (``layer``).
    kind
        ``rms``: ``x / sqrt(mean(x^2) + eps)``; ``layer``: the same after the mean is taken off.
    offset
        Added to every weight (Gemma: 1).
    bias
        Whether norms have a bias. Norms of queries and keys never do.
    """

    eps: float
    kind: str = "rms"
    offset: float = 0.0
    bias: bool = False


@dataclass(frozen=True)
class BlockSpec:
    """How attention and MLP of a layer are joined to the residual stream.

    Parameters
    ----------
    is_parallel
        Both read the layer's input; otherwise the MLP reads what attention has added to it.
    shares_norm
        One input norm serves both. Only with ``is_parallel``.
    has_output_norms
        What attention and MLP give goes through a norm of its own before it is added.
    residual_scale
        Factor of what attention and MLP add.
    """

    is_parallel: bool = False
    shares_norm: bool = False
    has_output_norms: bool = False
    residual_scale: float = 1.0


@dataclass(frozen=True)
class MlpSpec:
    """Gated: ``down(activation(gate(x)) * up(x))``; plain: ``down(activation(up(x)))``.

    Parameters
    ----------
    activation
        ``silu``, ``gelu`` (by the error function), ``gelu_tanh``, ``relu``, ``relu2`` (squared), or, gated only,
        ``clamped_swiglu``: ``(up + 1) gate sigmoid(1.702 gate)`` with gate at most 7 and up in [-7, 7] (GPT-OSS).
    is_gated
        Whether there is a gate.
    bias
        Whether the projections have biases.
    """

    activation: str = "silu"
    is_gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class RouterSpec:
    """How a mixture of experts chooses.

    Parameters
    ----------
    score
        ``softmax`` over all experts, ``sigmoid`` of each, or ``sparsemixer`` (Phi-3.5-MoE).
    normalizes
        Whether the chosen scores are divided by their sum.
    scale
        Factor of the chosen scores.
    groups, top_groups
        Experts are in ``groups`` equal groups, and only those of the best ``top_groups`` are chosen from.
    group_score
        A group's worth: ``max`` of its scores, or the sum of its two best, ``top2``.
    has_correction
        Whether a learned number is added to each score for the choice alone.
    bias
        Whether the router's linear layer has a bias.
    jitter
        Of ``sparsemixer``: scores further than so much (relative) below the best are not softened.
    """

    score: str = "softmax"
    normalizes: bool = False
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    has_correction: bool = False
    bias: bool = False
    jitter: float = 0.0


@dataclass(frozen=True)
class MoeSpec:
    """Layers whose MLP is a mixture of experts, each an MLP as ``MlpSpec`` says.

    Parameters
    ----------
    num_experts, experts_per_token
        How many there are, and how many answer for one token.
    intermediate_size
        Of one expert.
    router
        How they are chosen.
    layers
        For each layer whether it has experts; empty: all have.
    shared_intermediate_size
        Of the expert that answers for every token; 0: none.
    has_shared_gate
        Whether its answer is multiplied by the sigmoid of a linear layer with one output.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    router: RouterSpec = RouterSpec()
    layers: tuple[bool, ...] = ()
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2): keys and values come out of one small vector a token.

    Parameters
    ----------
    kv_rank
        Size of that vector.
    q_rank
        Size of the vector queries come out of; 0: they come from the hidden state.
    nope_dim, rope_dim
        Parts of a query and key head without and with rotation; the rotated part of the key is one for all heads.
    value_dim
        Size of a value head.
    norm_eps
        Of the norms of the two vectors.
    """

    kv_rank: int
    q_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    norm_eps: float


@dataclass(frozen=True)
class AttentionSpec:
    """What attention does beside ``softmax(scale q k) v``.

    Parameters
    ----------
    scale
        Factor of q·k.
    qkv_bias, o_bias
        Which projections have a bias.
    qk_norm
        Norm of queries and keys before rotation: ``none``, ``head`` (each head, one weight for all),
        ``projection`` (all heads together).
    qkv_clip
        Queries, keys and values are kept in [-qkv_clip, qkv_clip]; 0: they stay.
    softcap
        Scores become ``softcap tanh(score / softcap)``; 0: they stay.
    windows
        For each layer, how many of the last positions a token sees, itself included; 0: all. Empty: all, everywhere.
    alibi_slopes
        For each head the amount taken off a score for each position of distance; empty: none.
    has_sinks
        Whether each head has a learned logit that takes its share of the softmax and gives nothing.
    logn_length
        From this position on, queries are multiplied by log(position + 1) / log(logn_length); 0: never.
    mla
        Multi-head latent attention instead of plain key and value heads.
    """

    scale: float
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: str = "none"
    qkv_clip: float = 0.0
    softcap: float = 0.0
    windows: tuple[int, ...] = ()
    alibi_slopes: tuple[float, ...] = ()
    has_sinks: bool = False
    logn_length: int = 0
    mla: MlaSpec | None = None


@dataclass(frozen=True)
class StretchSpec:
    """Frequencies that depend on the length of a sequence's prompt, beyond ``length``.

    Parameters
    ----------
    kind
        ``dynamic``: theta grows with the prompt (NTK); ``qwen``: it grows in powers of two (Qwen 1); ``long``: other
        frequencies, ``inv_freq``, are used (longrope).
    length
        Longest prompt that is not stretched.
    factor
        Of ``dynamic``.
    inv_freq
        Of ``long``.
    """

    kind: str
    length: int
    factor: float = 1.0
    inv_freq: tuple[float, ...] = ()


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of the first ``2 len(inv_freq)`` dimensions of a head, every static scaling already applied.

    Parameters
    ----------
    theta
        Base of the frequencies.
    inv_freq
        Radians a position of each pair, float32 values.
    attention_scaling
        Factor of cos and sin (YaRN, longrope).
    is_interleaved
        Pairs are neighbours, 2 i and 2 i + 1; otherwise i and i + len(inv_freq).
    axes
        Which of a position's three numbers (frame, row, column) turns each pair (M-RoPE; Wang et al., 2024,
        arXiv 2409.12191); empty: positions have one number.
    stretch
        What changes with the prompt's length.
    """

    theta: float
    inv_freq: tuple[float, ...]
    attention_scaling: float = 1.0
    is_interleaved: bool = False
    stretch: StretchSpec | None = None
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class PicturesSpec:
    """A model that sees: rows that a request brings may take the place of token embeddings, unscaled.

    Parameters
    ----------
    deepstack_layers
        Behind each of so many first layers, further numbers of a picture's rows are added to the residual stream
        (DeepStack; Meng et al., 2024, arXiv 2406.04334): a row is ``(1 + deepstack_layers) hidden_size`` wide.
    whole_rows
        Tokens of a picture, where these see all of it; 0: they see what is before them, as those of text do.
    cross_layers
        In front of which layers stand those that look at pictures by gated cross-attention, with a gated MLP (Alayrac
        et al., 2022, arXiv 2204.14198; Llama 3.2 Vision), ascending; ``num_layers`` does not count them. A picture has
        one token then. Empty: pictures stand among the tokens.
    """

    deepstack_layers: int = 0
    whole_rows: int = 0
    cross_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class OutputSpec:
    """From the last norm to logits: ``softcap tanh(scale (x W + b) / softcap)``.

    Parameters
    ----------
    scale
        Factor of the logits.
    softcap
        Bound of the logits; 0: none.
    bias
        Whether the output layer has one.
    normalizes_weight
        Whether each row of W is divided by its length first (Baichuan2).
    """

    scale: float = 1.0
    softcap: float = 0.0
    bias: bool = False
    normalizes_weight: bool = False


@dataclass(frozen=True)
class HeadSpec:
    """Layers that guess for another model, out of its hidden states (``backend_cpp/model/head/head_input.h``).

    Parameters
    ----------
    kind
        ``mtp`` (DeepSeek-V3), ``eagle`` or ``eagle3``.
    target_hidden_size
        Of the model.
    target_layers
        In front of which of the model's layers hidden states are taken, joined; empty: behind its last norm.
    bias
        Whether the linear layer that joins hidden states and embeddings has one.
    tokens
        Those it guesses among, in the order of its logits; empty: the whole vocabulary.
    """

    kind: str
    target_hidden_size: int
    target_layers: tuple[int, ...] = ()
    bias: bool = False
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """One parametric decoder. Constructing one that makes no sense raises ``ValueError`` naming every reason.

    Parameters
    ----------
    ropes, layer_ropes
        The rotary embeddings, and for each layer which of them it uses, -1: none. Empty: the first, if there is one.
    embedding_scale
        Factor of the token embeddings.
    pictures
        How the model sees; None: it reads text only.
    head
        Whose head it is; None: it is a model.
    """

    architecture: str
    model_name: str
    dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: NormSpec
    attention: AttentionSpec
    max_position_embeddings: int
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    block: BlockSpec = BlockSpec()
    mlp: MlpSpec = MlpSpec()
    moe: MoeSpec | None = None
    ropes: tuple[RopeSpec, ...] = ()
    layer_ropes: tuple[int, ...] = ()
    output: OutputSpec = OutputSpec()
    embedding_scale: float = 1.0
    pictures: PicturesSpec | None = None
    head: HeadSpec | None = None

    def __post_init__(self) -> None:
        problems = problems_of(self)
        if problems:
            raise ValueError("; ".join(problems))

    def to_json(self) -> str:
        """Return the text of ``spec.json``."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Self":
        """Return the spec in the text of a ``spec.json``.

        Raises
        ------
        ValueError
            If the text is no JSON, of another format, lacks a field, or describes no possible model.
        """
        fields: Any = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise ValueError(f"not a spec.json of format {FORMAT}")
        try:
            return from_fields(cls, fields)
        except TypeError as error:
            raise ValueError(f"spec.json: {error}") from error
