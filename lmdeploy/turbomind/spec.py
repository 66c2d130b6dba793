"""ModelSpec: everything the C++ decoder has to know about a model besides its weights.

The JSON form is ``spec.json`` of an engine directory (docs/interfaces.md).
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Self

FORMAT = 1
DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = ("silu",)
_SIZES = (
    "vocab_size", "hidden_size", "num_layers", "intermediate_size", "num_heads", "num_kv_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class NormSpec:
    """RMSNorm: ``x / sqrt(mean(x^2) + eps) * weight``."""

    eps: float


@dataclass(frozen=True)
class MlpSpec:
    """Gated MLP: ``down(activation(gate(x)) * up(x))``."""

    activation: str


@dataclass(frozen=True)
class AttentionSpec:
    """Which attention projections have a bias, and the factor of q·k."""

    qkv_bias: bool
    o_bias: bool
    scale: float


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding with every static scaling already applied.

    Parameters
    ----------
    inv_freq
        ``[head_dim / 2]`` radians a position, float32 values.
    attention_scaling
        Factor of cos and sin (YaRN), 1.0 otherwise.
    """

    inv_freq: tuple[float, ...]
    attention_scaling: float


@dataclass(frozen=True)
class ModelSpec:
    """One parametric decoder. Constructing one that makes no sense raises ``ValueError`` naming every reason."""

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
    mlp: MlpSpec
    attention: AttentionSpec
    rope: RopeSpec
    max_position_embeddings: int
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _problems(self) -> list[str]:
        values = {name: getattr(self, name) for name in _SIZES}
        problems = [f"{n} must be a whole number >= 1, got {v!r}" for n, v in values.items() if not is_size(v)]
        if problems:
            return problems
        if self.num_heads % self.num_kv_heads:
            problems.append(f"num_heads must be a multiple of num_kv_heads {self.num_kv_heads}, got {self.num_heads}")
        if self.head_dim % 2:
            problems.append(f"head_dim must be even, got {self.head_dim}")
        if len(self.rope.inv_freq) * 2 != self.head_dim:
            problems.append(
                f"rope must have head_dim / 2 = {self.head_dim / 2:g} inv_freq, got {len(self.rope.inv_freq)}"
            )
        scalars = {"norm.eps": self.norm.eps, "attention.scale": self.attention.scale}
        scalars["rope.attention_scaling"] = self.rope.attention_scaling
        problems += [f"{n} must be a finite number > 0, got {v}" for n, v in scalars.items() if not 0 < v < math.inf]
        if not all(math.isfinite(f) for f in self.rope.inv_freq):
            problems.append("rope.inv_freq must be finite")
        if self.dtype not in DTYPES:
            problems.append(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.mlp.activation not in ACTIVATIONS:
            problems.append(f"mlp.activation must be one of {', '.join(ACTIVATIONS)}, got {self.mlp.activation!r}")
        problems += [
            f"eos_token_ids must be in [0, {self.vocab_size}), got {token}"
            for token in self.eos_token_ids
            if not 0 <= token < self.vocab_size
        ]
        return problems

    def to_json(self) -> str:
        """Return the text of ``spec.json``."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the spec in the text of a ``spec.json``.

        Raises
        ------
        ValueError
            If the text is no JSON, of another format, lacks a field, or describes no possible model.
        """
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise ValueError(f"not a spec.json of format {FORMAT}")
        try:
            return cls(
                norm=NormSpec(**fields.pop("norm")),
                mlp=MlpSpec(**fields.pop("mlp")),
                attention=AttentionSpec(**fields.pop("attention")),
                rope=_rope_from(fields.pop("rope")),
                eos_token_ids=tuple(fields.pop("eos_token_ids")),
                **fields,
            )
        except KeyError as error:
            raise ValueError(f"spec.json lacks {error}") from error
        except TypeError as error:
            raise ValueError(f"spec.json: {error}") from error


def is_size(value: object) -> bool:
    """Return whether ``value`` is a whole number >= 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _rope_from(fields: dict[str, Any]) -> RopeSpec:
    return RopeSpec(inv_freq=tuple(fields["inv_freq"]), attention_scaling=fields["attention_scaling"])
