"""The architectures whose GGUF files are read: names of their tensors, and what is done to some of them.

How each was written: llama.cpp, ``convert_hf_to_gguf.py``. For architectures of Llama's kind it reorders the outputs of
queries and keys, so that neighbours turn together; Gemma's norms have their 1 added already.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.gemma import gemma3n_tensors, gemma4_tensors
from lmdeploy.turbomind.families.hunyuan_v4 import hyper_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen4 import FAMILY as QWEN4
from lmdeploy.turbomind.gguf import configs, encoders, gemma, hybrids, latent, mixtures
from lmdeploy.turbomind.gguf.configs import (
    expert_size,
    get,
    has,
    joined,
    need,
    padding,
    plain,
    qwen_experts,
    window,
    with_axes,
    with_windows,
)
from lmdeploy.turbomind.gguf.layouts import FamilyLayout, WithoutNormWeights
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.mixtures import EXPERTS, biased_experts, joined_experts
from lmdeploy.turbomind.gguf.recurrent import (
    convolution_tensors,
    gated_delta_tensors,
    grouped_delta_tensors,
    kimi_delta_tensors,
    ling_delta_tensors,
    mamba_tensors,
    minimax_tensors,
    scan_tensors,
)

_LAYOUT = Layout(
    embedding="token_embd",
    embedding_norm="token_embd_norm",
    positions="position_embd",
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
    sinks="attn_sinks.weight",
    o="attn_output",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    experts=EXPERTS.tensors,
)
_JOINED_QKV = dataclasses.replace(_LAYOUT, qkv="attn_qkv")
_BERT = encoders.PostNormLayout(
    **vars(dataclasses.replace(_LAYOUT, mlp_norm="attn_output_norm", final_norm="layer_output_norm"))
)
_NOMIC_BERT = dataclasses.replace(_BERT, qkv="attn_qkv", experts=encoders.nomic_experts)
_GATED = dataclasses.replace(_LAYOUT, output_gate="attn_gate")
_HY3 = dataclasses.replace(_LAYOUT, experts=dataclasses.replace(EXPERTS, correction="exp_probs_b").tensors)
_LATE_MLP_NORM = dataclasses.replace(_LAYOUT, mlp_norm="post_attention_norm")
_LATENT = dataclasses.replace(_LAYOUT, latent=latent.latent_tensors)
_APERTUS = dataclasses.replace(_LAYOUT, xielu="xielu")
_GRANITE_SWA = dataclasses.replace(_LAYOUT, experts=mixtures.granite_experts)
_INDEXED = dataclasses.replace(_LAYOUT, latent=latent.indexed_tensors)
_KIMI_LINEAR = dataclasses.replace(_LATENT, recurrence=kimi_delta_tensors)
_LING3 = dataclasses.replace(
    _LAYOUT, latent=partial(latent.latent_tensors, gate="gate", by_head=True), recurrence=ling_delta_tensors
)
_QWEN3_5 = dataclasses.replace(_LATE_MLP_NORM, recurrence=gated_delta_tensors)
_LFM2 = dataclasses.replace(_LAYOUT, final_norm="token_embd_norm", recurrence=convolution_tensors)
_MAMBA = dataclasses.replace(_LAYOUT, recurrence=mamba_tensors)
_SCAN = dataclasses.replace(_LAYOUT, recurrence=scan_tensors)
_NEMOTRON_H = dataclasses.replace(_MAMBA, mlp_norm="attn_norm")
_QWEN3_NEXT = dataclasses.replace(_QWEN3_5, recurrence=grouped_delta_tensors)


_QWEN4_NAMES = (
    ("model.hyper_connection_mixer.", "output_hc_"),
    ("model.layers.", "blk."),
    ("attn_hyper_connection.", "hc_attn_"),
    ("mlp_hyper_connection.", "hc_ffn_"),
    ("_hc_norm", "_norm"),
    ("input_mix_weight_", ""),
    ("block_inject_weight", "inject"),
    (r"blk[.]\d+[.]ple[.]ple_embedding[.]ngram_embedding[.]shard_0", "per_layer_token_embd"),
    (r"ple[.](\w+?)(_proj)?[.]", r"ple_\1."),
)
_HY4_NAMES = (
    ("model.hc_head.hc_head_", "output_hc_"),
    ("model.layers.", "blk."),
    ("hc_attn_layer.hc_pre.hc_", "hc_attn_"),
    ("hc_mlp_layer.hc_pre.hc_", "hc_ffn_"),
)


@dataclass(frozen=True)
class Architecture:
    """Files of one architecture."""

    published: str  # name of the architecture in a Hugging Face config
    config: Callable[[Metadata], dict[str, Any]]  # from the metadata to the rest of that config
    layout: Layout = _LAYOUT  # names of the tensors
    # Rows of queries and keys are in pairs that turn together, ``2 i`` and ``2 i + 1`` of a head
    is_turned: bool = False
    has_whole_norms: bool = False  # weights of norms have the family's offset added
    # From the metadata to vectors that the engine reads as tensors
    numbers: Callable[[Metadata], dict[str, list[float]]] = lambda metadata: {}

    def layout_of(self, tensors: Mapping[str, object]) -> Layout:
        """Return the layout of a file with these tensors."""
        has_second = "blk.0.attn_norm_2.weight" in tensors
        if has_second and self.published == "FalconForCausalLM":  # 40B: one norm for attention, one for the MLP
            return dataclasses.replace(self.layout, attention_norm="attn_norm_2", mlp_norm="attn_norm")
        if self.layout.gate_up and "blk.0.ffn_gate.weight" in tensors:  # JinaBERT as it was converted at first
            return dataclasses.replace(self.layout, gate_up="")
        if self.layout.latent is latent.latent_tensors and "blk.0.attn_kv_b.weight" in tensors:
            return dataclasses.replace(self.layout, latent=latent.joined_tensors)
        return self.layout


_Q_BIAS, _QKV_BIAS, _DOWN_BIAS = (has(f"blk.0.{name}.bias") for name in ("attn_q", "attn_qkv", "ffn_down"))
_LAYERS_WITH_ALIBI = 40  # of Baichuan, as llama.cpp knows the 13B


def _is_large_baichuan(metadata: Metadata) -> bool:
    return metadata.layer_count == _LAYERS_WITH_ALIBI


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", configs.llama, is_turned=True),
    "exaone": Architecture("ExaoneForCausalLM", configs.exaone),
    "xverse": Architecture("XverseForCausalLM", plain("xverse", mlp_bias=_DOWN_BIAS), is_turned=True),
    "deci": Architecture("DeciLMForCausalLM", configs.deci, is_turned=True),
    "jais2": Architecture("Jais2ForCausalLM", plain("jais2", configs.squared, eps="layer_norm_eps")),
    "mistral3": Architecture("Ministral3ForCausalLM", configs.mistral3, is_turned=True),
    "internlm2": Architecture("InternLM2ForCausalLM", plain("internlm2", bias=_Q_BIAS), is_turned=True),
    "qwen2": Architecture("Qwen2ForCausalLM", configs.qwen2),
    "qwen2vl": Architecture("Qwen2ForCausalLM", with_axes(configs.qwen2)),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", configs.qwen2moe),
    "qwen3": Architecture("Qwen3ForCausalLM", plain("qwen3", use_sliding_window=False)),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", plain("qwen3_moe", qwen_experts)),
    "qwen3vl": Architecture("Qwen3ForCausalLM", plain("qwen3", use_sliding_window=False)),
    "qwen3vlmoe": Architecture("Qwen3MoeForCausalLM", plain("qwen3_moe", qwen_experts)),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM", plain("qwen3_next", hybrids.gated_delta_experts), _QWEN3_NEXT, has_whole_norms=True
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", plain("qwen3_5_text", hybrids.gated_delta), _QWEN3_5, has_whole_norms=True
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", plain("qwen3_5_moe_text", hybrids.gated_delta_experts), _QWEN3_5, has_whole_norms=True
    ),
    "qwen4exp": Architecture(
        "Qwen4ExpForCausalLM",
        plain("qwen4_exp_text", hybrids.qwen4exp),
        FamilyLayout(**vars(_QWEN3_5), family=QWEN4.tensors, names=_QWEN4_NAMES),
        has_whole_norms=True,
    ),
    "lfm2": Architecture("Lfm2ForCausalLM", hybrids.lfm2, _LFM2),
    "lfm2moe": Architecture("Lfm2MoeForCausalLM", hybrids.lfm2moe, _LFM2),
    "mamba": Architecture("MambaForCausalLM", hybrids.mamba, _SCAN),
    "jamba": Architecture("JambaForCausalLM", hybrids.jamba, _SCAN),
    "mamba2": Architecture("Mamba2ForCausalLM", hybrids.mamba2, _MAMBA),
    "granitehybrid": Architecture("GraniteMoeHybridForCausalLM", hybrids.granitehybrid, _MAMBA, is_turned=True),
    "falcon-h1": Architecture("FalconH1ForCausalLM", hybrids.falcon_h1, _MAMBA),
    "nemotron_h": Architecture("NemotronHForCausalLM", hybrids.nemotron_h, _NEMOTRON_H),
    "nemotron_h_moe": Architecture("NemotronHForCausalLM", hybrids.nemotron_h_moe, _NEMOTRON_H),
    "gemma": Architecture("GemmaForCausalLM", plain("gemma", hidden_act="gelu_pytorch_tanh"), has_whole_norms=True),
    "gemma2": Architecture("Gemma2ForCausalLM", configs.gemma2, has_whole_norms=True),
    "gemma3": Architecture("Gemma3ForCausalLM", configs.gemma3, has_whole_norms=True),
    "gemma3n": Architecture(
        "Gemma3nForCausalLM",
        gemma.gemma3n_config,
        FamilyLayout(**vars(_LAYOUT), family=gemma3n_tensors, names=gemma.NAMES),
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        gemma.gemma4_config,
        FamilyLayout(
            **vars(dataclasses.replace(_LAYOUT, experts=gemma.gemma4_experts)), family=gemma4_tensors, names=gemma.NAMES
        ),
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        plain("phi3", sliding_window=window, pad_token_id=padding),
        dataclasses.replace(_JOINED_QKV, gate_up="ffn_up"),
    ),
    "falcon": Architecture("FalconForCausalLM", configs.falcon, _JOINED_QKV),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        plain(
            "starcoder2",
            eps="norm_epsilon",
            hidden_act="gelu_pytorch_tanh",
            use_bias=_Q_BIAS,
            sliding_window=get("attention.sliding_window"),
        ),
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", plain("olmo2")),
    "exaone4": Architecture("Exaone4ForCausalLM", configs.exaone4),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        plain("seed_oss", attention_out_bias=has("blk.0.attn_output.bias"), mlp_bias=_DOWN_BIAS),
        _LATE_MLP_NORM,
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", configs.ernie4_5),
    "paddleocr": Architecture(
        "PaddleOCRTextModel", with_axes(joined(configs.ernie4_5, model_type="paddleocr_vl_text"))
    ),
    "command-r": Architecture("CohereForCausalLM", configs.command_r),
    "phi2": Architecture(
        "PhiForCausalLM", plain("phi", eps="layer_norm_eps", hidden_act="gelu_new", qk_layernorm=False)
    ),
    "stablelm": Architecture("StableLmForCausalLM", configs.stablelm),
    "cohere2": Architecture("Cohere2ForCausalLM", configs.cohere2),
    "granite": Architecture(
        "GraniteForCausalLM", plain("granite", configs.multipliers, mlp_bias=_DOWN_BIAS), is_turned=True
    ),
    "granite_swa": Architecture("GraniteSWAForCausalLM", mixtures.granite_swa, _GRANITE_SWA, is_turned=True),
    "arcee": Architecture("ArceeForCausalLM", plain("arcee", configs.squared), is_turned=True),
    "smollm3": Architecture("SmolLM3ForCausalLM", configs.smollm3, is_turned=True),
    "glm4": Architecture("Glm4ForCausalLM", plain("glm4"), dataclasses.replace(_LAYOUT, gate_up="ffn_up")),
    "chatglm": Architecture(
        "GlmForCausalLM", plain("glm", attention_bias=_QKV_BIAS), dataclasses.replace(_JOINED_QKV, gate_up="ffn_up")
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM", plain("hunyuan_v1_dense")),
    "nemotron": Architecture(
        "NemotronForCausalLM", plain("nemotron", configs.squared, eps="norm_eps"), has_whole_norms=True
    ),
    "gptneox": Architecture("GPTNeoXForCausalLM", configs.gptneox, _JOINED_QKV),
    "gpt2": Architecture("GPT2LMHeadModel", configs.gpt2, _JOINED_QKV),
    "starcoder": Architecture("GPTBigCodeForCausalLM", configs.gpt2, _JOINED_QKV),
    "bloom": Architecture(
        "BloomForCausalLM",
        plain(
            "bloom",
            eps="layer_norm_epsilon",
            seq_length=need("context_length"),
            apply_residual_connection_post_layernorm=False,
        ),
        _JOINED_QKV,
    ),
    "apertus": Architecture(
        "ApertusForCausalLM", plain("apertus", hidden_act="xielu"), _APERTUS, numbers=configs.xielu
    ),
    "baichuan": Architecture("BaichuanForCausalLM", plain("baichuan", has_alibi=_is_large_baichuan), is_turned=True),
    "qwen": Architecture("QWenLMHeadModel", configs.qwen, _JOINED_QKV),
    "mpt": Architecture("MptForCausalLM", configs.mpt, _JOINED_QKV),
    "olmo": Architecture(
        "OlmoForCausalLM",
        plain("olmo", eps="layer_norm_eps", clip_qkv=get("attention.clamp_kqv")),
        WithoutNormWeights(**vars(_LAYOUT)),
        is_turned=True,
    ),
    "minicpm": Architecture("MiniCPMForCausalLM", configs.minicpm, is_turned=True),
    "muse-glimmer": Architecture(
        "MuseGlimmerTextModel",
        configs.muse_glimmer,
        WithoutNormWeights(**vars(_GATED), bare="embedding_norm.weight"),
        is_turned=True,
        has_whole_norms=True,
    ),
    "olmoe": Architecture("OlmoeForCausalLM", mixtures.olmoe),
    "granitemoe": Architecture("GraniteMoeSharedForCausalLM", mixtures.granitemoe, is_turned=True),
    "ernie4_5-moe": Architecture("Ernie4_5_MoeForCausalLM", mixtures.ernie4_5_moe),
    "deepseek": Architecture("DeepseekForCausalLM", plain("deepseek", mixtures.deepseek_experts), is_turned=True),
    "bailingmoe": Architecture("BailingMoeForCausalLM", mixtures.bailingmoe, is_turned=True),
    "bailingmoe2": Architecture("BailingMoeV2ForCausalLM", mixtures.bailingmoe, _JOINED_QKV),
    "exaone-moe": Architecture("ExaoneMoeForCausalLM", mixtures.exaone_moe),
    "afmoe": Architecture("AfmoeForCausalLM", mixtures.afmoe, _GATED),
    "hy_v3": Architecture("HYV3ForCausalLM", mixtures.hy_v3, _HY3),
    "mellum": Architecture("MellumForCausalLM", mixtures.mellum),
    "cohere2moe": Architecture("Cohere2MoeForCausalLM", mixtures.cohere2moe),
    "dots1": Architecture("Dots1ForCausalLM", plain("dots1", mixtures.deepseek_experts, sliding_window=None)),
    "glm4moe": Architecture("Glm4MoeForCausalLM", mixtures.glm4moe, _LATE_MLP_NORM),
    "minimax-m2": Architecture("MiniMaxM2ForCausalLM", plain("minimax_m2", intermediate_size=expert_size)),
    "minimax-m3": Architecture(
        "MiniMaxM3ForCausalLM", mixtures.minimax_m3, FamilyLayout(**vars(_LAYOUT)), has_whole_norms=True
    ),
    "hunyuan-moe": Architecture("HunYuanMoEV1ForCausalLM", mixtures.hunyuan_moe),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", mixtures.gpt_oss, dataclasses.replace(_LATE_MLP_NORM, experts=biased_experts)
    ),
    "deepseek2": Architecture("DeepseekV3ForCausalLM", latent.deepseek_v3, _LATENT),
    "bailingmoe3": Architecture("BailingHybridForCausalLM", latent.bailingmoe3, _LING3),
    "deepseek32": Architecture("DeepseekV32ForCausalLM", latent.deepseek_v32, _INDEXED),
    "glm-dsa": Architecture("GlmMoeDsaForCausalLM", latent.glm_dsa, _INDEXED),
    "hy_v4": Architecture(
        "HYV4ForCausalLM",
        latent.hy_v4,
        FamilyLayout(
            **vars(dataclasses.replace(_LAYOUT, latent=latent.hy4_tensors)), family=hyper_tensors, names=_HY4_NAMES
        ),
    ),
    "mistral4": Architecture(
        "Mistral4ForCausalLM", latent.mistral4, dataclasses.replace(_LATENT, experts=joined_experts)
    ),
    "minicpm3": Architecture(
        "MiniCPM3ForCausalLM", latent.minicpm3, dataclasses.replace(_LAYOUT, latent=latent.joined_tensors)
    ),
    "kimi-linear": Architecture("KimiLinearForCausalLM", latent.kimi_linear, _KIMI_LINEAR),
    "llama4": Architecture("Llama4ForCausalLM", mixtures.llama4),
    "phimoe": Architecture("PhimoeForCausalLM", mixtures.phimoe),
    "dbrx": Architecture(
        "DbrxForCausalLM", mixtures.dbrx, dataclasses.replace(_JOINED_QKV, mlp_norm="attn_output_norm")
    ),
    "laguna": Architecture("LagunaForCausalLM", mixtures.laguna, _GATED),
    "step35": Architecture("Step3p5ForCausalLM", mixtures.step35, _GATED, has_whole_norms=True),
    "mimo2": Architecture("MiMoV2FlashForCausalLM", mixtures.mimo2),
    "minimax-01": Architecture(
        "MiniMaxForCausalLM", hybrids.minimax_01, dataclasses.replace(_LAYOUT, recurrence=minimax_tensors)
    ),
    "eurobert": Architecture("EuroBertModel", encoders.eurobert),
    "gemma-embedding": Architecture("Gemma3TextModel", encoders.gemma_embedding, has_whole_norms=True),
    "bert": Architecture("BertModel", encoders.bert, _BERT),
    "nomic-bert": Architecture("NomicBertModel", encoders.nomic_bert, _NOMIC_BERT),
    "nomic-bert-moe": Architecture("NomicBertModel", encoders.nomic_bert, _NOMIC_BERT),
    "jina-bert-v2": Architecture("JinaBertModel", encoders.jina_bert_v2, dataclasses.replace(_BERT, gate_up="ffn_up")),
    "modern-bert": Architecture(
        "ModernBertModel", encoders.modern_bert, dataclasses.replace(_JOINED_QKV, gate_up="ffn_up")
    ),
}
# Models that GGUF names as it does others.
MIXTRAL, OLMO3, DEEPSEEK_V2 = "llama with experts", "olmo2 with windows", "deepseek2 with softmax"
FALCON_MAMBA = "mamba with norms"
GRANITE_SWA_MOE = "granite_swa with experts"
CLASSIFIER = "bert with a classifier"
_ALL = {
    **ARCHITECTURES,
    MIXTRAL: Architecture("MixtralForCausalLM", plain("mixtral", sliding_window=None), is_turned=True),
    OLMO3: Architecture("Olmo3ForCausalLM", plain("olmo3", with_windows)),
    DEEPSEEK_V2: Architecture("DeepseekV2ForCausalLM", latent.deepseek_v2, _LATENT),
    FALCON_MAMBA: Architecture("FalconMambaForCausalLM", hybrids.falcon_mamba, _SCAN),
    GRANITE_SWA_MOE: dataclasses.replace(ARCHITECTURES["granite_swa"], published="GraniteMoeSWAForCausalLM"),
    CLASSIFIER: Architecture("BertForSequenceClassification", encoders.bert, _BERT),
}


def published_architectures() -> set[str]:
    """Return the architectures of config.json whose GGUF files are read."""
    return {architecture.published for architecture in _ALL.values()}


def architecture_name(metadata: Metadata) -> str:
    """Return the name of the architecture of a file for :func:`architecture_of`."""
    name = metadata.architecture
    if name == "llama" and metadata.get("expert_count"):
        return MIXTRAL
    if name == "granite_swa" and metadata.get("expert_count"):
        return GRANITE_SWA_MOE
    if name == "deepseek2" and metadata.get("expert_gating_func", 1) == 1:
        return DEEPSEEK_V2
    if name == "mamba" and metadata.get("ssm.dt_b_c_rms"):
        return FALCON_MAMBA
    if encoders.has_classifier(metadata):
        return CLASSIFIER
    return OLMO3 if name == "olmo2" and metadata.get("attention.sliding_window") else name


def architecture_of(name: str) -> Architecture:
    """Return an architecture by GGUF's name, or :data:`MIXTRAL` or another of such names.

    Raises `UnsupportedModelError` if its files are not read.
    """
    if name == "clip":
        raise UnsupportedModelError(
            "the GGUF file is a vision tower: name the model's own file, alongside which it is found"
        )
    if name not in _ALL:
        raise UnsupportedModelError(
            f"GGUF files of architecture {name or '(none named)'} are not read; those read are "
            f"{', '.join(ARCHITECTURES)}: take the model as safetensors (docs/reference/supported-models.md)"
        )
    return _ALL[name]
