"""Layers to write models with, each against what PyTorch or ``transformers`` computes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.nn import (
    ApplyRotaryEmb,
    Attention,
    GeluAndMul,
    LayerNorm,
    Llama3Parameters,
    RMSNorm,
    RopeType,
    SiluAndMul,
    YarnParameters,
    build_colwise_linear,
    build_fused_moe,
    build_merged_colwise_linear,
    build_qkv_proj,
    build_rotary_embedding,
    build_rotary_embedding_from_config,
)
from lmdeploy.pytorch.nn.attention import LayerCache
from lmdeploy.pytorch.nn.build_context import BuildContext, building
from lmdeploy.pytorch.recording import RecordingCache
from lmdeploy.pytorch.step_context import StepContext, get_step_ctx_manager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight
from tests.kernels.reference import rotate_part

DIM, LENGTH, BASE = 32, 64, 10000.0
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}
BUILT = {
    "default": {},
    "linear": {"emb_type": RopeType.LinearScaling, "scaling_factor": 3.0},
    "llama3": {"emb_type": RopeType.Llama3, "scaling_factor": 4.0, "llama3_params": Llama3Parameters(1.0, 4.0, 64)},
    "yarn": {"emb_type": RopeType.Yarn, "scaling_factor": 4.0, "yarn_params": YarnParameters()},
}


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# ---- norms and activations ----


def test_norms_are_pytorchs_and_add_the_residual_first(random: torch.Generator) -> None:
    x, residual = torch.randn(2, 3, 24, generator=random)
    weight, bias = torch.randn(2, 24, generator=random)
    layer_norm, rms_norm = LayerNorm(24, 1e-3), RMSNorm(24, 1e-3)
    for layer in (layer_norm, rms_norm):
        layer.weight.data.copy_(weight)
    layer_norm.bias.data.copy_(bias)
    for layer, expected in (
        (layer_norm, lambda t: functional.layer_norm(t, (24,), weight, bias, 1e-3)),
        (rms_norm, lambda t: t / (t.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight),
    ):
        assert layer(x) == pytest.approx(expected(x), abs=1e-5)
        normed, total = layer(x, residual)
        assert torch.equal(total, x + residual)
        assert normed == pytest.approx(expected(total), abs=1e-5)


def test_the_kernels_of_cpus_gate_and_rotate_as_pytorch_does(random: torch.Generator) -> None:
    x = torch.randn(2, 5, 2 * 37, generator=random)[:, 1:]
    query, key = (torch.randn(4, heads, DIM, generator=random) for heads in (4, 2))
    cos, sin = build_rotary_embedding(DIM, LENGTH, BASE)(query, torch.tensor([[0, 4, 50, 7]]))
    original = SiluAndMul()(x.clone())
    turned = [ApplyRotaryEmb(is_interleaved=way)(query, key, cos[0], sin[0], inplace=False) for way in (False, True)]
    with building(BuildContext(kernels=kernels())):
        gate, ways = SiluAndMul(), [ApplyRotaryEmb(is_interleaved=way) for way in (False, True)]
    assert gate(x) == pytest.approx(original, rel=1e-5, abs=1e-6)
    assert torch.equal(gate(x)[1, 2], gate(x[1, 2]))
    assert gate(x[:, :0]).shape == (2, 0, 37)
    for apply, expected in zip(ways, turned, strict=True):
        got = apply(query, key, cos[0], sin[0], inplace=False)
        for mine, reference in zip(got, expected, strict=True):
            assert mine == pytest.approx(reference, abs=1e-6)


def test_gated_activations_are_pytorchs(random: torch.Generator) -> None:
    x = torch.randn(3, 16, generator=random)
    gate, up = x.clone().chunk(2, -1)
    assert GeluAndMul()(x) == pytest.approx(functional.gelu(gate) * up)
    assert GeluAndMul("tanh")(x) == pytest.approx(functional.gelu(gate, approximate="tanh") * up)
    before = x.clone()
    assert SiluAndMul(inplace=False)(x) == pytest.approx(functional.silu(gate) * up)
    assert torch.equal(x, before)
    assert SiluAndMul()(x) == pytest.approx(functional.silu(gate) * up)
    with pytest.raises(ValueError, match="'none' or 'tanh', got 'sigmoid'"):
        GeluAndMul("sigmoid")


# ---- rotation ----


@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_are_those_of_transformers(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=4 * LENGTH if kind in ("llama3", "yarn") else LENGTH,
        rope_parameters={"rope_type": kind, "rope_theta": BASE} | SCALINGS[kind],
    )
    positions = torch.arange(0, 200, 7)[None]
    x = torch.zeros(1, 1, DIM)
    expected = LlamaRotaryEmbedding(config)(x, positions)
    for native in (
        build_rotary_embedding(DIM, LENGTH, BASE, **BUILT[kind]),
        build_rotary_embedding_from_config(config),
    ):
        for mine, reference in zip(native(x, positions), expected, strict=True):
            assert mine == pytest.approx(reference, abs=1e-4)


def test_other_scalings_are_refused_by_name() -> None:
    config = SimpleNamespace(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_scaling={"type": "longrope", "factor": 2},
    )
    with pytest.raises(UnsupportedModelError, match="rope_type 'longrope' is not supported"):
        build_rotary_embedding_from_config(config)


def test_a_long_sequence_stretches_its_own_angles_alone() -> None:
    rope = build_rotary_embedding(DIM, LENGTH, BASE, 2.0, emb_type=RopeType.DynamicNTKScaling)
    original = build_rotary_embedding(DIM, LENGTH, BASE)
    positions = torch.tensor([[10, 11, 99]])

    def angles(kv_seqlens: list[int]) -> torch.Tensor:
        step = StepContext.of_sequences(torch.zeros(3, dtype=torch.int64), [2, 1], None, kv_seqlens)
        with get_step_ctx_manager().context(step):
            return rope(torch.zeros(1), positions)[0]

    assert torch.equal(angles([12, 64]), original(torch.zeros(1), positions)[0])
    beyond = angles([12, 100])
    assert beyond[:, :2] == pytest.approx(original(torch.zeros(1), positions)[0][:, :2], abs=1e-6)
    base = BASE * (2 * 100 / LENGTH - 1) ** (DIM / (DIM - 2))  # Peng, bloc97: NTK by the length that is there
    assert beyond[:, 2] == pytest.approx(build_rotary_embedding(DIM, LENGTH, base)(None, positions)[0][:, 2], abs=1e-5)


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("pairs", [8, 16])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_heads_are_rotated_in_part_or_whole(
    is_interleaved: bool, pairs: int, dtype: torch.dtype, tolerance: float, random: torch.Generator
) -> None:
    query, key = (torch.randn(3, heads, DIM, generator=random).to(dtype) for heads in (4, 2))
    cos, sin = build_rotary_embedding(2 * pairs, LENGTH, BASE)(query, torch.tensor([[3, 4, 50]]))
    angle = torch.tensor([3.0, 4.0, 50.0])[:, None] * BASE ** -(torch.arange(pairs) / pairs)
    expected = [rotate_part(x, angle, is_interleaved) for x in (query, key)]
    before = query.clone()
    apply = ApplyRotaryEmb(is_interleaved=is_interleaved)
    got = apply(query, key, cos[0], sin[0], inplace=False)
    assert torch.equal(query, before)
    for mine, reference in zip(got, expected, strict=True):
        assert mine.double() == pytest.approx(reference, abs=tolerance)
    apply(query, key, cos[0], sin[0])
    assert query.double() == pytest.approx(expected[0], abs=tolerance)


# ---- attention ----


def test_alibi_lowers_scores_with_the_distance(random: torch.Generator) -> None:
    query, key, value = torch.randn(3, 5, 4, 8, generator=random)
    with building(BuildContext(kernels=kernels())):
        attention = Attention(4, 8, alibi=True)
    behind = torch.arange(5)[:, None] - torch.arange(5)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])  # Press et al., 2022, of four heads
    scores = torch.einsum("ihd,jhd->hij", query, key) * 8**-0.5 - slopes[:, None, None] * behind
    weights = scores.masked_fill(behind < 0, float("-inf")).softmax(-1)
    cache = LayerCache(RecordingCache(), 0)
    expected = torch.einsum("hij,jhd->ihd", weights, value)
    assert attention(query, key, value, cache, cache) == pytest.approx(expected, abs=1e-5)


# ---- weights ----


def test_shards_and_joined_tensors_load_into_the_same_places(random: torch.Generator) -> None:
    q, k, v = (torch.randn(count * 4, 8, generator=random) for count in (4, 2, 2))
    by_head = torch.cat([part.view(2, -1, 4, 8) for part in (q, k, v)], 1).flatten(0, 2)
    layers = [build_qkv_proj(8, 4, 2, 4) for _ in range(3)]
    for name, part in zip("qkv", (q, k, v), strict=True):
        load_weight(layers[0].weight, part, shard_id=name)
    load_weight(layers[1].weight, torch.cat([q, k, v]))
    for name, part in zip("qkv", layers[2].weight_spliter(by_head, layout="hgd"), strict=True):
        load_weight(layers[2].weight, part, shard_id=name)
    for layer in layers:
        assert torch.equal(layer.weight, torch.cat([q, k, v]))
    x = torch.randn(5, 8, generator=random)
    heads = layers[0].split_qkv(layers[0](x))
    for mine, weight in zip(heads, (q, k, v), strict=True):
        assert mine.flatten(1) == pytest.approx(x @ weight.T, abs=1e-5)

    named = build_merged_colwise_linear(8, [4, 6], bias=True, out_names=["first", "second"])
    load_weight(named.weight, q[:6], shard_id="second")
    load_weight(named.weight, k[:4], shard_id="first")
    load_weight(named.bias, torch.arange(10.0))
    assert torch.equal(named.weight, torch.cat([k[:4], q[:6]]))
    assert torch.equal(named.bias, torch.arange(10.0))


def test_a_parameter_without_a_loader_takes_a_tensor_of_its_shape_alone() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    load_weight(parameter, torch.ones(2, 3))
    assert parameter.sum() == 6
    with pytest.raises(ValueError, match=r"the checkpoint has \[3, 2\] where the model has \[2, 3\]"):
        load_weight(parameter, torch.ones(3, 2))


def test_what_cannot_be_built_is_refused_by_name() -> None:
    for config in ({"quant_method": "awq"}, SimpleNamespace(quant_method="awq")):
        assert build_colwise_linear(8, 8, bias=False, quant_config=config).out_features == 8  # codes come when loading
        assert build_fused_moe(8, 8, 2, 1, quant_config=config).top_k == 1
    with pytest.raises(UnsupportedModelError, match="runs on CPUs alone"):
        Attention(2, 8, alibi=True)
    with pytest.raises(ValueError, match="layout must be 'default' or 'hgd', got 'q'"):
        build_qkv_proj(8, 4, 2, 4).weight_spliter(torch.zeros(32, 8), layout="q")
