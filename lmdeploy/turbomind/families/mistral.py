"""Mistral: Llama's tensors, and in its first versions a sliding window in every layer."""

from lmdeploy.turbomind.families.common import Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout

FAMILY = Family(("MistralForCausalLM", "MinistralForCausalLM"), decoder_spec, Layout().tensors)
