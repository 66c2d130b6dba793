"""Byte-level tokenizers of GGUF files cut texts into words as llama.cpp does, for each way of cutting them."""

from pathlib import Path

import pytest

from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.tokenizer_readers.gguf import write_tokenizer
from lmdeploy.tokenizer_readers.gguf_words import WORDS
from tests.support.gguf_files import byte_level_metadata, write_metadata
from tests.support.llama_cpp import require_llama_cpp, tokens_of_llama_cpp

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


@pytest.mark.alike(most=5)
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
