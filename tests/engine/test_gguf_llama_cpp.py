"""GGUF files alongside llama.cpp itself: logits, words of texts, and vectors of encoders.

``make peers`` builds llama.cpp and writes the files; where it has not, these are skipped by name. llama.cpp rounds
activations to 8 bits in groups of 32, as this engine does, and adds in another order; with 16-bit weights it computes
in half precision. The numbers of the default model's logits spread by about 3.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

import lmdeploy
from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.model_metadata.pooling import unit
from lmdeploy.offline.texts import states_of
from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.tokenizer_readers.gguf import write_tokenizer
from lmdeploy.tokenizer_readers.gguf_words import WORDS
from tests.engine.test_gguf_architectures import ENCODERS, converted
from tests.support.gguf_files import byte_level_metadata, write_gguf, write_metadata
from tests.support.llama_cpp import logits_of_llama_cpp, require_llama_cpp, tokens_of_llama_cpp, vectors_of_llama_cpp
from tests.support.pieces_tokenizer import make_pieces
from tests.support.tiny_encoders import make_encoder, make_nomic_experts, texts_of, write_modules
from tests.support.tiny_models import make_small
from tools.bench.peers.paths import GGUF_TYPES, gguf, why_missing

TEXT = (
    "The lighthouse stood at the end of the pier. Every evening its keeper climbed 212 steps, lit the lamp and wrote "
    "down which ships had passed: three from Lisbon, one from Oslo, and a small yacht whose name nobody could read."
)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return Tokenizer(str(default_model_dir())).encode(TEXT)


@pytest.fixture(params=sorted(GGUF_TYPES))
def file(request: pytest.FixtureRequest) -> Path:
    if reason := why_missing("llama.cpp", default_model_dir(), request.param):
        pytest.skip(reason)
    return gguf(default_model_dir(), request.param)


@pytest.fixture
def reference(file: Path, tokens: list[int], tmp_path: Path) -> torch.Tensor:
    return logits_of_llama_cpp(file, tmp_path / "logits.npy", tokens)


@pytest.mark.alike(max_cases=2)
def test_logits_are_those_of_llama_cpp(file: Path, reference: torch.Tensor, tokens: list[int]) -> None:
    with pipeline(str(file), backend_config=TurbomindEngineConfig(cache_max_entry_count=64)) as model:
        (native,) = model.get_logits([tokens])
    native, reference = (x.float() - x.float().mean(-1, keepdim=True) for x in (torch.as_tensor(native), reference))
    error = (native - reference).pow(2).mean().sqrt() / reference.pow(2).mean().sqrt()
    kl = torch.nn.functional.kl_div(
        native.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="none"
    )
    agreement = (native.argmax(-1) == reference.argmax(-1)).float().mean()
    print(f"{file.name}: error {error:.4f}, KL {kl.sum(-1).mean():.2e}, first choices {agreement:.2f}")
    assert error < 0.05
    assert kl.sum(-1).mean() < 0.02
    assert agreement > 0.9


SIZES = {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32}
NUMBERS = {**SIZES, "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}
TEXTS = [
    "Hello, world!  How are  you?",
    "\n\n\tdef f(x):\n        return x ** 2  # 12345 + 67\r\n",
    "Größe, naïve café, Ångström, İstanbul",
    "日本語のテキスト、한국어, العربية",
    "I'll we've DON'T can't 1,234,567.89 ... --- ___",
    "   leading and trailing   ",
    "中文abc123 日本カタカナxyz, 4567890 e.g. foo_bar->baz() {x}\n\n  y",
]
# One name of each way. llama.cpp has another one where a file names none, no GPT-2 by its older name, and a regular
# expression in place of Falcon's steps, which cuts Arabic in other places.
NAMES = list(
    {words: name for name, words in reversed(WORDS.items()) if name not in {"default", "gpt2", "falcon"}}.values()
)


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("name", NAMES)
def test_words_are_cut_as_llama_cpp_cuts_them(name: str, tmp_path: Path) -> None:
    require_llama_cpp()
    metadata = byte_level_metadata(default_model_dir(), name)
    write_tokenizer(metadata, tmp_path)
    sizes = {f"llama.{key}": value for key, value in NUMBERS.items()}
    file = write_metadata(tmp_path / "model.gguf", "llama", metadata | sizes)
    tokenizer = Tokenizer(str(tmp_path))
    reference = tokens_of_llama_cpp(file, TEXTS)
    assert [tokenizer.encode(text, add_bos=False) for text in TEXTS] == reference


# As configs were before version 5 of `transformers`, and what the converter asks of them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "nomic-bert": {
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "activation_function": "swiglu",
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": 72,
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000.0,
    },
    "nomic-bert-moe": {
        "causal": False,
        "prenorm": False,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "left_out": [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
        ],
    },
    "modern-bert": {"layer_norm_eps": 1e-5, "global_attn_every_n_layers": 3},
    "eurobert": {"clf_pooling": "mean", "left_out": ["classifier_pooling"]},
}
WITHOUT_WORDS = {"modern-bert", "eurobert", "gemma-embedding"}  # published with a tokenizer of bytes or pieces
# llama.cpp looks GELU up in a table of halves, approximated by a hyperbolic tangent.
TOLERANCE, WITH_GELU = 1e-3, 1e-2


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    require_llama_cpp()
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    # llama.cpp takes every sixth layer to see everything, and needs one that does.
    if name == "nomic-bert-moe":
        make_nomic_experts(source)
    else:
        make_encoder(source, ENCODERS[name], **({"num_hidden_layers": 6} if name == "gemma-embedding" else {}))
    write_modules(source, "cls_token" if name == "bert" else "mean_tokens")
    config = json.loads((source / "config.json").read_text()) | PUBLISHED.get(name, {})
    (source / "config.json").write_text(json.dumps(config))
    settings = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": "BertTokenizer"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    converted(source, file)
    texts: list[Any] = texts_of((1, 20, 40))
    if name in WITHOUT_WORDS:
        texts = [[2, *(int(word[1:]) + 5 for word in text.split()), 3] for text in texts]
    reference = vectors_of_llama_cpp(file, texts)
    with lmdeploy.pipeline(str(file)) as pipe:
        native = (
            unit(states_of(pipe.engine, [(ids, None) for ids in texts])) if name in WITHOUT_WORDS else pipe.embed(texts)
        )
    assert (
        np.abs(native - reference).max() <= (TOLERANCE if name == "nomic-bert" else WITH_GELU) * np.abs(reference).max()
    )


def test_xlm_roberta_reads_pieces_as_llama_cpp_does(tmp_path: Path) -> None:
    require_llama_cpp()
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    texts: list[Any] = make_pieces(source, 200)
    texts = [*texts[:6], f"  {texts[6]}   {texts[7]} ", "\uff21\uff22 \u00bd \u2126", "\u4e00 abc"]  # to be normalized
    make_encoder(source, "XLMRoberta", vocab_size=200, tokenizer=False)
    write_modules(source, "mean_tokens")
    converted(source, file)
    reference = vectors_of_llama_cpp(file, texts)
    with lmdeploy.pipeline(str(file)) as pipe, lmdeploy.pipeline(str(source)) as published:
        assert pipe.tokenizer.encode_bare(texts) == published.tokenizer.encode_bare(texts)
        assert np.abs(pipe.embed(texts) - reference).max() <= WITH_GELU * np.abs(reference).max()


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("outtype", ["f32", "bf16", "q8_0"])
def test_rerankers_score_as_llama_cpp_does(outtype: str, tmp_path: Path) -> None:
    require_llama_cpp()
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    texts = make_pieces(source, 200)
    sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 96}  # whole blocks of codes
    make_encoder(source, "XLMRoberta", "ForSequenceClassification", tokenizer=False, **sizes)
    converted(source, file, outtype)
    pairs = list(zip(texts[:3], texts[3:6], strict=True))
    with lmdeploy.pipeline(str(file)) as pipe:
        native = pipe.score(pairs)
        frame = pipe.tokenizer.frame(is_pair=True)
        ids = [frame.pair(*pipe.tokenizer.encode_bare(list(pair)))[0] for pair in pairs]
    assert ids[0].count(2) == 3  # </s> after each text, and between them once more
    reference = vectors_of_llama_cpp(file, ids, "1")[:, 0]
    assert np.abs(native - 1 / (1 + np.exp(-reference))).max() <= 2 * WITH_GELU
    if outtype == "f32":
        with lmdeploy.pipeline(str(source)) as published:
            assert np.abs(published.score(pairs) - native).max() <= 1e-4


def test_a_decoder_makes_vectors_as_its_file_says(tmp_path: Path) -> None:
    """As Qwen3-Embedding is published: the last token's hidden state, of length 1."""
    source, file = make_small(tmp_path / "source", "Qwen3ForCausalLM", head_dim=16), tmp_path / "model.gguf"
    write_gguf(source, file, "qwen3", extra={"pooling_type": 3})
    model = AutoModel.from_pretrained(source, dtype=torch.float32).eval()
    config = lmdeploy.TurbomindEngineConfig(dtype="float32", session_len=128, cache_max_entry_count=8)
    with lmdeploy.pipeline(str(file), backend_config=config) as pipe:
        (vector,) = pipe.embed(["how do you do"])
        ids = pipe.tokenizer.encode("how do you do")
    with torch.no_grad():
        last = model(torch.tensor([ids])).last_hidden_state[0, -1]
    assert np.allclose(vector, last / last.norm(), atol=1e-5)
