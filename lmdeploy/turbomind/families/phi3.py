"""Phi-3, Phi-3.5, Phi-4: one matrix for q, k, v and one for gate and up; longrope; a sliding window in some."""

from lmdeploy.turbomind.families.common import Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout

LAYOUT = Layout(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
FAMILY = Family(("Phi3ForCausalLM",), decoder_spec, LAYOUT.tensors)
