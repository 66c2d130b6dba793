"""Layers for model classes: each rank builds its shard; CPUs run the engine's operators, GPUs Triton kernels."""

from lmdeploy.pytorch.nn.activation import GeluAndMul, SiluAndMul
from lmdeploy.pytorch.nn.attention import Attention
from lmdeploy.pytorch.nn.embedding import Embedding, build_embedding
from lmdeploy.pytorch.nn.linear import (
    build_colwise_linear,
    build_down_linear,
    build_gateup_linear,
    build_linear,
    build_merged_colwise_linear,
    build_o_proj,
    build_qkv_proj,
    build_rowwise_linear,
)
from lmdeploy.pytorch.nn.moe import FusedMoE, SoftmaxTopK, build_fused_moe
from lmdeploy.pytorch.nn.norm import LayerNorm, RMSNorm
from lmdeploy.pytorch.nn.rotary_embedding import (
    ApplyRotaryEmb,
    Llama3Parameters,
    RopeType,
    YarnParameters,
    build_rotary_embedding,
    build_rotary_embedding_from_config,
)

__all__ = [
    "ApplyRotaryEmb",
    "Attention",
    "Embedding",
    "FusedMoE",
    "GeluAndMul",
    "LayerNorm",
    "Llama3Parameters",
    "RMSNorm",
    "RopeType",
    "SiluAndMul",
    "SoftmaxTopK",
    "YarnParameters",
    "build_colwise_linear",
    "build_down_linear",
    "build_embedding",
    "build_fused_moe",
    "build_gateup_linear",
    "build_linear",
    "build_merged_colwise_linear",
    "build_o_proj",
    "build_qkv_proj",
    "build_rotary_embedding",
    "build_rotary_embedding_from_config",
    "build_rowwise_linear",
]
