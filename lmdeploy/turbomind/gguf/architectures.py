"""The architectures whose GGUF files are read: names of their tensors, and what is done to some of them.

How each was written: llama.cpp, ``convert_hf_to_gguf.py``. For architectures of Llama's kind it reorders the outputs of
queries and keys, so that neighbours turn together; Gemma's norms have their 1 added already.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.gguf import configs
from lmdeploy.turbomind.gguf.metadata import Metadata

_LAYOUT = Layout(
    embedding="token_embd",
    final_norm="output_norm",
    lm_head="output",
    layer="blk.{}.",
    attention_norm="attn_norm",
    attention_output_norm="post_attention_norm",
    mlp_norm="ffn_norm",
    mlp_output_norm="post_ffw_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    o="attn_output",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    experts=ExpertNames(
        router="ffn_gate_inp",
        gate="ffn_gate.{}",
        up="ffn_up.{}",
        down="ffn_down.{}",
        shared="ffn_{}_shexp",
        shared_gate="ffn_gate_inp_shexp",
    ).tensors,
)
_JOINED_QKV = dataclasses.replace(_LAYOUT, qkv="attn_qkv")


@dataclass(frozen=True)
class Architecture:
    """What the files of one architecture hold.

    Attributes
    ----------
    published
        Name of the architecture in a Hugging Face config.
    config
        From the metadata to the rest of that config.
    layout
        Names of the tensors.
    is_turned
        Rows of queries and keys are in pairs that turn together, ``2 i`` and ``2 i + 1`` of a head.
    has_whole_norms
        Weights of norms have the family's offset added.
    """

    published: str
    config: Callable[[Metadata], dict[str, Any]]
    layout: Layout = _LAYOUT
    is_turned: bool = False
    has_whole_norms: bool = False

    def layout_of(self, tensors: Mapping[str, object]) -> Layout:
        """Return the layout of a file with these tensors."""
        if "blk.0.attn_norm_2.weight" in tensors:  # Falcon 40B: one norm for attention, one for the MLP
            return dataclasses.replace(self.layout, attention_norm="attn_norm_2", mlp_norm="attn_norm")
        return self.layout


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", configs.llama, is_turned=True),
    "internlm2": Architecture("InternLM2ForCausalLM", configs.internlm2, is_turned=True),
    "qwen2": Architecture("Qwen2ForCausalLM", configs.qwen2),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", configs.qwen2moe),
    "qwen3": Architecture("Qwen3ForCausalLM", configs.qwen3),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", configs.qwen3moe),
    "gemma": Architecture("GemmaForCausalLM", configs.gemma, has_whole_norms=True),
    "gemma2": Architecture("Gemma2ForCausalLM", configs.gemma2, has_whole_norms=True),
    "gemma3": Architecture("Gemma3ForCausalLM", configs.gemma3, has_whole_norms=True),
    "phi3": Architecture("Phi3ForCausalLM", configs.phi3, dataclasses.replace(_JOINED_QKV, gate_up="ffn_up")),
    "falcon": Architecture("FalconForCausalLM", configs.falcon, _JOINED_QKV),
    "starcoder2": Architecture("Starcoder2ForCausalLM", configs.starcoder2),
    "olmo2": Architecture("Olmo2ForCausalLM", configs.olmo2),
    "exaone4": Architecture("Exaone4ForCausalLM", configs.exaone4),
    "seed_oss": Architecture(
        "SeedOssForCausalLM", configs.seed_oss, dataclasses.replace(_LAYOUT, mlp_norm="post_attention_norm")
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", configs.ernie4_5),
    "command-r": Architecture("CohereForCausalLM", configs.command_r),
    "phi2": Architecture("PhiForCausalLM", configs.phi2),
    "stablelm": Architecture("StableLmForCausalLM", configs.stablelm),
}
MIXTRAL = "llama with experts"  # GGUF names it as it does Llama
_ALL = {**ARCHITECTURES, MIXTRAL: Architecture("MixtralForCausalLM", configs.mixtral, is_turned=True)}


def architecture_name(metadata: Metadata) -> str:
    """Return the name of the architecture of a file for :func:`architecture_of`."""
    return MIXTRAL if metadata.architecture == "llama" and metadata.get("expert_count") else metadata.architecture


def architecture_of(name: str) -> Architecture:
    """Return an architecture by GGUF's name, or :data:`MIXTRAL`.

    Raises
    ------
    UnsupportedModelError
        If its files are not read.
    """
    if name not in _ALL:
        raise UnsupportedModelError(
            f"GGUF files of architecture {name or '(none named)'} are not read; those read are "
            f"{', '.join(ARCHITECTURES)}: take the model as safetensors (docs/reference/supported-models.md)"
        )
    return _ALL[name]
