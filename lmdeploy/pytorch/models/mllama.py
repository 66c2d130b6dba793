"""The text part of Llama 3.2 Vision: Llama with layers between that look at images, which texts alone pass by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP, LlamaModel
from lmdeploy.pytorch.models.utils.decoder_config import head_dim_of
from lmdeploy.pytorch.nn import RMSNorm, build_colwise_linear, build_o_proj
from lmdeploy.pytorch.nn.attention import LayerCache
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.step_context import StepContextManager, get_step_ctx_manager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

_PREFIX = "language_model."  # of the text part's tensors, as published


class MllamaCrossAttention(nn.Module):
    """Attention of tokens to rows of images."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__()
        self._head_dim = head_dim_of(config)
        build_context().ranks.slice_of(config.num_key_value_heads, "the number of key and value heads")
        keys = config.num_key_value_heads * self._head_dim
        queries = config.num_attention_heads * self._head_dim
        given: dict[str, Any] = {"bias": False, "dtype": dtype, "device": device, "is_tp": True}
        self.q_proj = build_colwise_linear(config.hidden_size, queries, **given)
        self.k_proj = build_colwise_linear(config.hidden_size, keys, **given)
        self.v_proj = build_colwise_linear(config.hidden_size, keys, **given)
        self.o_proj = build_o_proj(queries, config.hidden_size, **given)
        self.q_norm = RMSNorm(self._head_dim, config.rms_norm_eps, dtype=dtype, device=device)
        self.k_norm = RMSNorm(self._head_dim, config.rms_norm_eps, dtype=dtype, device=device)

    def fill(self, rows: torch.Tensor, cache: LayerCache) -> None:
        """Write what rows of images ``[rows, hidden]`` are looked at by."""
        key, value = (linear(rows).unflatten(-1, (-1, self._head_dim)) for linear in (self.k_proj, self.v_proj))
        cache.fill(self.k_norm(key), value)

    def forward(self, rows: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Return ``[rows, hidden]`` for the rows of the step that look."""
        query = self.q_norm(self.q_proj(rows).unflatten(-1, (-1, self._head_dim)))
        return self.o_proj(cache.look(query, self._head_dim**-0.5).flatten(1))


class MllamaCrossLayer(nn.Module):
    """A layer that looks at images: attention to them and an MLP, each scaled by a gate."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.cross_attn = MllamaCrossAttention(config, dtype=dtype, device=device)
        self.mlp = LlamaMLP(config, dtype=dtype, device=device)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.cross_attn_attn_gate = nn.Parameter(torch.empty(1, dtype=dtype, device=device), requires_grad=False)
        self.cross_attn_mlp_gate = nn.Parameter(torch.empty(1, dtype=dtype, device=device), requires_grad=False)

    def forward(
        self, hidden_states: torch.Tensor, past_key_value: tuple[LayerCache, LayerCache], looking: torch.Tensor
    ) -> torch.Tensor:
        """Return the residual stream ``[1, tokens, hidden]``, in which the rows number ``looking`` have seen images."""
        rows = hidden_states[0, looking]
        seen = self.cross_attn(self.input_layernorm(rows), past_key_value[0])
        rows = rows + torch.tanh(self.cross_attn_attn_gate.float()) * seen
        thought = self.mlp(self.post_attention_layernorm(rows))
        hidden_states[0, looking] = rows + torch.tanh(self.cross_attn_mlp_gate.float()) * thought
        return hidden_states


class MllamaTextModel(LlamaModel):
    """Embedding, layers and the last norm."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__(config, LlamaDecoderLayer, dtype=dtype, device=device)
        for number in config.cross_attention_layers:
            self.layers[number] = MllamaCrossLayer(config, dtype=dtype, device=device)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        past_key_values: list[Any],
        attn_metadata: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states ``[1, tokens, hidden]`` after the last norm."""
        looking = get_step_ctx_manager().current_context().looking_rows
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cos, sin = self.rotary_emb(hidden_states, position_ids)
        rotation = (cos[0], sin[0])
        residual: torch.Tensor | None = None
        for layer, past_key_value in zip(self.layers, past_key_values, strict=True):
            if not isinstance(layer, MllamaCrossLayer):
                hidden_states, residual = layer(hidden_states, rotation, past_key_value, residual, attn_metadata)
            elif looking is not None:
                hidden_states = hidden_states if residual is None else hidden_states + residual
                hidden_states, residual = layer(hidden_states, past_key_value, looking), None
        return self.norm(hidden_states if residual is None else hidden_states + residual)


class MllamaForCausalLM(LlamaForCausalLM):
    """The text part of Llama 3.2 Vision, with its head."""

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if build_context().kernels is None:
            raise UnsupportedModelError("cross-attention to images runs on CPUs alone in the PyTorch engine")
        super().__init__(config, ctx_mgr, dtype=dtype, device=device)
        self.model = MllamaTextModel(config, dtype=dtype, device=device)

    def fill_images(self, rows: torch.Tensor, past_key_values: list[Any]) -> None:
        """Write keys and values of rows of images ``[rows, hidden]``, which the tokens of a step look at."""
        for layer, past_key_value in zip(self.model.layers, past_key_values, strict=True):
            if isinstance(layer, MllamaCrossLayer):
                layer.cross_attn.fill(rows, past_key_value[0])

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the tensors of a checkpoint; embeddings after the vocabulary are those of images, which steps bring."""
        super().load_weights((name.removeprefix(_PREFIX), tensor) for name, tensor in weights)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        if ".cross_attn." in name:  # whose projections are no part of others
            load_weight(parameters[name], tensor)
        elif name == "model.embed_tokens.weight":
            super().load_one(parameters, name, tensor[: self.config.vocab_size])
        else:
            super().load_one(parameters, name, tensor)
