"""Tokenizers that families publish as code are read without it, and agree with the libraries that code calls.

Those are ``tiktoken`` for Qwen 1 and GLM-4, ``sentencepiece`` for the others. Their vocabularies are small ones, see
``tests/support/published_tokenizers.py``.
"""

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmdeploy.errors import CheckpointError
from lmdeploy.model_metadata.end_tokens import end_texts
from lmdeploy.tokenizer import Tokenizer
from tests.support.published_tokenizers import (
    CHATGLM2_SPECIAL,
    CHATGLM3_SPECIAL,
    GLM4_SPECIAL,
    KIMI_SPECIAL,
    SAMPLES,
    added,
    byte_ranks,
    train_pieces,
    write_chatglm,
    write_glm4,
    write_kimi,
    write_qwen,
    write_tokenizer,
)

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
SPECIAL_TOKENS = [text for text in [*GLM4_SPECIAL, *CHATGLM3_SPECIAL] if not text.isalpha()]
INTERNLM_UNUSED = ["[UNUSED_TOKEN_145]", "[UNUSED_TOKEN_146]"]
SPECIAL_TOKENS += ["<|im_start|>", "<|im_end|>", "<s>", "</s>", *INTERNLM_UNUSED]


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return byte_ranks()


@pytest.fixture(scope="module")
def qwen(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("qwen")
    write_qwen(directory, ranks, model_max_length=8192)
    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def glm4(ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("glm4")
    write_glm4(directory, ranks)
    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def chatglm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return chatglm(tmp_path_factory.mktemp("chatglm2"), "THUDM/chatglm2-6b")


@pytest.fixture(scope="module")
def chatglm3(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return chatglm(tmp_path_factory.mktemp("chatglm3"), "THUDM/chatglm3-6b")


def chatglm(directory: Path, name: str) -> Tokenizer:
    write_chatglm(directory, name)
    return Tokenizer(str(directory))


INTERNLM_ADDED = ["<|im_start|>", "<|im_end|>"]


def internlm2(directory: Path, *, begins_with_space: bool) -> Tokenizer:
    """Return a tokenizer of InternLM2's kind: its added tokens have the place of pieces that nothing else uses."""
    train_pieces(directory, add_dummy_prefix=begins_with_space, control_symbols=INTERNLM_UNUSED)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    first = pieces.piece_to_id(INTERNLM_UNUSED[0])
    write_tokenizer(
        directory,
        "InternLM2Tokenizer",
        bos_token="<s>",
        eos_token={"__type": "AddedToken", "content": "</s>"},
        added_tokens_decoder=added(INTERNLM_ADDED, first),
        chat_template="{{ messages }}",
    )
    return Tokenizer(str(directory))


@pytest.fixture(scope="module")
def internlm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return internlm2(tmp_path_factory.mktemp("internlm"), begins_with_space=True)


@pytest.fixture(scope="module")
def tight_internlm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return internlm2(tmp_path_factory.mktemp("internlm"), begins_with_space=False)


def pieces_of(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=f"{tokenizer.directory}/tokenizer.model")


def check_texts(
    encode: Callable[[str], list[int]],
    reference: Callable[[str], list[int]],
    examples: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> None:
    """Compare what examples and random texts become; ``unknown``: special tokens that the reference does not know."""

    @settings(max_examples=EXAMPLES)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assume(not any(content in text for content in unknown))
        assert encode(text) == reference(text)

    check()
    for text in examples:
        assert encode(text) == reference(text)


def test_qwen_encodes_as_tiktoken_does(qwen: Tokenizer, ranks: dict[bytes, int]) -> None:
    special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    special |= {f"<|extra_{number}|>": 151646 + number for number in range(205)}
    reference = tiktoken.Encoding("qwen", pat_str=QWEN_WORDS, mergeable_ranks=ranks, special_tokens=special)
    examples = [*SAMPLES, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|extra_204|><|endoftext|>"]
    check_texts(
        qwen.encode, lambda text: reference.encode(unicodedata.normalize("NFC", text), allowed_special="all"), examples
    )


def test_glm4_encodes_as_tiktoken_does_after_its_prefix(glm4: Tokenizer, ranks: dict[bytes, int]) -> None:
    special = {text: len(ranks) + i for i, text in enumerate(GLM4_SPECIAL)}
    reference = tiktoken.Encoding("glm4", pat_str=GLM4_WORDS, mergeable_ranks=ranks, special_tokens=special)
    prefix = [special["[gMASK]"], special["<sop>"]]
    check_texts(glm4.encode, lambda text: [*prefix, *reference.encode(text, allowed_special="all")])
    for text in [*SAMPLES, "<|user|>\nHi<|assistant|>"]:
        assert glm4.encode(text, add_bos=False) == reference.encode(text, allowed_special="all")


# The published expression, word for word.
KIMI_WORDS = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)


def test_kimi_encodes_as_tiktoken_does(ranks: dict[bytes, int], tmp_path: Path) -> None:
    write_kimi(tmp_path, ranks)
    kimi = Tokenizer(str(tmp_path))
    reserved = [f"<|reserved_token_{len(ranks) + i}|>" for i in range(len(KIMI_SPECIAL), 258)]
    special = {text: len(ranks) + i for i, text in enumerate([*KIMI_SPECIAL, *reserved])}
    reference = tiktoken.Encoding("kimi", pat_str=KIMI_WORDS, mergeable_ranks=ranks, special_tokens=special)
    text = f"[BOS]Ünï 你好World's 123456 {reserved[0]} don'T\r\n\r\n  x[EOS]"
    check_texts(kimi.encode, lambda text: reference.encode(text, allowed_special="all"), [text])
    assert kimi.hf_tokenizer.eos_token == "[EOS]"


def test_qwen_vl_has_marks_of_images_and_shows_those_of_places(ranks: dict[bytes, int], tmp_path: Path) -> None:
    write_qwen(tmp_path, ranks)
    assert "<img>" not in Tokenizer(str(tmp_path)).added_tokens
    (tmp_path / "config.json").write_text('{"visual": {"image_start_id": 151857}}')
    tokenizer = Tokenizer(str(tmp_path))
    assert tokenizer.ids_of(["<ref>", "<img>", "</img>", "<imgpad>"]) == [151851, 151857, 151858, 151859]
    ids = tokenizer.encode("<img></img><box>(1,2)</box>", add_bos=False)
    assert tokenizer.decode(ids) == "<box>(1,2)</box>"


@pytest.mark.parametrize("generation", ["chatglm2", "chatglm3"])
def test_chatglm_encodes_as_sentencepiece_does_after_its_prefix(
    request: pytest.FixtureRequest, generation: str
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(generation)
    reference = pieces_of(tokenizer)
    size = reference.get_piece_size()
    check_texts(tokenizer.encode, lambda text: [size + 1, size + 3, *reference.encode(text)], unknown=SPECIAL_TOKENS)
    assert reference.piece_to_id("sop") in tokenizer.encode("philosophy")


@pytest.mark.parametrize("kind", ["internlm", "tight_internlm"])
def test_internlm_encodes_as_sentencepiece_does_after_bos(request: pytest.FixtureRequest, kind: str) -> None:
    internlm: Tokenizer = request.getfixturevalue(kind)
    reference = pieces_of(internlm)
    unknown = [*INTERNLM_ADDED, "<s>", "</s>", "[UNUSED"]
    check_texts(internlm.encode, lambda text: [1, *reference.encode(text)], unknown=unknown)
    start, end = (internlm.encode(content, add_bos=False)[0] for content in INTERNLM_ADDED)
    assert (start, end) == tuple(reference.piece_to_id(content) for content in INTERNLM_UNUSED)
    expected = [1, start, *reference.encode("user\nHi"), end, *reference.encode("\n"), 2]
    assert internlm.encode("<s><|im_start|>user\nHi<|im_end|>\n</s>") == expected
    assert internlm.vocab_size == reference.get_piece_size()
    assert end_texts(internlm) == ["</s>"]
    assert internlm.hf_tokenizer.chat_template == "{{ messages }}"


def test_baichuan_has_no_bos_if_its_settings_say_so(tmp_path: Path) -> None:
    train_pieces(tmp_path)
    write_tokenizer(tmp_path, "BaichuanTokenizer", add_bos_token=False)
    tokenizer = Tokenizer(str(tmp_path))
    assert tokenizer.encode("Call me") == pieces_of(tokenizer).encode("Call me")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_special_tokens_of_chatglm_follow_the_vocabulary(chatglm2: Tokenizer, chatglm3: Tokenizer) -> None:
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


KINDS = ["qwen", "glm4", "chatglm2", "chatglm3", "internlm", "tight_internlm"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_tokens_are_the_texts(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    table = tokenizer.token_bytes()
    begins_with_space = kind not in ("qwen", "glm4") and pieces_of(tokenizer).encode("x", out_type=str)[0][0] == "▁"

    @settings(max_examples=EXAMPLES)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assume(not any(content in text for content in SPECIAL_TOKENS))
        space = ""
        if kind not in ("qwen", "glm4"):
            text = text.replace("▁", "").replace("\0", "")  # SentencePiece writes spaces so, and has no token for NUL
            space = " " if text and begins_with_space else ""
        elif kind == "qwen":
            text = unicodedata.normalize("NFC", text)
        ids = tokenizer.encode(text)
        assert table.text(ids) == space + text
        assert tokenizer.decode(ids) == text

    check()


@pytest.mark.parametrize(
    ("kind", "contents"),
    [
        ("qwen", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|extra_0|>"]),
        ("glm4", ["<|user|>", "<|observation|>", "<|endoftext|>"]),
        ("chatglm2", ["[MASK]", "[gMASK]"]),
        ("chatglm3", ["<|user|>", "<|observation|>"]),
        ("internlm", ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]),
    ],
)
def test_marks_of_chat_templates_are_single_special_tokens(
    request: pytest.FixtureRequest, kind: str, contents: list[str]
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    table = tokenizer.token_bytes()
    for content in contents:
        (token,) = tokenizer.encode(content, add_bos=False)
        assert (table.tokens[token], table.special[token]) == (content.encode(), True)
        assert (tokenizer.decode([token]), tokenizer.decode([token], skip_special_tokens=False)) == ("", content)


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("qwen", {"<|endoftext|>"}),
        ("glm4", {"<|endoftext|>", "<|user|>"}),
        ("chatglm2", {"</s>"}),
        ("chatglm3", {"</s>"}),
    ],
)
def test_tokens_that_end_a_response_are_found(request: pytest.FixtureRequest, kind: str, ends: set[str]) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    assert set(end_texts(tokenizer)) == ends
    assert tokenizer.token_bytes().special[tokenizer.eos_token_id or 0]
    assert tokenizer.bos_token_id is None


def test_a_tokenizer_that_is_read_here_has_its_chat_template(glm4: Tokenizer, qwen: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    rendered = glm4.hf_tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "[gMASK]<sop><|user|>\nHi<|assistant|>"
    assert qwen.hf_tokenizer.chat_template is None


def broken_line(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(b"AA== 0\nAQ==\n")


def nothing(directory: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("class_name", "content", "write", "reason"),
    [
        ("QWenTokenizer", {}, nothing, "qwen.tiktoken is missing: QWenTokenizer is read from it"),
        ("InternLMTokenizer", {"bos_token": "<b>"}, train_pieces, "bos_token of .* must be a special token, got '<b>'"),
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
