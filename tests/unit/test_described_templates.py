"""Built-in chat templates whose formats were published as text or code, not as Jinja: whole prompts, written by hand.

Each names its source. ``S`` is the template's own system prompt.
"""

from typing import Any

import pytest

from lmdeploy.model import MODELS
from tests.unit.test_published_templates import PUBLISHED

USER = {"role": "user", "content": "Hi, 你好"}
TURNS = [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "and now?"}]

_VICUNA = "{S} USER: Hi, 你好 ASSISTANT: Hello!</s>USER: and now? ASSISTANT:"
_XCOMPOSER = (
    "[UNUSED_TOKEN_146]system\n{S}[UNUSED_TOKEN_145]\n[UNUSED_TOKEN_146]user\nHi, 你好[UNUSED_TOKEN_145]\n"
    "[UNUSED_TOKEN_146]assistant\nHello![UNUSED_TOKEN_145]\n[UNUSED_TOKEN_146]user\nand now?[UNUSED_TOKEN_145]\n"
    "[UNUSED_TOKEN_146]assistant\n"
)
_TIGHT_CHATML = (
    "<|im_start|>system\n{S}<|im_end|><|im_start|>user\nHi, 你好<|im_end|><|im_start|>assistant\nHello!<|im_end|>"
    "<|im_start|>user\nand now?<|im_end|><|im_start|>assistant\n"
)
_CHATML = (
    "<|im_start|>system\n{S}<|im_end|>\n<|im_start|>user\nHi, 你好<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n"
)
_ULTRA = "User: {S}</s>\nUser: Hi, 你好</s>\nAssistant: Hello!</s>\nUser: and now?</s>\nAssistant:"
_DESCRIBED = {
    # lm-sys/FastChat, docs/vicuna_weights_version.md: "Example prompt (weights v1.1, v1.3, v1.5)".
    "vicuna": _VICUNA,
    # Model card of WizardLM-70B-V1.0: "adopts the prompt format from Vicuna".
    "wizardlm": _VICUNA,
    # haotian-liu/LLaVA, llava/conversation.py, conv_llava_v1.
    "llava-v1": _VICUNA,
    # dvlab-research/MGM, mgm/conversation.py, conv_vicuna_v1.
    "mini-gemini-vicuna": _VICUNA,
    # internlm/internlm-chat-7b, modeling_internlm.py, build_inputs; the system turn: LMDeploy 0.6.
    "internlm": "<|System|>:{S}\n<|User|>:Hi, 你好\n<|Bot|>:Hello!<eoa>\n<|User|>:and now?\n<|Bot|>:",
    # internlm/internlm-xcomposer2-7b, modeling_internlm_xcomposer2.py, interleav_wrap_chat.
    "internlm-xcomposer2": _XCOMPOSER,
    "internlm-xcomposer2d5": _XCOMPOSER,
    # OpenGVLab/InternVL, internvl_chat/internvl/conversation.py: Hermes-2, internlm2-chat (MPT style), internvl_zh,
    # phi3-chat.
    "internvl2-internlm2": _TIGHT_CHATML,
    "internvl-zh-hermes2": _TIGHT_CHATML,
    "internvl-zh": "<human>: Hi, 你好 <bot>: Hello!</s><human>: and now? <bot>:",
    "internvl-phi3": "<|system|>\n{S}<|end|><|user|>\nHi, 你好<|end|><|assistant|>\nHello!<|end|>"
    "<|user|>\nand now?<|end|><|assistant|>\n",
    "internvl2-phi3": "<|system|>\n{S}<|end|>\n<|user|>\nHi, 你好<|end|>\n<|assistant|>\nHello!<|end|>\n"
    "<|user|>\nand now?<|end|>\n<|assistant|>\n",
    # haotian-liu/LLaVA, llava/conversation.py, conv_chatml_direct.
    "llava-chatml": _TIGHT_CHATML,
    # GotOcr2Processor of `transformers`, prepare_inputs_layout.
    "got-ocr2": _TIGHT_CHATML,
    # 01-ai/Yi, VL/llava/conversation.py, mm_default_conv.
    "yi-vl": "{S}\n\n### Human: Hi, 你好\n### Assistant: Hello!\n### Human: and now?\n### Assistant:",
    # THUDM/cogvlm-chat-hf, modeling_cogvlm.py, _history_to_prompt; the end of a response: LMDeploy 0.6.
    "cogvlm": "Question: Hi, 你好 Answer: Hello!</s>\nQuestion: and now? Answer:",
    "cogvlm2": "Question: Hi, 你好 Answer: Hello!<|end_of_text|>\nQuestion: and now? Answer:",
    # allenai/Molmo-7B-D-0924, preprocessing_molmo.py, message format "role".
    "molmo": " User: Hi, 你好 Assistant: Hello! User: and now? Assistant:",
    # THUDM/CodeGeeX4, guides and model card: the format of GLM-4 with its own system prompt.
    "codegeex4": "<|system|>\n{S}<|user|>\nHi, 你好<|assistant|>\nHello!<|user|>\nand now?<|assistant|>",
    # baichuan-inc/Baichuan-13B-Chat, generation_utils.py: user_token_id 195, assistant_token_id 196.
    "baichuan": "<reserved_102>Hi, 你好<reserved_103>Hello!<reserved_102>and now?<reserved_103>",
    # Model cards of openbmb/UltraCM-13b and openbmb/UltraLM-13b; several turns: LMDeploy 0.6.
    "ultracm": _ULTRA,
    "ultralm": _ULTRA,
    # deepseek-ai/DeepSeek-VL, deepseek_vl/utils/conversation.py, template "deepseek".
    "deepseek-vl": "{S}\n\nUser: Hi, 你好\n\nAssistant: Hello!<｜end▁of▁sentence｜>User: and now?\n\nAssistant:",
    # HuggingFaceTB/SmolLM2-135M-Instruct; the test of the default model compares the rest.
    "smollm2": _CHATML,
    # They add nothing.
    "base": "Hi, 你好Hello!and now?",
    "llama": "Hi, 你好Hello!and now?",
    "puyu": "Hi, 你好Hello!and now?",
    "starcoder2": "Hi, 你好Hello!and now?",
}


