"""Tokenizers out of GGUF metadata read texts as the originals: SentencePiece itself, and classes of `transformers`."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer, Qwen2Tokenizer, Qwen3_5Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

from lmdeploy.errors import CheckpointError
from lmdeploy.model import chat_template_for
from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.tokenizer_readers.gguf import write_tokenizer
from tests.support.gguf_files import byte_level_metadata, write_metadata

TEXTS = [
    "Hello, world!  How are  you?",
    "\n\n\tdef f(x):\n        return x ** 2  # 12345 + 67\r\n",
    "Größe, naïve café, Ångström, İstanbul",
    "日本語のテキスト、한국어, العربية, हिन्दी",
    "emoji 👩‍👩‍👧‍👦 🇩🇪 and \u200b zero width, e\u0301 composed",
    "I'll we've DON'T can't 1,234,567.89 ... --- ___",
    "   leading and trailing   ",
    "",
]


@pytest.fixture(scope="module")
def pieces() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model of 600 pieces, trained on the licences and guides of this repository."""
    root = Path(__file__).parents[2]
    lines = [line for name in ("README.md", "CONTRIBUTING.md") for line in (root / name).read_text().splitlines()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def metadata_of(pieces: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    def kind(token: int) -> int:
        if pieces.is_unknown(token):
            return 2
        if pieces.is_control(token):
            return 3
        if pieces.is_byte(token):
            return 6
        return 4 if pieces.id_to_piece(token) == "<tool>" else 1

    count = pieces.get_piece_size()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [pieces.id_to_piece(token) for token in range(count)],
        "tokenizer.ggml.scores": [pieces.get_score(token) for token in range(count)],
        "tokenizer.ggml.token_type": [kind(token) for token in range(count)],
        "tokenizer.ggml.unknown_token_id": pieces.unk_id(),
        "tokenizer.ggml.bos_token_id": pieces.bos_id(),
        "tokenizer.ggml.eos_token_id": pieces.eos_id(),
    }


def with_merges(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return SentencePiece's metadata as Gemma 4's files have them: merges in order, and scores that say nothing."""
    pairs = list(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True))
    vocabulary = {text: token for token, (text, _) in enumerate(pairs)}
    merges = generate_merges(vocabulary, dict(pairs))
    return metadata | {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.scores": [-1000.0] * len(pairs),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    }


@pytest.mark.parametrize("change", [dict, with_merges])
def test_sentencepiece_is_read_as_sentencepiece_does(
    pieces: sentencepiece.SentencePieceProcessor, change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    write_tokenizer(change(metadata_of(pieces)), tmp_path)
    tokenizer = Tokenizer(str(tmp_path))
    for text in TEXTS:
        assert tokenizer.encode(text, add_bos=False) == pieces.encode(text), text
        assert tokenizer.encode(text, add_bos=True)[0] == pieces.bos_id()
        assert tokenizer.decode(pieces.encode(text)) == text
    assert pieces.piece_to_id("<tool>") in tokenizer.encode("call <tool> now", add_bos=False)


@pytest.mark.parametrize(("pre", "published"), [("qwen2", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer)])
def test_words_are_cut_as_qwen_cuts_them(pre: str, published: Any, tmp_path: Path) -> None:
    metadata = byte_level_metadata(default_model_dir(), pre)
    write_tokenizer(metadata, tmp_path)
    content = json.loads((default_model_dir() / "tokenizer.json").read_text())["model"]
    original = published(vocab=content["vocab"], merges=[tuple(merge) for merge in content["merges"]])
    found = Tokenizer(str(tmp_path))
    for text in TEXTS:
        assert found.encode(text, add_bos=False) == original.encode(text, add_special_tokens=False), text


def test_words_are_cut_as_gpt2_cuts_them(tmp_path: Path) -> None:
    write_tokenizer(byte_level_metadata(default_model_dir(), "gpt-2"), tmp_path)
    original = AutoTokenizer.from_pretrained(default_model_dir())
    found = Tokenizer(str(tmp_path))
    for text in [*TEXTS, "<|im_start|>user\nHi<|im_end|>\n"]:
        ids = original.encode(text, add_special_tokens=False)
        assert found.encode(text, add_bos=False) == ids
        assert found.decode(ids, skip_special_tokens=False) == original.decode(ids, clean_up_tokenization_spaces=False)


def test_smollm_cuts_digits_off_before_spaces_are_words(tmp_path: Path) -> None:
    found = []
    for pre in ("smollm", "gpt-2"):
        write_tokenizer(byte_level_metadata(default_model_dir(), pre), tmp_path)
        tokenizer = Tokenizer(str(tmp_path))
        found.append([tokenizer.decode([token]) for token in tokenizer.encode("x    2024", add_bos=False)])
    assert found == [["x", "    ", *"2024"], ["x", "   ", " ", *"2024"]]


# Texts of a vocabulary, the tokens that metadata name, what the template writes; the ends that are published.
ENDS: dict[str, tuple[list[str], dict[str, int], str, list[int]]] = {
    "Qwen2.5": (["<|endoftext|>", "<|im_end|>"], {"eos": 1, "padding": 0}, "<|im_start|><|im_end|>", [1, 0]),
    "Qwen2.5 base": (["<|endoftext|>", "<|im_end|>"], {"eos": 0}, "", [0]),
    "Llama 3.1": (["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], {"eos": 2}, "<|eom_id|><|eot_id|>", [2, 0, 1]),
    "Gemma 3, eos a document's end": (["<eos>", "<end_of_turn>"], {"eos": 0}, "<end_of_turn>", [0, 1]),
    "Gemma 3, eos a turn's end": (["<eos>", "<end_of_turn>"], {"eos": 1}, "<end_of_turn>", [1, 0]),
    "Gemma 4": (["<eos>", "<|tool_response>", "<turn|>"], {"eos": 2}, "<turn|><|tool_response>", [2, 0, 1]),
    "GPT-OSS": (["<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"], {"eos": 1}, "<|end|><|call|>", [1, 0, 3]),
    "Phi-3": (["<|endoftext|>", "<|assistant|>", "<|end|>"], {"eos": 0}, "<|assistant|><|end|>", [0, 2]),
    "GLM-Z1": (["<|endoftext|>", "<|user|>"], {"eos": 0, "eot": 1}, "<|user|>", [0, 1]),
    "a tool's end": (["</s>", "<call_end>", "<msg_end>"], {"eos": 0, "eom": 2}, "", [0, 2]),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_published_ends_of_a_response_are_found(
    name: str, pieces: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    texts, ids, template, ends = ENDS[name]
    metadata, count = metadata_of(pieces) | {"tokenizer.chat_template": template}, pieces.get_piece_size()
    more = {"tokens": texts, "token_type": [3] * len(texts), "scores": [0.0] * len(texts)}
    metadata |= {f"tokenizer.ggml.{key}": metadata[f"tokenizer.ggml.{key}"] + values for key, values in more.items()}
    metadata |= {f"tokenizer.ggml.{key}_token_id": count + token for key, token in ids.items()}
    expected = [count + token for token in ends]
    assert write_tokenizer(metadata, tmp_path)["eos_token_id"] == (expected if len(ends) > 1 else expected[0])


def test_templates_with_names_are_kept_as_transformers_keeps_them(tmp_path: Path) -> None:
    named = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools | tojson }}{{ messages[0].content }}"}
    keys = {"tokenizer.chat_template.tool_use": named["tool_use"], "tokenizer.chat_templates": ["tool_use"]}
    metadata = byte_level_metadata(default_model_dir()) | {"tokenizer.chat_template": named["default"]} | keys
    write_tokenizer(metadata, tmp_path)
    original, template = AutoTokenizer.from_pretrained(tmp_path), chat_template_for(str(tmp_path))
    assert Tokenizer(str(tmp_path)).chat_template == original.chat_template == named
    search = {"type": "function", "function": {"name": "search", "parameters": {}}}
    messages = [{"role": "user", "content": "Hi"}]
    for tools in (None, [search]):
        written = original.apply_chat_template(messages, tools, tokenize=False)
        assert template.render(messages, tools, True) == written


@pytest.mark.parametrize("change", [dict, with_merges])
def test_every_token_of_the_same_text_writes_it(
    pieces: sentencepiece.SentencePieceProcessor, change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    metadata = change(metadata_of(pieces))
    first, count = pieces.encode("the")[-1], pieces.get_piece_size()
    for name, more in {"tokens": [pieces.id_to_piece(first)] * 2, "token_type": [1, 1], "scores": [-1e9] * 2}.items():
        metadata[f"tokenizer.ggml.{name}"] = metadata[f"tokenizer.ggml.{name}"] + more
    write_tokenizer(metadata, tmp_path)
    tokenizer = Tokenizer(str(tmp_path))
    assert tokenizer.encode("the", add_bos=False) == pieces.encode("the")
    text = tokenizer.decode([first, first, first])
    assert tokenizer.decode([first, count, count + 1]) == text
    table = tokenizer.token_bytes().tokens
    assert table[first] == table[count] == table[count + 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"tokenizer.ggml.model": "rwkv"},
            "its tokenizer is of the kind 'rwkv'; those read are gpt2, llama, gemma4, bert and t5",
        ),
        ({"tokenizer.ggml.pre": "youtu"}, "cuts words as 'youtu' .tokenizer.ggml.pre.; those read are default, gpt-2"),
        (
            {"tokenizer.ggml.merges": []},
            "its tokenizer lacks tokenizer.ggml.merges, without which no text becomes the token 'ab'",
        ),
        ({"tokenizer.ggml.tokens": ["\u2581", "a", "ab"]}, "its tokenizer is SentencePiece's, but .* says gpt2"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "its tokenizer joins 'a zz', which are not tokens or do not make one"),
        ({"tokenizer.ggml.token_type": [1]}, "its tokenizer has 3 tokens and 1 types of tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens must be a list of str"),
    ],
)
def test_tokenizers_that_are_not_read_are_named(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
        "llama.context_length": 64,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    path = write_metadata(tmp_path / "m.gguf", "llama", metadata | change)
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer(str(path))
