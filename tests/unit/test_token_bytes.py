"""The bytes of the tokens of a text are the text's."""

import functools
import json
import re
from pathlib import Path
from random import Random

import pytest
import sentencepiece
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from lmdeploy.token_bytes import TokenBytes, entries_of, max_token_bytes
from lmdeploy.tokenizer import Tokenizer

SAMPLES = [
    "The quick brown fox jumps over the lazy dog.",
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "今天天气怎么样？我们去公园散步吧。",
    "👩‍👩‍👧‍👦 🇫🇷 naïve café ½ €",
    "  leading and   inner\t\tspace \r\n\n",
    "Привет, мир! こんにちは 안녕하세요 مرحبا",
    "x = {'a': [1, 2.5e-3], \"b\": None}  # 1234567890",
]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=st.characters(max_codepoint=127), max_size=60),
    st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=30),
    st.text(alphabet=st.characters(min_codepoint=0x1F300, max_codepoint=0x1FAFF), max_size=20),
    st.lists(st.sampled_from(SAMPLES), max_size=3).map(" ".join),
)
# SentencePiece writes a space as this character, so that a text's own ones become spaces.
SPACE_MARKER = "▁"


@pytest.fixture(scope="module")
def default_tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer(str(default_model_dir))


@pytest.fixture(scope="module")
def llama_like_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A BPE tokenizer.json with byte fallback, as Llama 1 and 2, Mistral and many others have it."""
    trained = RustTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *byte_pieces])
    trained.train_from_iterator(SAMPLES[:2] * 20, trainer)
    content = json.loads(trained.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    trained = RustTokenizer.from_str(json.dumps(content))
    trained.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    directory = tmp_path_factory.mktemp("llama-like")
    trained.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(str(directory))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def sentencepiece_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A checkpoint with a SentencePiece tokenizer.model alone."""
    directory = tmp_path_factory.mktemp("sentencepiece")
    corpus = directory / "corpus.txt"
    corpus.write_text("\n".join(SAMPLES * 30), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(directory / "tokenizer"),
        vocab_size=500,
        hard_vocab_limit=False,
        model_type=request.param,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return Tokenizer(str(directory))


@settings(max_examples=1200)
@given(text=TEXTS)
def test_byte_level_tokens_concatenate_to_the_text(default_tokenizer: Tokenizer, text: str) -> None:
    table = _table(default_tokenizer)
    known = _known_bytes()
    # A few control characters and lead bytes of unassigned planes are in no token: the tokenizer itself drops them.
    expected = bytes(byte for byte in text.encode() if byte in known)
    assert table.join(default_tokenizer.encode(text)) == expected


@settings(max_examples=800)
@given(text=TEXTS)
def test_byte_fallback_tokens_concatenate_to_the_text(llama_like_tokenizer: Tokenizer, text: str) -> None:
    assume(not any(token in text for token in ("<s>", "</s>", "<unk>", "<tool>")))
    text = text.replace(SPACE_MARKER, "")
    table = _table(llama_like_tokenizer)
    joined = table.join(llama_like_tokenizer.encode(text, add_bos=False))
    assert joined == (b" " + text.encode() if text else b"")


@settings(max_examples=300)
@given(text=TEXTS)
def test_sentencepiece_model_tokens_concatenate_to_the_text(sentencepiece_tokenizer: Tokenizer, text: str) -> None:
    text = text.replace(SPACE_MARKER, "").replace("\0", "")
    table = _table(sentencepiece_tokenizer)
    joined = table.join(sentencepiece_tokenizer.encode(text, add_bos=False))
    # The dummy prefix: one space before the text, unless it begins with one.
    assert joined.removeprefix(b" ") == text.encode().removeprefix(b" ")


# Decoders by name, and pieces that they change: whole characters, bytes of one, spaces, added tokens.
SENTENCEPIECE = [
    "a",
    "\u2581b",
    "\u2581\u2581",
    "ü",
    "<n>",
    "<0x0A>",
    "<0xE4>",
    "<0xBD>",
    "<0xA0>",
    "##c",
    "d</w>",
    ".",
]
BYTE_LEVEL = ["a", "\u0120b", "\u010a", "ä", "½", "\u0142", "~"]
STRIPPED = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "llama": (decoders.Sequence(STRIPPED), SENTENCEPIECE),
    "several replacements": (decoders.Sequence([decoders.Replace("<n>", "\n"), *STRIPPED]), SENTENCEPIECE),
    "regular expression": (decoders.Replace(Regex("\u2581+|<0x..>"), " "), SENTENCEPIECE),
    "pieces stripped": (decoders.Sequence([decoders.Metaspace(), decoders.Strip(" ", 1, 1)]), SENTENCEPIECE),
    "erased": (decoders.Sequence([decoders.Replace("<tool>", ""), *STRIPPED]), SENTENCEPIECE),
    "metaspace": (decoders.Metaspace(), SENTENCEPIECE),
    "one character of the whole text": (decoders.Sequence([*STRIPPED, decoders.Replace("a", "b")]), SENTENCEPIECE),
    "word pieces": (decoders.WordPiece(), SENTENCEPIECE),
    "ends of words": (decoders.BPEDecoder(), SENTENCEPIECE),
    "none": (None, SENTENCEPIECE),
    "bytes": (decoders.ByteLevel(), BYTE_LEVEL),
    "bytes, then a replacement": (decoders.Sequence([decoders.ByteLevel(), decoders.Replace("~", " ")]), BYTE_LEVEL),
}


