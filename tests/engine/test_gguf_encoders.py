"""Encoders in GGUF files alongside llama.cpp, on files that its own converter writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmdeploy
from lmdeploy.model_metadata.pooling import unit
from lmdeploy.offline.texts import states_of
from tests.engine.test_gguf_architectures import ENCODERS, converted, run
from tests.support.tiny_encoders import make_encoder, texts_of, write_modules
from tools.bench.peers.install import llama_sources
from tools.bench.peers.places import llama_tool

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
    "modern-bert": {"layer_norm_eps": 1e-5, "global_attn_every_n_layers": 3},
}
# llama.cpp looks GELU up in a table of halves, approximated by a hyperbolic tangent.
TOLERANCE, WITH_GELU = 1e-3, 1e-2


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    if not llama_tool("llama-bench").exists():
        pytest.skip("llama.cpp is not installed; run `make peers`")
    source, file = tmp_path / "source", tmp_path / "model.gguf"
    make_encoder(source, ENCODERS[name])
    write_modules(source, "cls_token" if name == "bert" else "mean_tokens")
    config = json.loads((source / "config.json").read_text()) | PUBLISHED.get(name, {})
    (source / "config.json").write_text(json.dumps(config))
    settings = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": "BertTokenizer"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    converted(source, file)
    texts: list[Any] = texts_of((1, 20, 40))
    if name == "modern-bert":  # published with a byte-level tokenizer
        texts = [[2, *(int(word[1:]) + 5 for word in text.split()), 3] for text in texts]
    run(
        "llama_cpp_vectors.py",
        str(llama_sources().parent.parent),
        str(file),
        json.dumps(texts),
        str(tmp_path / "out.npy"),
    )
    theirs = np.load(tmp_path / "out.npy")
    with lmdeploy.pipeline(str(file)) as pipe:
        ours = (
            unit(states_of(pipe.engine, [(ids, None) for ids in texts])) if name == "modern-bert" else pipe.embed(texts)
        )
    assert np.abs(ours - theirs).max() <= (TOLERANCE if name == "nomic-bert" else WITH_GELU) * np.abs(theirs).max()
