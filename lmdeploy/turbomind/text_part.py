"""Text part of a vision-language checkpoint: its config, and its tensor names there.

`lmdeploy.vl` loads the vision tower. The engine reads the text part from the same files, like a text-only model.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.families import family_of
from lmdeploy.turbomind.manifest import Expression, Load, renamed, walk
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.spec import ImagesSpec, ModelSpec

logger = logging.getLogger(__name__)

_NATIVE = (
    "AyaVisionForConditionalGeneration", "Cohere2VisionForConditionalGeneration",
    "DeepseekOcr2ForConditionalGeneration", "DeepseekVLForConditionalGeneration",
    "DeepseekVLHybridForConditionalGeneration", "Exaone4_5_ForConditionalGeneration", "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration", "Glm46VForConditionalGeneration", "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration", "GlmOcrForConditionalGeneration", "GotOcr2ForConditionalGeneration",
    "GraniteDoclingForConditionalGeneration", "Idefics3ForConditionalGeneration", "InternVLForConditionalGeneration",
    "Lfm2VlForConditionalGeneration", "Lfm3VlForConditionalGeneration", "LightOnOcrForConditionalGeneration",
    "Llama4ForConditionalGeneration", "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration", "Mistral3ForConditionalGeneration", "Ovis2ForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration", "QianfanOCRForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
    "Qwen2VLForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "Qwen4ExpForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)  # fmt: skip


@dataclass(frozen=True)
class _OwnForm:
    """A model in its authors' own layout."""

    # Architecture of the text part, from config.json; empty: as its config names it
    architecture: Callable[[Mapping[str, Any]], str]
    key: str = ""  # where the text part's config is in config.json; empty: it is all of that
    # Whether a config.json has this form, for architectures that others have too
    sees: Callable[[Mapping[str, Any]], bool] = lambda raw: True
    shares_position: bool = False  # an image's tokens, but the first and the last, are at one position


