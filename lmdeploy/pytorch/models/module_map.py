"""Model class of each architecture name of config.json."""

from typing import Any

LMDEPLOY_PYTORCH_MODEL_PATH = "lmdeploy.pytorch.models"

# Architecture to class, or to its full name. Other architectures run on modules of `transformers` or on TurboMind.
MODULE_MAP: dict[str, Any] = {
    "LlamaForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.llama.LlamaForCausalLM",
    "MistralForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.llama.LlamaForCausalLM",
    "Qwen2ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen2.Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen2.Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3.Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3.Qwen3MoeForCausalLM",
    "Qwen3VLMoeTextModel": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3.Qwen3VLMoeForCausalLM",
}


def may_run(architecture: str, config: Any) -> bool:
    """Return whether the class that ``MODULE_MAP`` names computes what a configuration says.

    A class of ours leaves checkpoints with another activation to ``transformers``; one of the user's is asked nothing.
    """
    is_built_in = str(MODULE_MAP[architecture]).startswith(f"{LMDEPLOY_PYTORCH_MODEL_PATH}.")
    return not is_built_in or getattr(config, "hidden_act", None) in (None, "silu", "swish")
