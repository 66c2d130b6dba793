"""Qwen3.5: gated delta networks, and gated attention in every fourth layer, as in Qwen3-Next."""

from lmdeploy.turbomind.families.common import Family
from lmdeploy.turbomind.families.gated_delta import divided_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen3_next import dense_spec

LAYOUT = Layout(recurrence=divided_tensors)
FAMILY = Family(("Qwen3_5ForCausalLM",), dense_spec, LAYOUT.tensors)