def _always(architecture: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda raw: architecture


MINICPM_TEXTS = {
    "2.5": "LlamaForCausalLM",
    "2.6": "Qwen2ForCausalLM",
    "4": "LlamaForCausalLM",
    "4.0": "LlamaForCausalLM",
    "4.5": "Qwen3ForCausalLM",
}
"""The text parts of MiniCPM-V, by version."""


def minicpm_version(raw: Mapping[str, Any]) -> str:
    """Return the version of a MiniCPM-V; the first releases of 2.0 and 2.5 do not say it."""
    version = raw.get("version")
    if version is not None:
        return str(version)
    return "2.0" if raw.get("query_num") == 64 else "2.5"


def _is_first_minicpm(raw: Mapping[str, Any]) -> bool:
    return bool(raw.get("scale_emb", 1) != 1)


_GLM_4V = _OwnForm(_always("ChatGLMModel"), sees=lambda raw: bool(raw.get("vision_config")), shares_position=True)
_KIMI_K25 = _OwnForm(lambda raw: _text_config(raw), "text_config")
_OWN = {
    "ChatGLMForConditionalGeneration": _GLM_4V,
    "ChatGLMModel": _GLM_4V,
    "CogVLMForCausalLM": _OwnForm(_always("CogVLMForCausalLM"), shares_position=True),
    "DeepseekOCR2ForCausalLM": _OwnForm(_always("DeepseekForCausalLM"), "language_config"),
    "InternLMXComposer2ForCausalLM": _OwnForm(_always("InternLMXComposer2ForCausalLM")),
    "InternVLChatModel": _OwnForm(_always(""), "llm_config"),
    "KimiK25ForConditionalGeneration": _KIMI_K25,
    "Kimi_K25ForConditionalGeneration": _KIMI_K25,
    "MllamaForConditionalGeneration": _OwnForm(_always("MllamaForConditionalGeneration")),
    "LlavaLlamaForCausalLM": _OwnForm(_always("LlamaForCausalLM")),
    "LlavaMistralForCausalLM": _OwnForm(_always("MistralForCausalLM")),
    "MiniCPMV": _OwnForm(
        lambda raw: MINICPM_TEXTS[minicpm_version(raw)],
        sees=lambda raw: minicpm_version(raw) in MINICPM_TEXTS and not _is_first_minicpm(raw),
    ),
    "MolmoForCausalLM": _OwnForm(_always("MolmoForCausalLM")),
    "OLMoForCausalLM": _OwnForm(_always("OLMoForCausalLM"), sees=lambda raw: raw.get("model_type") == "molmo"),
    "MultiModalityCausalLM": _OwnForm(_always("LlamaForCausalLM"), "language_config"),
    "Phi3VForCausalLM": _OwnForm(_always("Phi3ForCausalLM")),
    "QWenLMHeadModel": _OwnForm(_always("QWenLMHeadModel"), sees=lambda raw: bool(raw.get("visual"))),
}
ARCHITECTURES = (*_NATIVE, *_OWN)
"""Models whose text part is its own decoder."""

_TEXT_ARCHITECTURES = {  # by the text config's model_type; published configs name none, or one that nobody knows
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_ocr2_text": "DeepseekForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm5_next_text": "Glm5NextTextModel",
    "glm_ocr_text": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite_docling_text": "GraniteForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "lfm3": "Lfm3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "muse_glimmer_text": "MuseGlimmerTextModel",
    "paddleocr_vl_text": "PaddleOCRTextModel",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3VLMoeTextModel",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
}
# Pairs of frame, row and column where a config does not say, as in the modeling code of ``transformers``.
_SECTIONS = {
    "glm4v_moe_text": (8, 12, 12),
    "glm4v_text": (8, 12, 12),
    "glm_ocr_text": (8, 12, 12),
    "paddleocr_vl_text": (16, 24, 24),
    "qwen2_5_vl_text": (16, 24, 24),
    "qwen2_vl_text": (16, 24, 24),
    "qwen3_5_moe_text": (11, 11, 10),
    "qwen3_5_text": (11, 11, 10),
    "qwen3_vl_moe_text": (24, 20, 20),
    "qwen3_vl_text": (24, 20, 20),
    "qwen4_exp_text": (11, 11, 10),
}


def _text_config(raw: Mapping[str, Any]) -> str:
    """Return the architecture of ``text_config``, by its name or its type."""
    text = raw.get("text_config")
    given = text if isinstance(text, Mapping) else {}
    return str((given.get("architectures") or [""])[0]) or _TEXT_ARCHITECTURES.get(str(given.get("model_type")), "")


# Models of which the text part alone is served: nothing here runs their towers.
_TEXTS_ALONE = {
    **dict.fromkeys(
        (
            "Glm5NextForConditionalGeneration", "KimiVLForConditionalGeneration", "Maira2ForConditionalGeneration",
            "MuseGlimmerForConditionalGeneration",
            "Step3p7ForConditionalGeneration", "VoxtralForConditionalGeneration",
        ),
        _OwnForm(_text_config, "text_config"),
    ),
    "LogicsForConditionalGeneration": _OwnForm(_always("Qwen3ForCausalLM")),
    "MiniCPMV": _OwnForm(_always("MiniCPMForCausalLM"), sees=_is_first_minicpm),
}  # fmt: skip
_BOUNDARY = ("bos_token_id", "eos_token_id")
# Where a decoder's ``model.*`` may be: as published, as the model has it in memory, and as a body alone has it.
_PREFIXES: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: f"language_model.{name}",
    lambda name: "model.language_model." + name.removeprefix("model."),
    lambda name: f"llm.{name}",
    lambda name: "model.text_model." + name.removeprefix("model."),
    lambda name: name.removeprefix("model."),
)


@dataclass(frozen=True)
class TextPart:
    """The text part of a checkpoint."""

    config: Any  # as ``transformers`` has it, with what config.json leaves out
    raw: dict[str, Any]  # the same as the config.json of a text model would have it, ``architectures`` included
    images: ImagesSpec | None  # how the model sees; None: it is served without its eyes and ears
    shares_position: bool = False  # an image's tokens, but the first and the last, are at one position


