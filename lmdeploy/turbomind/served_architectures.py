"""Table of served architectures: the engine, the formats, and the reference that tests compare each with."""

from dataclasses import dataclass

from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.gguf.architectures import published_architectures
from lmdeploy.turbomind.text_part import ARCHITECTURES as SEEING

_USUAL = {"text": "transformers", "images": "transformers", "GGUF": "llama.cpp"}
# Architectures that tests compare with something else; empty: text is compared along with images alone.
_OTHERS = {
    "text": {
        "the published formulas": """BaiChuanForCausalLM BaichuanForCausalLM BailingMoeForCausalLM DeciLMForCausalLM
            DeepseekForCausalLM""",
        "": """CogVLMForCausalLM InternLMXComposer2ForCausalLM MllamaForConditionalGeneration MolmoForCausalLM
            OLMoForCausalLM""",
    },
    "images": {
        "the published formulas": """ChatGLMModel CogVLMForCausalLM InternLMXComposer2ForCausalLM InternVLChatModel
            LlavaLlamaForCausalLM MiniCPMV MllamaForConditionalGeneration MolmoForCausalLM OLMoForCausalLM
            Phi3VForCausalLM QWenLMHeadModel"""
    },
    "GGUF": {
        "transformers": """AfmoeForCausalLM Cohere2MoeForCausalLM DeciLMForCausalLM ExaoneForCausalLM
            ExaoneMoeForCausalLM Gemma3nForCausalLM GraniteMoeSWAForCausalLM HYV3ForCausalLM InternLM2ForCausalLM
            Jais2ForCausalLM MellumForCausalLM MiniMaxM3ForCausalLM MixtralForCausalLM PaddleOCRTextModel
            PhimoeForCausalLM Qwen4ExpForCausalLM XverseForCausalLM"""
    },
}


@dataclass(frozen=True)
class ServedArchitecture:
    """A row of the table."""

    architecture: str
    engine: str
    formats: str
    tested: str


def tested_architectures() -> dict[str, str]:
    """Return the references of each architecture: of its text, its images, its GGUF files."""
    having = {"text": families(), "images": SEEING, "GGUF": published_architectures()}
    found: dict[str, list[str]] = {name: [] for name in sorted({*families(), *SEEING})}
    for kind, usual in _USUAL.items():
        others = {name: reference for reference, names in _OTHERS[kind].items() for name in names.split()}
        for name in having[kind]:
            if reference := others.get(name, usual):
                found[name].append(reference if kind == "text" else f"{kind}: {reference}")
    return {name: "; ".join(parts) for name, parts in found.items()}


def served_architectures() -> list[ServedArchitecture]:
    """Return the rows, by name."""
    in_gguf, tested = published_architectures(), tested_architectures()
    return [
        ServedArchitecture(
            name,
            "C++, with images" if name in SEEING else "C++",
            "safetensors, GGUF" if name in in_gguf else "safetensors",
            tested[name],
        )
        for name in sorted({*families(), *SEEING})
    ]
