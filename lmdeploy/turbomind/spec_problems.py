"""What keeps a ModelSpec from describing a possible model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmdeploy.turbomind.spec import MlaSpec, ModelSpec, MoeSpec, RopeSpec

DTYPES = ("float32", "float16", "bfloat16")
NORMS = ("rms", "layer")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu")
HEADS = ("mtp", "eagle", "eagle3")
QK_NORMS = ("none", "head", "projection")
STRETCHES = ("dynamic", "qwen", "long")
ROUTER_SCORES = ("softmax", "sigmoid", "sparsemixer")
GROUP_SCORES = ("max", "top2")
# No model comes near; a config beyond it is damaged, and sizes could overflow.
LARGEST_SIZE = 1 << 27
LARGEST_COUNT = 1 << 12  # of layers, and of experts in one
LARGEST_EXPERT_COUNT = 1 << 17  # in all layers
_COUNTS = frozenset({"num_layers", "num_hidden_layers", "n_layers", "num_experts", "n_routed_experts"})
_SIZES = (
    "vocab_size", "hidden_size", "num_layers", "intermediate_size", "num_heads", "num_kv_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip


def is_size(value: object, largest: int = LARGEST_SIZE) -> bool:
    """Return whether ``value`` is a whole number >= 1 that a model can have as a size."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


def size_problems(sizes: Mapping[str, object]) -> list[str]:
    """Return a sentence for each named value that is no size, or no number of layers or experts."""
    problems = []
    for name, value in sizes.items():
        largest = LARGEST_COUNT if name.rpartition(" ")[2].rpartition(".")[2] in _COUNTS else LARGEST_SIZE
        if isinstance(value, int) and value > largest:
            problems.append(f"{name} must be at most {largest}, got {value!r}")
        elif not is_size(value):
            problems.append(f"{name} must be a whole number >= 1, got {value!r}")
    return problems


def problems_of(spec: "ModelSpec") -> list[str]:
    """Return everything that is wrong with a spec, one sentence a problem."""
    problems = size_problems({name: getattr(spec, name) for name in _SIZES})
    return problems or [*_scalars(spec), *_choices(spec), *_shapes(spec), *_parts(spec)]


def _scalars(spec: "ModelSpec") -> Iterator[str]:
    positive = {
        "norm.eps": spec.norm.eps,
        "attention.scale": spec.attention.scale,
        "block.residual_scale": spec.block.residual_scale,
        "output.scale": spec.output.scale,
        "embedding_scale": spec.embedding_scale,
    }
    yield from (f"{n} must be a finite number > 0, got {v}" for n, v in positive.items() if not 0 < v < math.inf)
    caps = {"attention.softcap": spec.attention.softcap, "output.softcap": spec.output.softcap}
    caps["attention.qkv_clip"] = spec.attention.qkv_clip
    caps["attention.logn_length"] = spec.attention.logn_length
    yield from (f"{n} must be a finite number >= 0, got {v}" for n, v in caps.items() if not 0 <= v < math.inf)
    if not math.isfinite(spec.norm.offset):
        yield f"norm.offset must be finite, got {spec.norm.offset}"


def _choice(name: str, value: str, choices: Sequence[str]) -> Iterator[str]:
    if value not in choices:
        yield f"{name} must be one of {', '.join(choices)}, got {value!r}"


def _choices(spec: "ModelSpec") -> Iterator[str]:
    yield from _choice("dtype", spec.dtype, DTYPES)
    yield from _choice("norm.kind", spec.norm.kind, NORMS)
    yield from _choice("mlp.activation", spec.mlp.activation, ACTIVATIONS)
    yield from _choice("attention.qk_norm", spec.attention.qk_norm, QK_NORMS)
    if spec.norm.bias and spec.norm.kind != "layer":
        yield "norm.bias needs norm.kind layer"
    if spec.mlp.activation == "clamped_swiglu" and not spec.mlp.is_gated:
        yield "mlp.activation clamped_swiglu needs mlp.is_gated"
    if spec.block.shares_norm and not spec.block.is_parallel:
        yield "block.shares_norm needs block.is_parallel"


def _shapes(spec: "ModelSpec") -> Iterator[str]:
    attention = spec.attention
    if spec.num_heads % spec.num_kv_heads:
        yield f"num_heads must be a multiple of num_kv_heads {spec.num_kv_heads}, got {spec.num_heads}"
    if spec.head_dim % 2:
        yield f"head_dim must be even, got {spec.head_dim}"
    if len(attention.windows) not in {0, spec.num_layers} or any(window < 0 for window in attention.windows):
        yield f"attention.windows must have a number >= 0 for each of {spec.num_layers} layers, got {attention.windows}"
    if len(attention.alibi_slopes) not in {0, spec.num_heads} or not all(map(math.isfinite, attention.alibi_slopes)):
        yield f"attention.alibi_slopes must have a finite number for each of {spec.num_heads} heads"
    known = range(-1, len(spec.ropes))
    if len(spec.layer_ropes) not in {0, spec.num_layers} or any(index not in known for index in spec.layer_ropes):
        yield f"layer_ropes must have a number below {len(spec.ropes)} for each of {spec.num_layers} layers"
    outside = [token for token in spec.eos_token_ids if not 0 <= token < spec.vocab_size]
    yield from (f"eos_token_ids must be in [0, {spec.vocab_size}), got {token}" for token in outside)