@pytest.mark.parametrize("name", _DESCRIBED)
def test_a_conversation_is_written_as_described(name: str) -> None:
    template = MODELS.get(name)()
    assert template.render(TURNS) == _DESCRIBED[name].replace("{S}", template.meta_instruction or "")


@pytest.mark.parametrize("name", [name for name, prompt in _DESCRIBED.items() if "{S}" in prompt])
def test_a_system_prompt_replaces_the_templates_own(name: str) -> None:
    system = {"role": "system", "content": "Be brief."}
    assert MODELS.get(name)().render([system, *TURNS]) == _DESCRIBED[name].replace("{S}", "Be brief.")


def test_every_builtin_template_is_compared_with_its_source() -> None:
    builtin = MODELS.names()
    assert sorted({*PUBLISHED, *_DESCRIBED}) == sorted({*builtin, "deepseek-v2", "gemma3", "phi-3.5"})


# Capability "infilling": facebookresearch/codellama, llama/generation.py, infilling_prompt_tokens; bigcode/starcoder2
# and deepseek-ai/DeepSeek-Coder, README; THUDM/CodeGeeX4, guides/Infilling_guideline.md (without its optional lines).
_INFILLING = {
    "codellama": "<PRE> def f(x):\n     <SUF>\n    return y <MID>",
    "starcoder2": "<fim_prefix>def f(x):\n    <fim_suffix>\n    return y<fim_middle>",
    "deepseek-coder": "<｜fim▁begin｜>def f(x):\n    <｜fim▁hole｜>\n    return y<｜fim▁end｜>",
    "codegeex4": "<|user|>\n<|code_suffix|>\n    return y<|code_prefix|>def f(x):\n    <|code_middle|><|assistant|>\n",
}


@pytest.mark.parametrize("name", _INFILLING)
def test_the_missing_middle_of_a_text_is_asked_for_as_described(name: str) -> None:
    template = MODELS.get(name)(capability="infilling")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "def f(x):\n    <FILL>\n    return y"}]
    assert template.render(messages) == _INFILLING[name]
    assert ("<EOT>" in template.stop_words) is (name == "codellama")
    for text, count in (("x", 0), ("<FILL>x<FILL>", 2)):
        with pytest.raises(ValueError, match=f"must hold <FILL> once, .*got it {count} times"):
            template.render([{"role": "user", "content": text}])
    with pytest.raises(ValueError, match="nothing to continue"):
        template.render_continuation(messages)
