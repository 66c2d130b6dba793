"""Tokenizers that families publish as code, with small vocabularies of the same kinds.

Texts, ids and order of the special tokens are the published ones; the code alongside them must not be run.
"""

import base64
import json
from pathlib import Path
from typing import Any

import sentencepiece

from lmdeploy.paths import default_model_dir
from lmdeploy.token_bytes import byte_level_alphabet

SAMPLES = [
    "Call me Ishmael.  Some years ago--never mind how long precisely--",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "IT'S 12345678 o'clock, they'll say\r\n\r\n \t 你好，世界 ünïcode ÿ",
    "aaaaaaaaaaaaaaa         bababababab ---------- \n\n\n\n",
    "👩‍👩‍👧‍👦 é e\u0301 Ａ philosophy sop eop",
]
GLM4_SPECIAL = [
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>",
]  # fmt: skip
KIMI_SPECIAL = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>"]
CHATGLM2_SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
CHATGLM3_SPECIAL = [*CHATGLM2_SPECIAL, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]


def byte_ranks() -> dict[bytes, int]:
    """Return the 256 bytes and the first merges of the default model, ranked in the order it learnt them."""
    merges = json.loads((default_model_dir() / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
    byte_of = byte_level_alphabet()
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in (pair.split(" ") if isinstance(pair, str) else pair for pair in merges[:8000]):
        tokens.append(bytes(byte_of[char] for char in left + right))
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


def write_tokenizer(directory: Path, class_name: str, **content: Any) -> None:
    """Write the settings of a tokenizer whose class is code of the checkpoint."""
    module = "tokenization_own"
    (directory / f"{module}.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    auto_map = {"AutoTokenizer": [f"{module}.{class_name}", None]}
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": auto_map, "tokenizer_class": class_name, **content}), encoding="utf-8"
    )


def write_kimi(directory: Path, ranks: dict[bytes, int], **content: Any) -> None:
    """Write Kimi K2's files."""
    settings = {"eos_token": "[EOS]", "added_tokens_decoder": added(KIMI_SPECIAL, len(ranks))}
    write_tokenizer(directory, "TikTokenTokenizer", **settings | content)
    write_ranks(directory / "tiktoken.model", ranks)


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """Write ranks as ``tiktoken`` reads them."""
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))


def added(texts: list[str], first: int) -> dict[str, dict[str, Any]]:
    """Return ``added_tokens_decoder`` of tokenizer_config.json."""
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {str(first + i): {"content": text, **flags} for i, text in enumerate(texts)}


def train_pieces(directory: Path, **changes: Any) -> None:
    """Write a SentencePiece model of the samples, which knows ``sop`` as a piece."""
    corpus = directory / "corpus.txt"
    corpus.write_text("\n".join([*SAMPLES, "xsop ysop zsop"] * 20), encoding="utf-8")
    settings = {
        "vocab_size": 500, "hard_vocab_limit": False, "model_type": "bpe", "byte_fallback": True,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "user_defined_symbols": ["sop"],
        "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "minloglevel": 2,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(directory / "tokenizer"), **settings | changes
    )


def write_qwen(directory: Path, ranks: dict[bytes, int], **content: Any) -> None:
    """Write Qwen 1's files."""
    write_tokenizer(directory, "QWenTokenizer", **content)
    write_ranks(directory / "qwen.tiktoken", ranks)


def write_glm4(directory: Path, ranks: dict[bytes, int]) -> None:
    """Write GLM-4's files, special tokens after the ranks. A response ends with ``<|endoftext|>`` or ``<|user|>``."""
    template = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}<|assistant|>"
    write_tokenizer(
        directory,
        "ChatGLM4Tokenizer",
        added_tokens_decoder=added(GLM4_SPECIAL, len(ranks)),
        eos_token="<|endoftext|>",
        chat_template=template,
    )
    write_ranks(directory / "tokenizer.model", ranks)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [len(ranks), len(ranks) + 7]}))


def write_chatglm(directory: Path, name: str) -> None:
    """Write the files of ChatGLM 2 or 3, whose tokenizer calls itself by a name."""
    train_pieces(directory)
    write_tokenizer(directory, "ChatGLMTokenizer", name_or_path=name)
