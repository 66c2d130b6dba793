"""Tensor names of recurrent layers in GGUF files (``convert_hf_to_gguf.py``: ``conversion/qwen.py``, ``mamba.py``).

``ssm_a`` is -exp(A_log). Of Qwen3.5, llama.cpp wants the value heads that share a key head apart: with K
key heads and R value heads for each, its value head ``r K + k`` is the checkpoint's ``k R + r``. That holds for rows,
for channels of the convolution, for numbers of a head, and for the inputs of the last matrix.
"""

from collections.abc import Mapping

from lmdeploy.turbomind.families import bailing_hybrid, kimi_linear, lfm2, mamba, minimax
from lmdeploy.turbomind.families.gated_delta import recurrence_of
from lmdeploy.turbomind.manifest import (
    AddProduct,
    Constant,
    Expression,
    Inputs,
    Load,
    LogNegative,
    concat,
    permute,
    renamed,
    reshape,
    rows_of,
)
from lmdeploy.turbomind.spec import ModelSpec

# GGUF's names by those of checkpoints.
_MAMBA = {
    "in_proj.weight": "ssm_in.weight",
    "in_proj.bias": "ssm_in.bias",
    "out_proj.weight": "ssm_out.weight",
    "out_proj.bias": "ssm_out.bias",
    "conv1d.weight": "ssm_conv1d.weight",
    "conv1d.bias": "ssm_conv1d.bias",
    "norm.weight": "ssm_norm.weight",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
}
_SCAN = _MAMBA | {
    "x_proj.weight": "ssm_x.weight",
    "dt_proj.weight": "ssm_dt.weight",
    "dt_proj.bias": "ssm_dt.bias",
    "dt_layernorm.weight": "ssm_dt_norm.weight",
    "b_layernorm.weight": "ssm_b_norm.weight",
    "c_layernorm.weight": "ssm_c_norm.weight",
}
_KIMI = {
    "q_proj.weight": "attn_q.weight",
    "k_proj.weight": "attn_k.weight",
    "v_proj.weight": "attn_v.weight",
    "o_proj.weight": "attn_output.weight",
    "q_conv1d.weight": "ssm_conv1d_q.weight",
    "k_conv1d.weight": "ssm_conv1d_k.weight",
    "v_conv1d.weight": "ssm_conv1d_v.weight",
    "b_proj.weight": "ssm_beta.weight",
    "f_a_proj.weight": "ssm_f_a.weight",
    "f_b_proj.weight": "ssm_f_b.weight",
    "g_a_proj.weight": "ssm_g_a.weight",
    "f_proj.weight": "ssm_f_a.weight",
    "g_proj.weight": "ssm_g_a.weight",
    "g_b_proj.weight": "ssm_g_b.weight",
    "A_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "o_norm.weight": "ssm_norm.weight",
}
_MINIMAX = {
    "qkv_proj.weight": "attn_qkv.weight",
    "output_gate.weight": "attn_gate.weight",
    "norm.weight": "attn_norm_2.weight",
    "out_proj.weight": "attn_output.weight",
}


def gated_delta_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer of Qwen3.5."""
    rnn, hidden = recurrence_of(spec), spec.hidden_size
    values = rnn.num_heads * rnn.value_dim
    gates = concat(
        *(_grouped(spec, Load(f"{prefix}ssm_{name}.weight", (rnn.num_heads, hidden)), 1) for name in ("alpha", "beta"))
    )
    group = rnn.num_heads // rnn.num_key_heads
    order = tuple(r * rnn.num_key_heads + k for k in range(rnn.num_key_heads) for r in range(group))
    out = Load(f"{prefix}ssm_out.weight", (hidden, values))
    return {
        "recurrence.in.weight": concat(
            _channels(spec, Load(f"{prefix}attn_qkv.weight", (_channel_count(spec), hidden))),
            _grouped(spec, Load(f"{prefix}attn_gate.weight", (values, hidden)), rnn.value_dim),
        ),
        "recurrence.gates.weight": gates,
        "recurrence.conv": _channels(spec, Load(f"{prefix}ssm_conv1d.weight", (_channel_count(spec), rnn.conv_kernel))),
        "recurrence.a_log": LogNegative((_grouped(spec, Load(f"{prefix}ssm_a", (rnn.num_heads,)), 1),)),
        "recurrence.dt_bias": _grouped(spec, Load(f"{prefix}ssm_dt.bias", (rnn.num_heads,)), 1),
        "recurrence.norm.weight": Load(f"{prefix}ssm_norm.weight", (rnn.value_dim,)),
        "recurrence.out.weight": out if group == 1 else Inputs((out,), rnn.value_dim, order),
    }


def grouped_delta_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer of Qwen3-Next, whose value heads are in the checkpoint's order."""
    rnn, hidden = recurrence_of(spec), spec.hidden_size
    values, group = rnn.num_heads * rnn.value_dim, rnn.num_heads // rnn.num_key_heads
    gates = Load(f"{prefix}ssm_ba.weight", (2 * rnn.num_heads, hidden))
    by_key = reshape(gates, rnn.num_key_heads, 2 * group, hidden)  # for each key head: beta, alpha
    betas, alphas = (
        reshape(rows_of(by_key, begin, begin + group, dim=1), rnn.num_heads, hidden) for begin in (0, group)
    )
    return {
        "recurrence.in.weight": concat(
            Load(f"{prefix}attn_qkv.weight", (_channel_count(spec), hidden)),
            Load(f"{prefix}attn_gate.weight", (values, hidden)),
        ),
        "recurrence.gates.weight": concat(alphas, betas),
        "recurrence.conv": Load(f"{prefix}ssm_conv1d.weight", (_channel_count(spec), rnn.conv_kernel)),
        "recurrence.a_log": LogNegative((Load(f"{prefix}ssm_a", (rnn.num_heads,)),)),
        "recurrence.dt_bias": Load(f"{prefix}ssm_dt.bias", (rnn.num_heads,)),
        "recurrence.norm.weight": Load(f"{prefix}ssm_norm.weight", (rnn.value_dim,)),
        "recurrence.out.weight": Load(f"{prefix}ssm_out.weight", (hidden, values)),
    }


