"""Which class runs an architecture, by the name that config.json has for it."""

from typing import Any

LMDEPLOY_PYTORCH_MODEL_PATH = "lmdeploy.pytorch.models"

# Architecture to class, or to its full name.
MODULE_MAP: dict[str, Any] = {}

MODULE_MAP.update(
    {
        "LlamaForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.llama.LlamaForCausalLM",
        "MistralForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.llama.LlamaForCausalLM",
        "Qwen2ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen2.Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen2_moe.Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3.Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3_moe.Qwen3MoeForCausalLM",
        "Qwen3VLMoeTextModel": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen3_vl_moe.Qwen3VLMoeForCausalLM",
        "BaichuanForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.baichuan.BaichuanForCausalLM",
        "BaiChuanForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.baichuan.BaichuanForCausalLM",
        "InternLMForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.internlm.InternLMForCausalLM",
        "InternLM2ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.internlm2.InternLM2ForCausalLM",
        "InternLM2VEForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.internlm2.InternLM2VEForCausalLM",
        "InternLMXComposer2ForCausalLM": (
            f"{LMDEPLOY_PYTORCH_MODEL_PATH}.internlm_xcomposer2.InternLMXComposer2ForCausalLM"
        ),
        "CogVLMForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.cogvlm.CogVLMForCausalLM",
        "ChatGLMModel": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.chatglm.ChatGLMForConditionalGeneration",
        "ChatGLMForConditionalGeneration": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.chatglm.ChatGLMForConditionalGeneration",
        "StableLmForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.stablelm.StableLmForCausalLM",
        "QWenLMHeadModel": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.qwen.QWenLMHeadModel",
        "DeepseekForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.deepseek.DeepseekForCausalLM",
        "MolmoForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.molmo.MolmoForCausalLM",
        "OLMoForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.molmo.MolmoEForCausalLM",
        "MllamaForConditionalGeneration": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.mllama.MllamaForCausalLM",
        "FalconForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.falcon.FalconForCausalLM",
        "Gemma2ForCausalLM": f"{LMDEPLOY_PYTORCH_MODEL_PATH}.gemma2.Gemma2ForCausalLM",
    }
)

_MODEL_TYPES = {"OLMoForCausalLM": "molmo"}  # of architectures that other models have too
_ACTIVATIONS = ("silu", "swish")  # of the MLPs of our classes; Gemma 2's looks at its own field


def may_run(architecture: str, config: Any) -> bool:
    """Return whether the class that ``MODULE_MAP`` names computes what a configuration says.

    A class of ours leaves checkpoints with another activation to ``transformers``; one of the user's is asked nothing.
    """
    if not str(MODULE_MAP[architecture]).startswith(f"{LMDEPLOY_PYTORCH_MODEL_PATH}."):
        return True
    if architecture in _MODEL_TYPES and config.model_type != _MODEL_TYPES[architecture]:
        return False
    return getattr(config, "hidden_act", None) in (None, *_ACTIVATIONS) or hasattr(config, "hidden_activation")
