"""The tokenizer wrapper agrees with ``transformers`` and explains itself."""

import json
import shutil
from pathlib import Path

import pytest

from lmdeploy.errors import CheckpointError
from lmdeploy.tokenizer import DetokenizeState, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer(str(default_model_dir))


@pytest.fixture(scope="module")
def bos_tokenizer(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The default tokenizer, changed to put <|im_start|> before every text, as Llama's do."""
    directory = tmp_path_factory.mktemp("bos")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(default_model_dir / name, directory / name)
    content = json.loads((directory / "tokenizer.json").read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return Tokenizer(str(directory))


def test_bos_is_added_once(bos_tokenizer: Tokenizer) -> None:
    bare = bos_tokenizer.encode("hello", add_bos=False)
    assert bos_tokenizer.encode("hello") == [1, *bare]
    assert bos_tokenizer.encode("<|im_start|>hello") == [1, *bare]


def test_the_empty_text_has_only_bos(tokenizer: Tokenizer, bos_tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert bos_tokenizer.encode("") == [1]


def test_decode_inverts_encode_and_may_keep_specials(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("héllo 你好<|im_end|>")
    assert tokenizer.decode(ids) == "héllo 你好"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "héllo 你好<|im_end|>"


@pytest.mark.parametrize("text", ["Hi, 你好 🙂!", "<|im_start|>user\nÉté 🐶🐶<|im_end|>", " leading and  double "])
def test_a_text_reported_token_by_token_is_the_whole_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer(text)
    state, pieces = DetokenizeState(), []
    for count in range(1, len(ids) + 1):
        piece, state = tokenizer.detokenize_incrementally(ids[:count], state, skip_special_tokens=False)
        assert "\ufffd" not in piece
        pieces.append(piece)
    assert "".join(pieces) == text


def test_entries_that_contain_a_text_are_found(tokenizer: Tokenizer) -> None:
    found = tokenizer.indexes_containing_token("France")
    assert found
    assert all("France" in tokenizer.decode([token]) for token in found)
    assert {tokenizer.encode(text)[0] for text in ("France", " France")} <= set(found)


def test_decode_goes_on_from_an_offset_and_encode_leaves_specials_out(
    tokenizer: Tokenizer, bos_tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("one two three")
    assert tokenizer.decode(ids, 1) == tokenizer.decode(ids[1:])
    assert bos_tokenizer.encode("one", add_special_tokens=False) == bos_tokenizer.encode("one")[1:]


def test_sizes_and_boundaries_are_the_models(tokenizer: Tokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_id) == (49152, 1, 2)


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}/nothing: no such directory"):
        Tokenizer(str(tmp_path / "nothing"))


@pytest.mark.parametrize("content", [None, "{", '{"model": 1}', ""])
def test_a_missing_or_broken_tokenizer_is_a_checkpoint_error(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="tokenizer cannot be loaded"):
        Tokenizer(str(tmp_path))