def mamba_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer of Mamba-2."""
    engine, rnn = _stored(mamba.mamba_tensors(spec, prefix), prefix, _MAMBA), recurrence_of(spec)
    values, groups = rnn.num_heads * rnn.value_dim, rnn.norm_groups
    if (norm := "recurrence.norm.weight") in engine:
        engine[norm] = reshape(Load(f"{prefix}ssm_norm.weight", (groups, values // groups)), values)
    return engine | {"recurrence.a_log": LogNegative((engine["recurrence.a_log"],))}


def scan_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer of Mamba-1."""
    engine = _stored(mamba.scan_tensors(spec, prefix), prefix, _SCAN)
    return engine | {"recurrence.a_log": LogNegative((engine["recurrence.a_log"],))}


def kimi_delta_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of Kimi delta attention."""
    engine = _stored(kimi_linear.recurrence(spec, prefix), prefix, _KIMI)
    return engine | {"recurrence.a_log": LogNegative((engine["recurrence.a_log"],))}


def ling_delta_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the same of Ling 3.0, whose ``ssm_a`` is exp(A_log)."""
    engine, heads = _stored(bailing_hybrid.recurrence(spec, prefix), prefix, _KIMI), (recurrence_of(spec).num_heads, 1)
    negative = AddProduct((Constant(heads, 0.0), Load(f"{prefix}ssm_a", heads), Constant((1, 1), -1.0)))
    return engine | {"recurrence.a_log": LogNegative((reshape(negative, heads[0]),))}


def minimax_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the recurrent layers of MiniMax-Text-01."""
    return _stored(minimax.recurrence(spec, prefix), prefix, _MINIMAX)


def _stored(tensors: Mapping[str, Expression], prefix: str, names: Mapping[str, str]) -> dict[str, Expression]:
    """Return a family's tensors over GGUF's names, given by those of the checkpoint within a layer's attention."""

    def stored(name: str) -> str:
        return prefix + names[name.removeprefix(prefix).removeprefix("self_attn.").removeprefix("attention.")]

    return {name: renamed(whole, stored) for name, whole in tensors.items()}


def convolution_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a short convolution (LFM2)."""

    def stored(name: str) -> str:
        return f"{prefix}shortconv.{name.removeprefix(prefix).removeprefix('conv.')}"

    return {name: renamed(whole, stored) for name, whole in lfm2.convolution_tensors(spec, prefix).items()}


def _channel_count(spec: ModelSpec) -> int:
    rnn = recurrence_of(spec)
    return 2 * rnn.num_key_heads * rnn.key_dim + rnn.num_heads * rnn.value_dim


def _channels(spec: ModelSpec, whole: Load) -> Expression:
    """Return rows of queries, keys and values with the values in the checkpoint's order."""
    rnn = recurrence_of(spec)
    keys = 2 * rnn.num_key_heads * rnn.key_dim
    values = rows_of(whole, keys, whole.shape[0])
    return concat(rows_of(whole, 0, keys), _grouped(spec, values, rnn.value_dim))


def _grouped(spec: ModelSpec, rows: Expression, size: int) -> Expression:
    """Return ``size`` rows for each value head in the checkpoint's order."""
    rnn = recurrence_of(spec)
    group = rnn.num_heads // rnn.num_key_heads
    if group == 1:
        return rows
    inputs = rows.shape[1:]
    by_head = permute(reshape(rows, group, rnn.num_key_heads, size, *inputs), 1, 0, *range(2, 3 + len(inputs)))
    return reshape(by_head, *rows.shape)
