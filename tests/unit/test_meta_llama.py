"""Llama in Meta's own layout: the model is the one that Meta's formulas compute from those files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.convert import convert
from lmdeploy.turbomind.engine_dir import CheckpointError, resolve
from lmdeploy.turbomind.rewritten import readable_checkpoint
from tests.support.manifest_weights import load_weights
from tests.support.published_tokenizers import byte_ranks, train_pieces, write_ranks

Weights = dict[str, torch.Tensor]
PARAMS: dict[str, Any] = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5, "vocab_size": -1}
HEAD, INNER = 8, 48
# The dimension of each matrix that the files of a model parallel group share out.
SHARED = {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1, "output": 0}


def random_weights(vocab: int) -> Weights:
    generator = torch.Generator().manual_seed(0)
    kv = PARAMS["n_kv_heads"] * HEAD
    shapes = {"tok_embeddings": (vocab, 32), "output": (vocab, 32), "norm": (32,)}
    for layer in range(PARAMS["n_layers"]):
        inner = {
            "attention.wq": (32, 32), "attention.wk": (kv, 32), "attention.wv": (kv, 32), "attention.wo": (32, 32),
            "feed_forward.w1": (INNER, 32), "feed_forward.w3": (INNER, 32), "feed_forward.w2": (32, INNER),
            "attention_norm": (32,), "ffn_norm": (32,),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in inner.items()}
    return {f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def write(directory: Path, weights: Weights, shards: int, embedding_dimension: int = 1, **params: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "params.json").write_text(json.dumps(PARAMS | params))
    for number in range(shards):
        part = {"rope.freqs": torch.ones(HEAD // 2)}
        for name, tensor in weights.items():
            key = name.split(".")[-2]
            dimension = embedding_dimension if key == "tok_embeddings" else SHARED.get(key)
            part[name] = tensor if dimension is None else tensor.chunk(shards, dimension)[number].clone()
        torch.save(part, directory / f"consolidated.{number:02}.pth")
    return directory


@pytest.fixture
def llama2(tmp_path: Path) -> Path:
    """A checkpoint of two files, with a SentencePiece tokenizer."""
    directory = tmp_path / "llama-2-tiny-chat"
    directory.mkdir()
    train_pieces(directory)
    return write(directory, random_weights(512), 2)


def logits_by_metas_formulas(weights: Weights, ids: list[int], theta: float = 10000.0) -> torch.Tensor:
    """Return the logits of every position: neighbouring numbers of a head are a complex one, which is turned."""
    heads, kv_heads = PARAMS["n_heads"], PARAMS["n_kv_heads"]
    length = len(ids)
    frequencies = 1.0 / theta ** (torch.arange(0, HEAD, 2).float() / HEAD)
    turns = torch.polar(torch.ones(length, HEAD // 2), torch.outer(torch.arange(length).float(), frequencies))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + PARAMS["norm_eps"]) * weights[f"{name}.weight"]

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(length, -1, HEAD // 2, 2).contiguous())
        return torch.view_as_real(pairs * turns[:, None]).flatten(2)

    x = weights["tok_embeddings.weight"][ids]
    for layer in range(PARAMS["n_layers"]):
        at = f"layers.{layer}."
        q, k, v = (norm(x, f"{at}attention_norm") @ weights[f"{at}attention.w{name}.weight"].T for name in "qkv")
        q, k, v = turned(q), turned(k), v.view(length, kv_heads, HEAD)
        k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD**0.5
        scores += torch.full((length, length), float("-inf")).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)
        x = x + mixed @ weights[f"{at}attention.wo.weight"].T
        inner = norm(x, f"{at}ffn_norm")
        gate = torch.nn.functional.silu(inner @ weights[f"{at}feed_forward.w1.weight"].T)
        x = x + (gate * (inner @ weights[f"{at}feed_forward.w3.weight"].T)) @ weights[f"{at}feed_forward.w2.weight"].T
    return norm(x, "norm") @ weights["output.weight"].T


def test_the_rewritten_model_computes_what_metas_formulas_do(llama2: Path) -> None:
    ids = [1, 7, 300, 42, 9, 9, 511, 20]
    model = AutoModelForCausalLM.from_pretrained(readable_checkpoint(llama2))
    with torch.no_grad():
        got = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(got, logits_by_metas_formulas(random_weights(512), ids), rtol=1e-4, atol=1e-4)


def test_the_engine_is_given_the_same_weights_however_many_files_there_are(llama2: Path, tmp_path: Path) -> None:
    engine = resolve(llama2)
    expected = load_weights(engine)
    for shards, dimension in ((1, 1), (2, 0)):
        other = tmp_path / f"{shards}-{dimension}" / llama2.name
        other.mkdir(parents=True)
        (other / "tokenizer.model").write_bytes((llama2 / "tokenizer.model").read_bytes())
        got = load_weights(resolve(write(other, random_weights(512), shards, dimension)))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in expected)
    spec = engine.spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (4, 2, HEAD, INNER)
    assert (spec.bos_token_id, spec.eos_token_ids, spec.max_position_embeddings) == (1, (2,), 4096)
    assert spec.model_name == llama2.name


def test_the_format_can_be_named_and_a_wrong_one_is_refused(llama2: Path, tmp_path: Path) -> None:
    workspace = convert(str(llama2), tmp_path / "workspace", model_format="meta_llama")
    manifest = json.loads((workspace / "turbomind" / "1" / "manifest.json").read_text())
    assert manifest["weight_format"] == "meta_llama"
    with pytest.raises(ValueError, match="model_format is awq, but the checkpoint's weights are meta_llama"):
        convert(str(llama2), tmp_path / "other", model_format="awq")


def test_a_sentencepiece_tokenizer_puts_bos_before_a_text(llama2: Path) -> None:
    tokenizer = Tokenizer(str(resolve(llama2).path))
    ids = tokenizer.encode("Call me Ishmael.")
    assert ids[0] == tokenizer.bos_token_id == 1
    assert tokenizer.decode(ids) == "Call me Ishmael."


def test_ranks_are_read_with_the_special_tokens_of_llama_3(tmp_path: Path) -> None:
    directory = tmp_path / "Llama-3.1-tiny-Instruct"
    directory.mkdir()
    ranks = byte_ranks()
    write_ranks(directory / "tokenizer.model", ranks)
    write(directory, random_weights(len(ranks) + 256), 2, 0, rope_theta=500000.0, use_scaled_rope=True)
    engine = resolve(directory)
    tokenizer = Tokenizer(str(engine.path))
    first = len(ranks)
    assert tokenizer.encode("<|start_header_id|>Hi 12345<|eot_id|>")[:2] == [first, first + 6]
    assert tokenizer.encode("<|eot_id|>", add_bos=False) == [first + 9]
    assert tokenizer.vocab_size == first + 256
    assert engine.spec.eos_token_ids == (first + 1, first + 8, first + 9)
    assert engine.spec.max_position_embeddings == 131072
    [rope] = engine.spec.ropes
    assert rope.theta == 500000.0
    # Low frequencies are eight times as low, as Llama 3.1 has it.
    assert rope.inv_freq[-1] == pytest.approx(500000.0 ** -(6 / 8) / 8)


def test_missing_files_and_shares_that_do_not_fit_are_named(llama2: Path) -> None:
    whole = llama2 / "consolidated.00.pth"
    content = whole.read_bytes()
    whole.unlink()
    with pytest.raises(CheckpointError, match=r"consolidated.00.pth is missing, but there is consolidated.01.pth"):
        resolve(llama2)
    whole.write_bytes(content)
    part = torch.load(whole, weights_only=True)
    torch.save({name: tensor for name, tensor in part.items() if "wk" not in name}, whole)
    with pytest.raises(CheckpointError, match=r"consolidated.00.pth lacks tensor layers.0.attention.wk.weight"):
        resolve(llama2)
    torch.save(part | {"layers.0.attention.wo.weight": torch.ones(7, 16)}, whole)
    with pytest.raises(CheckpointError, match=r"shares of layers.0.attention.wo.weight do not fit .*: \[7, 16\]"):
        resolve(llama2)
    (llama2 / "params.json").write_text('{"dim": 30, "n_heads": 4, "n_layers": 0}')
    (llama2 / "tokenizer.model").unlink()
    with pytest.raises(CheckpointError) as caught:
        resolve(llama2)
    assert [problem.partition(",")[0] for problem in caught.value.problems] == [
        "params.json: n_layers must be a number above 0",
        "params.json: norm_eps must be a number above 0",
        "tokenizer.model is missing (in Meta's downloads it may be one folder above)",
    ]