@pytest.mark.parametrize("name", DECODERS)
def test_random_tokens_concatenate_to_what_tokenizers_decodes(name: str) -> None:
    decoder, pieces = DECODERS[name]
    tokenizer = described(decoder, pieces)
    table = {token: text for token, text, _ in entries_of(tokenizer.to_str())}
    anchor, random = tokenizer.token_to_id("@"), Random(1)
    for _ in range(300):
        ids = [anchor, *random.choices(sorted(table), k=random.randrange(1, 9)), anchor]
        # Within a text: at its ends, decoders drop spaces or write none.
        text = b"".join(table[token] for token in ids).decode(errors="replace")
        if "\ufffd" not in text:  # of bytes that are no character, `tokenizers` drops those alongside too
            assert text.strip() == tokenizer.decode(ids, skip_special_tokens=False).strip()


def described(decoder: object, pieces: list[str]) -> RustTokenizer:
    """Return a tokenizer of the pieces and two added tokens, one of which its decoder changes."""
    tokenizer = RustTokenizer(models.WordLevel({piece: i for i, piece in enumerate(["@", *pieces])}, "@"))
    tokenizer.decoder = decoder
    tokenizer.add_tokens(["\u2581\u2581\u2581", "<tool>"])
    return tokenizer


REJECTED = {
    "CTC": (decoders.CTC(), None, "decoder step CTC is not supported; supported: BPEDecoder, "),
    "replaced across pieces": (
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        None,
        'decoder step {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"} replaces text across pieces, ',
    ),
    "byte-level pieces": (
        decoders.Sequence(STRIPPED),
        pre_tokenizers.ByteLevel(),
        "decoder Replace, ByteFallback, Fuse, Strip leaves byte-level pieces as they are, ",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_decoder_that_works_on_more_than_a_piece_is_refused_by_name(name: str) -> None:
    decoder, words, reason = REJECTED[name]
    tokenizer = described(decoder, BYTE_LEVEL)
    if words is not None:
        tokenizer.pre_tokenizer = words
    with pytest.raises(ValueError, match=re.escape(reason)):
        entries_of(tokenizer.to_str())


def test_specials_are_literal_and_marked(default_tokenizer: Tokenizer) -> None:
    table = _table(default_tokenizer)
    end = default_tokenizer.encode("<|im_end|>")[0]
    assert (table.tokens[end], table.special[end]) == (b"<|im_end|>", True)
    assert not table.special[default_tokenizer.encode("hello")[0]]


def test_added_ordinary_tokens_are_literal_and_not_special(llama_like_tokenizer: Tokenizer) -> None:
    table = _table(llama_like_tokenizer)
    token = llama_like_tokenizer.encode("<tool>", add_bos=False)[-1]
    assert (table.tokens[token], table.special[token]) == (b"<tool>", False)
    assert table.special[llama_like_tokenizer.hf_tokenizer.convert_tokens_to_ids("</s>")]


def test_the_longest_token_of_a_table_is_found_without_reading_the_tokens(
    default_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    table = _table(default_tokenizer)
    table.write(tmp_path / "table")
    assert TokenBytes.read(tmp_path / "table") == table
    assert max_token_bytes(tmp_path / "table") == max(map(len, table.tokens))


def test_ids_beyond_the_tokenizer_are_empty_and_beyond_the_embedding_absent(default_tokenizer: Tokenizer) -> None:
    size = default_tokenizer.vocab_size
    padded = default_tokenizer.token_bytes(size + 3)
    assert padded.tokens[size:] == (b"", b"", b"")
    assert len(default_tokenizer.token_bytes(100).tokens) == 100


def test_the_file_has_the_documented_layout(tmp_path: Path) -> None:
    TokenBytes((b"ab", b"", b"c"), (False, True, False)).write(tmp_path / "t.bin")
    numbers = b"".join(n.to_bytes(4, "little") for n in (3, 0, 0, 2, 2, 3))
    assert (tmp_path / "t.bin").read_bytes() == b"TMTOK001" + numbers + bytes([0, 1, 0]) + b"abc"


@pytest.mark.parametrize("keep", [0, 10, 17, 30, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.bin"
    TokenBytes((b"ab", b"", b"c"), (False, True, False)).write(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"token table|truncated"):
        TokenBytes.read(path)


@functools.cache
def _known_bytes() -> frozenset[int]:
    tokens = Tokenizer("").token_bytes().tokens
    return frozenset(token[0] for token in tokens if len(token) == 1)


_TABLES: dict[int, TokenBytes] = {}


def _table(tokenizer: Tokenizer) -> TokenBytes:
    if id(tokenizer) not in _TABLES:
        _TABLES[id(tokenizer)] = tokenizer.token_bytes()
    return _TABLES[id(tokenizer)]
