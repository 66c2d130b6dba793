"""An engine directory's tokenizer reads text as ``transformers`` does, without importing it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lmdeploy.model_metadata.end_tokens import end_tokens
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.tokenizer_readers.resolved import is_resolved
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.published_tokenizers import (
    SAMPLES,
    byte_ranks,
    train_pieces,
    write_glm4,
    write_qwen,
    write_tokenizer,
)

SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<|endoftext|>", "[gMASK]", "<|user|>", "<FILL_ME>"]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab 1'\n▁", max_size=40),
    st.lists(st.sampled_from([*SAMPLES, *SPECIAL, " ", "\n"]), max_size=6).map("".join),
)
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json", "generation_config.json")


def write_default(directory: Path, source: Path) -> None:
    for name in FILES:
        shutil.copyfile(source / name, directory / name)


def write_truncating(directory: Path, source: Path) -> None:
    """Lengths in `tokenizer.json` are no part of how a text is read."""
    write_default(directory, source)
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 5}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(content))


def write_llama(directory: Path, source: Path, **settings: object) -> None:
    """A SentencePiece model, of which ``transformers`` makes a tokenizer with the settings' bos."""
    train_pieces(directory)
    content = {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(content | settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))


def write_llama_with_eos(directory: Path, source: Path) -> None:
    write_llama(directory, source, add_eos_token=True, additional_special_tokens=["<|user|>"])


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "byte-level": write_default,
    "truncating": write_truncating,
    "sentencepiece": write_llama,
    "sentencepiece with eos": write_llama_with_eos,
    "qwen": lambda directory, source: write_qwen(directory, byte_ranks(), model_max_length=8192),
    "glm4": lambda directory, source: write_glm4(directory, byte_ranks()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_tokenizer_reads_and_writes_as_transformers_does(
    kind: str, default_model_dir: Path, tmp_path: Path
) -> None:
    source, stored = tmp_path / "source", tmp_path / "stored"
    source.mkdir()
    KINDS[kind](source, default_model_dir)
    original = Tokenizer(str(source))
    shutil.copytree(source, stored)
    original.store(stored)
    assert is_resolved(stored)
    tokenizer, reference = Tokenizer(str(stored)), original.hf_tokenizer
    assert not isinstance(tokenizer._tokenizer, type(reference))

    @settings(max_examples=300)
    @given(text=TEXTS)
    def check(text: str) -> None:
        ids = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_bos=False) == ids
        assert tokenizer.encode(text) == original.encode(text)
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected

    check()
    assert tokenizer.vocab_size == max(reference.get_vocab().values()) + 1
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (reference.bos_token_id, reference.eos_token_id)
    assert tokenizer.special_tokens == reference.special_tokens_map
    assert tokenizer.chat_template == reference.chat_template
    assert end_tokens(tokenizer) == end_tokens(original)
    assert tokenizer.token_bytes() == original.token_bytes()


def test_an_engine_directory_keeps_the_tokenizer_and_still_has_the_one_of_transformers(default_model_dir: Path) -> None:
    engine = resolve("")
    tokenizer = Tokenizer(str(engine.path))
    assert is_resolved(engine.path / "tokenizer")
    reference = AutoTokenizer.from_pretrained(default_model_dir)
    assert type(tokenizer.hf_tokenizer) is type(reference)
    assert tokenizer.hf_tokenizer.get_vocab() == reference.get_vocab()


@pytest.mark.parametrize("kind", ["InternLM2Tokenizer", "CodeLlamaTokenizer"])
def test_a_tokenizer_that_changes_texts_by_itself_is_left_to_transformers(kind: str, tmp_path: Path) -> None:
    if kind == "InternLM2Tokenizer":
        train_pieces(tmp_path)
        write_tokenizer(tmp_path, kind, bos_token="<s>", eos_token="</s>")
    else:
        write_llama(tmp_path, tmp_path, tokenizer_class=kind)
    tokenizer = Tokenizer(str(tmp_path))
    tokenizer.store(tmp_path)
    assert not is_resolved(tmp_path)
    assert Tokenizer(str(tmp_path)).encode("Call me") == tokenizer.encode("Call me")