def _parts(spec: "ModelSpec") -> Iterator[str]:
    rotated = spec.attention.mla.rope_dim if spec.attention.mla else spec.head_dim
    for rope in spec.ropes:
        yield from _rope_problems(rope, rotated)
    if spec.attention.mla:
        yield from _mla_problems(spec.attention.mla)
    if spec.pictures and not 0 <= spec.pictures.deepstack_layers <= spec.num_layers:
        yield f"pictures.deepstack_layers must be 0 to num_layers, got {spec.pictures.deepstack_layers}"
    if spec.pictures and spec.pictures.whole_rows:
        yield from size_problems({"pictures.whole_rows": spec.pictures.whole_rows})
        if spec.attention.alibi_slopes:
            yield "pictures.whole_rows cannot be had with attention.alibi_slopes"
    if spec.pictures and spec.pictures.cross_layers:
        yield from _cross_layer_problems(spec, spec.pictures.cross_layers)
    if spec.head:
        yield from _choice("head.kind", spec.head.kind, HEADS)
    if spec.head and spec.head.kind != "eagle3" and spec.head.target_hidden_size != spec.hidden_size:
        yield f"hidden_size must be the model's {spec.head.target_hidden_size}, got {spec.hidden_size}"
    if spec.moe and not spec.mlp.is_gated:
        yield "moe needs mlp.is_gated"
    if spec.moe:
        yield from _moe_problems(spec.moe, spec.num_layers)


def _cross_layer_problems(spec: "ModelSpec", layers: tuple[int, ...]) -> Iterator[str]:
    if list(layers) != sorted(layers) or not all(0 <= layer < spec.num_layers for layer in layers):
        yield f"pictures.cross_layers must be layers, ascending, got {layers}"
    if len(layers) > spec.num_layers:
        yield f"pictures.cross_layers must be at most num_layers, got {len(layers)}"
    block, pictures = spec.block, spec.pictures
    is_plain = not block.is_parallel and not block.has_output_norms and block.residual_scale == 1
    if not is_plain or spec.moe or spec.attention.mla or any(spec.attention.windows):
        yield "pictures.cross_layers cannot be had with attention.mla, attention.windows, moe, or other blocks"
    if pictures and (pictures.deepstack_layers or pictures.whole_rows):
        yield "pictures.cross_layers cannot be had with pictures.deepstack_layers or pictures.whole_rows"


def _rope_problems(rope: "RopeSpec", head_dim: int) -> Iterator[str]:
    if not 2 <= 2 * len(rope.inv_freq) <= head_dim:
        yield f"rope must have 1 to head_dim / 2 = {head_dim / 2:g} inv_freq, got {len(rope.inv_freq)}"
    scalars = {"rope.theta": rope.theta, "rope.attention_scaling": rope.attention_scaling}
    yield from (f"{n} must be a finite number > 0, got {v}" for n, v in scalars.items() if not 0 < v < math.inf)
    stretched = rope.stretch.inv_freq if rope.stretch else ()
    if not all(0 < frequency < math.inf for frequency in (*rope.inv_freq, *stretched)):
        yield "rope.inv_freq must be finite and > 0"
    if rope.axes and (len(rope.axes) != len(rope.inv_freq) or not set(rope.axes) <= {0, 1, 2} or rope.stretch):
        yield f"rope.axes must have {len(rope.inv_freq)} values from 0 to 2, without a stretch, got {rope.axes}"
    if rope.stretch is None:
        return
    yield from _choice("rope.stretch.kind", rope.stretch.kind, STRETCHES)
    yield from size_problems({"rope.stretch.length": rope.stretch.length})
    if not 1 <= rope.stretch.factor < math.inf:
        yield f"rope.stretch.factor must be a finite number >= 1, got {rope.stretch.factor}"
    if rope.stretch.kind == "long" and len(stretched) != len(rope.inv_freq):
        yield f"rope.stretch.inv_freq must have {len(rope.inv_freq)} values, got {len(stretched)}"


def _mla_problems(mla: "MlaSpec") -> Iterator[str]:
    names = ("kv_rank", "nope_dim", "rope_dim", "value_dim", *(("q_rank",) if mla.q_rank else ()))
    yield from size_problems({f"attention.mla.{name}": getattr(mla, name) for name in names})
    if not 0 < mla.norm_eps < math.inf:
        yield f"attention.mla.norm_eps must be a finite number > 0, got {mla.norm_eps}"


def _moe_problems(moe: "MoeSpec", num_layers: int) -> Iterator[str]:
    router = moe.router
    names = ["num_experts", "experts_per_token", "intermediate_size"]
    names += ["shared_intermediate_size"] if moe.shared_intermediate_size else []
    sizes = {f"moe.{name}": getattr(moe, name) for name in names}
    sizes |= {f"moe.router.{name}": getattr(router, name) for name in ("groups", "top_groups")}
    if problems := size_problems(sizes):
        yield from problems
        return
    if moe.num_experts * num_layers > LARGEST_EXPERT_COUNT:
        yield f"moe.num_experts must be at most {LARGEST_EXPERT_COUNT} in all layers, got {moe.num_experts} in each"
    yield from _choice("moe.router.score", router.score, ROUTER_SCORES)
    yield from _choice("moe.router.group_score", router.group_score, GROUP_SCORES)
    if not 0 < router.scale < math.inf:
        yield f"moe.router.scale must be a finite number > 0, got {router.scale}"
    if not 0 <= router.jitter < math.inf:
        yield f"moe.router.jitter must be a finite number >= 0, got {router.jitter}"
    if moe.num_experts % router.groups or router.top_groups > router.groups:
        yield f"moe.router.groups must divide the {moe.num_experts} experts and be >= top_groups {router.top_groups}"
    elif moe.experts_per_token > moe.num_experts // router.groups * router.top_groups:
        yield f"moe.experts_per_token must be at most the experts to choose from, got {moe.experts_per_token}"
    if len(moe.layers) not in {0, num_layers}:
        yield f"moe.layers must have {num_layers} values, got {len(moe.layers)}"
