"""Tokenizers that families publish as code are read without it, and agree with the libraries that code calls.

Those are ``tiktoken`` for Qwen 1 and GLM-4, ``sentencepiece`` for ChatGLM 2 and 3. Their vocabularies here are small,
and made in the test; texts, ids and order of the special tokens are the published ones.
"""

import base64
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmdeploy.errors import CheckpointError
from lmdeploy.token_bytes import byte_level_alphabet
from lmdeploy.tokenizer import Tokenizer

SAMPLES = [
    "Call me Ishmael.  Some years ago--never mind how long precisely--",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "IT'S 12345678 o'clock, they'll say\r\n\r\n \t 你好，世界 ünïcode ÿ",
    "aaaaaaaaaaaaaaa         bababababab ---------- \n\n\n\n",
    "👩‍👩‍👧‍👦 é e\u0301 Ａ philosophy sop eop",
]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab 1'\n", max_size=40),
    st.text(alphabet=st.characters(max_codepoint=0x17F), max_size=60),
    st.lists(st.sampled_from(SAMPLES), max_size=3).map(" ".join),
)
EXAMPLES = 600

QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GLM4_WORDS = QWEN_WORDS.replace(r"\p{N}| ", r"\p{N}{1,3}| ")
GLM4_SPECIAL = [
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>",
]  # fmt: skip
CHATGLM2_SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
CHATGLM3_SPECIAL = [*CHATGLM2_SPECIAL, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
MARKS = [text for text in [*GLM4_SPECIAL, *CHATGLM3_SPECIAL] if not text.isalpha()]


def byte_ranks(default_model_dir: Path) -> dict[bytes, int]:
    """Return the 256 bytes and the first merges of the default model, ranked in the order it learnt them."""
    merges = json.loads((default_model_dir / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
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


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))


def added(texts: list[str], first: int) -> dict[str, dict[str, Any]]:
    """Return ``added_tokens_decoder`` of tokenizer_config.json."""
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {str(first + i): {"content": text, **flags} for i, text in enumerate(texts)}


@pytest.fixture(scope="module")
def ranks(default_model_dir: Path) -> dict[bytes, int]:
    return byte_ranks(default_model_dir)


@pytest.fixture(scope="module")
def qwen(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("qwen")
    write_tokenizer(directory, "QWenTokenizer", model_max_length=8192)
    write_ranks(directory / "qwen.tiktoken", ranks)
    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def glm4(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("glm4")
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
    return Tokenizer(str(directory))


def chatglm(directory: Path, **content: Any) -> Tokenizer:
    """Return a tokenizer of ChatGLM's kind with a SentencePiece model, which knows ``sop`` as a piece."""
    corpus = directory / "corpus.txt"
    corpus.write_text("\n".join([*SAMPLES, "xsop ysop zsop"] * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(directory / "tokenizer"), vocab_size=500, hard_vocab_limit=False,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, user_defined_symbols=["sop"], minloglevel=2,
    )  # fmt: skip
    write_tokenizer(directory, "ChatGLMTokenizer", **content)
    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def chatglm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return chatglm(tmp_path_factory.mktemp("glm2"), name_or_path="THUDM/chatglm2-6b")


@pytest.fixture(scope="module")
def chatglm3(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return chatglm(tmp_path_factory.mktemp("glm3"), name_or_path="THUDM/chatglm3-6b")


def pieces_of(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=f"{tokenizer._directory}/tokenizer.model")


def test_qwen_encodes_as_tiktoken_does(qwen: Tokenizer, ranks: dict[bytes, int]) -> None:
    special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    special |= {f"<|extra_{number}|>": 151646 + number for number in range(205)}
    reference = tiktoken.Encoding("qwen", pat_str=QWEN_WORDS, mergeable_ranks=ranks, special_tokens=special)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assert qwen.encode(text) == reference.encode(unicodedata.normalize("NFC", text), allowed_special="all")

    check()
    for text in [*SAMPLES, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|extra_204|><|endoftext|>"]:
        assert qwen.encode(text) == reference.encode(unicodedata.normalize("NFC", text), allowed_special="all")


def test_glm4_encodes_as_tiktoken_does_behind_its_prefix(glm4: Tokenizer, ranks: dict[bytes, int]) -> None:
    special = {text: len(ranks) + i for i, text in enumerate(GLM4_SPECIAL)}
    reference = tiktoken.Encoding("glm4", pat_str=GLM4_WORDS, mergeable_ranks=ranks, special_tokens=special)
    prefix = [special["[gMASK]"], special["<sop>"]]

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assert glm4.encode(text) == [*prefix, *reference.encode(text, allowed_special="all")]

    check()
    for text in [*SAMPLES, "<|user|>\nHi<|assistant|>"]:
        assert glm4.encode(text, add_bos=False) == reference.encode(text, allowed_special="all")


@pytest.mark.parametrize("generation", ["chatglm2", "chatglm3"])
def test_chatglm_encodes_as_sentencepiece_does_behind_its_prefix(
    request: pytest.FixtureRequest, generation: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(generation)
    reference = pieces_of(tokenizer)
    size = reference.get_piece_size()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assume(not any(mark in text for mark in MARKS))  # which SentencePiece does not know
        assert tokenizer.encode(text) == [size + 1, size + 3, *reference.encode(text)]

    check()
    assert reference.piece_to_id("sop") in tokenizer.encode("philosophy")


def test_special_tokens_of_chatglm_lie_behind_the_vocabulary(chatglm2: Tokenizer, chatglm3: Tokenizer) -> None:
    for tokenizer, special in ((chatglm2, CHATGLM2_SPECIAL), (chatglm3, CHATGLM3_SPECIAL)):
        size = pieces_of(tokenizer).get_piece_size()
        assert tokenizer.vocab_size == size + len(special)
        for i, text in enumerate(special):
            if not text.isalpha():
                assert tokenizer.encode(text, add_bos=False) == [size + i]
    pieces = pieces_of(chatglm3)
    size = pieces.get_piece_size()
    prompt = [size + 1, size + 3, size + 6, *pieces.encode("\n Hi"), size + 7]
    assert chatglm3.encode("[gMASK]sop<|user|>\n Hi<|assistant|>", add_bos=False) == prompt
    assert chatglm3.encode("<|user|>\n Hi<|assistant|>") == prompt
    assert chatglm2.encode("<|user|>", add_bos=False) == pieces_of(chatglm2).encode("<|user|>")


def test_a_prompt_that_begins_with_the_prefix_gets_no_second_one(chatglm3: Tokenizer, glm4: Tokenizer) -> None:
    assert chatglm3.encode("[gMASK]sop<|user|>\n Hi") == chatglm3.encode("<|user|>\n Hi")
    assert glm4.encode("[gMASK]<sop><|user|>\nHi") == glm4.encode("<|user|>\nHi")


KINDS = ["qwen", "glm4", "chatglm2", "chatglm3"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_tokens_are_the_texts(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    table = tokenizer.token_bytes()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assume(not any(mark in text for mark in MARKS))
        space = ""
        if kind.startswith("chatglm"):
            text = text.replace("▁", "").replace("\0", "")  # SentencePiece writes spaces so, and has no token for NUL
            space = " " if text else ""  # it begins each text with one
        elif kind == "qwen":
            text = unicodedata.normalize("NFC", text)
        ids = tokenizer.encode(text)
        assert table.text(ids) == space + text
        assert tokenizer.decode(ids) == text

    check()


@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        ("qwen", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|extra_0|>"]),
        ("glm4", ["<|user|>", "<|observation|>", "<|endoftext|>"]),
        ("chatglm2", ["[MASK]", "[gMASK]"]),
        ("chatglm3", ["<|user|>", "<|observation|>"]),
    ],
)
def test_marks_of_chat_templates_are_single_special_tokens(
    request: pytest.FixtureRequest, kind: str, marks: list[str]
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    table = tokenizer.token_bytes()
    for mark in marks:
        (token,) = tokenizer.encode(mark, add_bos=False)
        assert (table.tokens[token], table.special[token]) == (mark.encode(), True)
        assert (tokenizer.decode([token]), tokenizer.decode([token], skip_special_tokens=False)) == ("", mark)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("qwen", {"<|endoftext|>"}),
        ("glm4", {"<|endoftext|>", "<|user|>"}),
        ("chatglm2", {"</s>"}),
        ("chatglm3", {"</s>"}),
    ],
)
def test_tokens_that_end_an_answer_are_found(request: pytest.FixtureRequest, kind: str, ends: set[str]) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    assert set(tokenizer.end_tokens()) == ends
    assert tokenizer.token_bytes().special[tokenizer.eos_token_id or 0]
    assert tokenizer.bos_token_id is None


def test_the_chat_template_of_the_settings_or_of_the_file_is_found(
    glm4: Tokenizer, qwen: Tokenizer, ranks: dict[bytes, int], tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rendered = glm4.hf_tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "[gMASK]<sop><|user|>\nHi<|assistant|>"
    assert qwen.hf_tokenizer.chat_template is None
    write_tokenizer(tmp_path, "QWenTokenizer", chat_template="of the settings")
    write_ranks(tmp_path / "qwen.tiktoken", ranks)
    (tmp_path / "chat_template.jinja").write_text("of the file")
    assert Tokenizer(str(tmp_path)).hf_tokenizer.chat_template == "of the file"


def broken_line(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(b"AA== 0\nAQ==\n")


def nothing(directory: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("class_name", "content", "write", "reason"),
    [
        ("QWenTokenizer", {}, nothing, "qwen.tiktoken is missing: QWenTokenizer is read from it"),
        ("ChatGLMTokenizer", {}, nothing, "tokenizer.model is missing: ChatGLMTokenizer is read from it"),
        (
            "ChatGLM4Tokenizer",
            {},
            broken_line,
            r"added_tokens_decoder of .* must list <sop>, <\|endoftext\|>, \[gMASK\]",
        ),
        (
            "ChatGLM4Tokenizer",
            {"added_tokens_decoder": added(GLM4_SPECIAL, 256)},
            broken_line,
            r"tokenizer.model: line 2 must be a token in base64 and a rank, got b'AQ=='",
        ),
        (
            "OwnTokenizer",
            {},
            nothing,
            r"OwnTokenizer, which is not run: save the tokenizer as tokenizer\.json \(PreTrainedTokenizerFast\)",
        ),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, class_name: str, content: dict[str, Any], write: Callable[[Path], None], reason: str
) -> None:
    write_tokenizer(tmp_path, class_name, **content)
    write(tmp_path)
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer(str(tmp_path))