def sees(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of a vision-language model and is known."""
    named = raw.get("architectures")
    if not isinstance(named, list) or not any(name in ARCHITECTURES for name in named) or text_alone(raw):
        return False
    return all(_OWN[name].sees(raw) for name in named if name in _OWN)


def text_alone(raw: Mapping[str, Any]) -> str:
    """Return the text part's architecture if a config.json is the text part's alone, saved under the whole's name."""
    named = raw.get("architectures")
    is_native = isinstance(named, list) and any(name in _NATIVE for name in named)
    return _TEXT_ARCHITECTURES.get(str(raw.get("model_type")), "") if is_native else ""


def text_part_of(model_dir: Path, raw: Mapping[str, Any]) -> TextPart | None:
    """Return the text part of a checkpoint with this config.json; None if the model only reads text.

    Raises `UnsupportedModelError` if the text part is of no supported family, and `CheckpointError` if config.json is
    invalid.
    """
    if not sees(raw):
        return _text_alone(model_dir, raw)
    named = raw["architectures"]
    form = next((_OWN[name] for name in named if name in _OWN), None)
    if form is not None:
        return _custom_text_part(model_dir, raw, form)
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        whole = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
        config = whole.get_text_config()
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        raise CheckpointError(model_dir, [f"config.json is invalid: {' '.join(str(error).split())}"]) from error
    if config.model_type not in _TEXT_ARCHITECTURES:
        raise UnsupportedModelError(
            f"{', '.join(named)} with a text part of type {config.model_type} is not supported; supported: "
            + ", ".join(_TEXT_ARCHITECTURES)
        )
    # `transformers` ties by the whole's field, which older files have in the text part.
    config.tie_word_embeddings = any(getattr(it, "tie_word_embeddings", False) for it in (whole, config))
    alone = config.to_dict() | _boundary(raw) | {"architectures": [_TEXT_ARCHITECTURES[config.model_type]]}
    deepstack = len(getattr(whole.vision_config, "deepstack_visual_indexes", None) or ())
    images = ImagesSpec(deepstack, _whole_rows(whole, config))
    return TextPart(config, alone, images)


def _text_alone(model_dir: Path, raw: Mapping[str, Any]) -> TextPart | None:
    """Return the text part of a model that is served without the others; None if it has none."""
    named = raw.get("architectures")
    name = next((name for name in _TEXTS_ALONE if isinstance(named, list) and name in named), "")
    if not name or not _TEXTS_ALONE[name].sees(raw):
        return None
    logger.warning("%s: of %s the text part alone is served: its prompts are texts", model_dir, name)
    text = _custom_text_part(model_dir, raw, _TEXTS_ALONE[name])
    text.config.tie_word_embeddings = True  # unless the files hold an output layer
    return dataclasses.replace(text, images=None)


def _whole_rows(whole: Any, text: Any) -> int:
    """Return the most tokens of an image where they see each other; 0: where they do not."""
    if text.model_type == "gemma3_text":
        return int(whole.mm_tokens_per_image)
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        return int(getattr(whole, "vision_soft_tokens_per_image", 280))
    return 0


def _custom_text_part(model_dir: Path, raw: Mapping[str, Any], form: _OwnForm) -> TextPart:
    """Return the text part of a checkpoint in its authors' own layout; as :func:`text_part_of`."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    alone = raw.get(form.key) if form.key else raw
    if not isinstance(alone, Mapping):
        raise CheckpointError(model_dir, [f"config.json: {form.key} must be an object, got {alone!r:.80}"])
    architecture = form.architecture(raw)
    name, family = family_of([architecture] if architecture else alone.get("architectures"))
    alone = dict(alone) | _boundary(raw) | {"architectures": [name]}
    try:
        if family.config is not None:
            return TextPart(family.config(alone), alone, ImagesSpec(), form.shares_position)
        kinds = (kind for kind, text in _TEXT_ARCHITECTURES.items() if text == name)
        kind = next(kinds, alone.get("model_type"))
        config = type(AutoConfig.for_model(kind)).from_dict(alone | {"model_type": kind})
        defaults = {key: value for key, value in config.to_dict().items() if key not in _BOUNDARY}
        return TextPart(config, defaults | alone, ImagesSpec(), form.shares_position)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        raise CheckpointError(model_dir, [f"config.json is invalid: {' '.join(str(error).split())}"]) from error


def _boundary(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: raw[key] for key in _BOUNDARY if raw.get(key) is not None}


def spec_in(spec: ModelSpec, text: TextPart) -> ModelSpec:
    """Return the spec of a text part within the model that sees."""
    parameters = getattr(text.config, "rope_parameters", None) or {}
    model_type = getattr(text.config, "model_type", None)  # families with their own configuration have none
    is_interleaved = bool(parameters.get("mrope_interleaved", str(model_type).startswith(("qwen3_", "qwen4_"))))
    sections = parameters.get("mrope_section") or _SECTIONS.get(str(model_type))

    def axes_of(pairs: int) -> tuple[int, ...]:
        # One number is enough for images at one position, but that of a token no longer says it.
        return (0,) * pairs if text.shares_position else _axes(sections, pairs, is_interleaved=is_interleaved)

    ropes = tuple(dataclasses.replace(rope, axes=axes_of(len(rope.inv_freq))) for rope in spec.ropes)
    images = spec.images or text.images
    return dataclasses.replace(spec, ropes=ropes, images=images)


def _axes(sections: Sequence[int] | None, pairs: int, *, is_interleaved: bool) -> tuple[int, ...]:
    """Return which number of a position turns each pair; nothing where positions have one.

    ``sections`` are the pairs of frame, row and column: one section after the other, or, interleaved, in turn for as
    long as rows and columns have any left, the frame turning the others.
    """
    if not sections:
        return ()
    if not is_interleaved:
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    return tuple(pair % 3 if pair // 3 < sections[pair % 3] else 0 for pair in range(pairs))


def text_names(spec: ModelSpec, text: TextPart, index: SafetensorsIndex) -> dict[str, str]:
    """Return the names of a checkpoint's tensors in its text part, which has this spec."""
    alone = family_of(text.raw["architectures"])[1].tensors(spec)
    within = tensors_in(alone, index)
    return {name: loaded for key in alone for name, loaded in zip(_loads(within[key]), _loads(alone[key]), strict=True)}


def with_stored_output(
    tensors: Mapping[str, Expression], spec: ModelSpec, index: SafetensorsIndex
) -> tuple[Mapping[str, Expression], ModelSpec]:
    """Return expressions and spec of a decoder whose output layer is the one that the files hold, if any.

    ``tensors`` have an output layer. What config.json says counts where the files hold none, or the embedding twice, as
    in ``transformers``.
    """
    head, embedding = (_loaded(tensors.get(name)) for name in ("lm_head.weight", "token_embedding"))
    layer = head.removesuffix("weight")  # codes have other endings
    is_stored = any(name.startswith(layer) and name != f"{layer}bias" for name in index.tensors)
    if spec.tied_embeddings and is_stored and not index.are_equal(head, embedding):
        return tensors, dataclasses.replace(spec, tied_embeddings=False)
    if not spec.tied_embeddings:
        return tensors, spec
    return {name: value for name, value in tensors.items() if name != "lm_head.weight"}, spec


def tensors_in(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the expressions of a text model with the names its tensors have in a checkpoint, a whole's or a body's."""
    embedding, head = (_loaded(tensors.get(name)) for name in ("token_embedding", "lm_head.weight"))
    prefixed = next((prefixed for prefixed in _PREFIXES if prefixed(embedding) in index.tensors), _PREFIXES[0])
    output = next((name for name in (f"language_model.{head}", f"llm.{head}", head) if name in index.tensors), head)

    def name_in(stored: str) -> str:
        return output if stored == head else prefixed(stored)

    return {name: renamed(expression, name_in) for name, expression in tensors.items()}


def _loads(expression: Expression) -> list[str]:
    """Return the tensors that an expression reads."""
    return [part.name for part in walk(expression) if isinstance(part, Load)]


def _loaded(expression: Expression | None) -> str:
    """Return the first tensor that an expression reads."""
    return next(iter(_loads(expression)), "") if expression else ""


_TEXT_BEGINNINGS = (
    "llm.", "model.embed_tokens.", "model.layers.", "model.norm.", "model.tok_embeddings.", "output.",
)  # fmt: skip


def is_of_text(name: str) -> bool:
    """Return whether a tensor of such a checkpoint is one of its text part."""
    if name.startswith(_TEXT_BEGINNINGS):
        return True
    if name.startswith(("transformer.", "model.transformer.")):
        return not name.startswith(("transformer.vis", "model.transformer.wte.new_"))
    return any(part in name for part in ("language_model.", "text_model.", "lm_head.weight")) and "vision" not in name
