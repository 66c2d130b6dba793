"""The tokenizer wrapper agrees with ``transformers`` about texts, settings, and responses whose tokens are known."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast
from transformers.processing_utils import ProcessorMixin

from lmdeploy.errors import CheckpointError
from lmdeploy.model import MODELS, chat_template_for
from lmdeploy.prompts import PromptPreparer
from lmdeploy.tokenizer import DetokenizeState, Tokenizer
from lmdeploy.tokenizer_readers.settings import TokenizerSettings


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


TEXT = "Hello  world 123 héé 你好\n\n x"
# Files that hold a template, the one that counts first.
TEMPLATES: dict[str, dict[str, Any]] = {
    "settings": {"tokenizer_config.json": {"chat_template": "of the settings"}},
    "several by name": {
        "tokenizer_config.json": {
            "chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
        }
    },
    "file": {"chat_template.jinja": "of the file", "tokenizer_config.json": {"chat_template": "of the settings"}},
    "files": {"chat_template.jinja": "a", "additional_chat_templates/tool_use.jinja": "b"},
    "Mistral Small 3.1": {"chat_template.json": {"chat_template": "a"}, "preprocessor_config.json": {}},
    "Qwen2-VL": {
        "chat_template.json": {"chat_template": "of the processor"},
        "chat_template.jinja": "of the file",
        "tokenizer_config.json": {"chat_template": "of the settings"},
        "preprocessor_config.json": {},
    },
    "LLaVA": {
        "processor_config.json": {"chat_template": "of its settings"},
        "chat_template.json": {"chat_template": "of the processor"},
    },
    "of a processor that is not there": {
        "chat_template.jinja": "of the file",
        "chat_template.json": {"chat_template": "of the processor"},
    },
    "none": {},
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_is_found_where_transformers_finds_it(
    name: str, default_model_dir: Path, tmp_path: Path
) -> None:
    files = TEMPLATES[name]
    shutil.copyfile(default_model_dir / "tokenizer.json", tmp_path / "tokenizer.json")
    for file, content in {"tokenizer_config.json": {}, **files}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    expected = PreTrainedTokenizerFast.from_pretrained(tmp_path).chat_template
    if any("processor_config" in file for file in files):
        expected = ProcessorMixin.get_processor_dict(tmp_path)[0].get("chat_template") or expected
    assert Tokenizer(str(tmp_path)).chat_template == expected
    assert TokenizerSettings.read(tmp_path).template_and_file == (expected, next(iter(files), ""))


# tokenizer_config.json as published, and what transformers says of bos and eos where it reads one.
SETTINGS: dict[str, dict[str, Any]] = {
    "llama-7b-hf of 2023": {"tokenizer_class": "LLaMATokenizer", "bos_token": "", "eos_token": "", "unk_token": ""},
    "GLM-4 saved again": {
        "tokenizer_class": "ChatGLM4Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLM4Tokenizer", None]},
        "eos_token": "<|endoftext|>",
    },
    "llama3v": {
        "tokenizer_class": "PreTrainedTokenizerFastWrapper",
        "auto_map": {"AutoTokenizer": ["own.PreTrainedTokenizerFastWrapper", None]},
        "eos_token": "<|im_end|>",
    },
    "Qwen3.5": {"tokenizer_class": "TokenizersBackend", "eos_token": "<|im_end|>", "model_max_length": 1e30},
    "gemma-4": {"tokenizer_class": "NobodysTokenizer", "extra_special_tokens": ["<|im_start|>"], "bos_token": None},
    "R1-Distill-Qwen": {
        "tokenizer_class": "LlamaTokenizerFast",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False},
    },
    "CodeLlama of bytes": {"tokenizer_class": "CodeLlamaTokenizer", "eos_token": "<|im_end|>"},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_the_texts_of_a_tokenizer_are_those_of_its_file_whatever_its_class_is_called(
    name: str, default_model_dir: Path, tmp_path: Path
) -> None:
    shutil.copyfile(default_model_dir / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS[name]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tokenizer, reference = Tokenizer(str(tmp_path)), RustTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = reference.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.encode(TEXT, add_bos=False) == ids
    assert tokenizer.decode(ids) == tokenizer.token_bytes().text(ids) == TEXT
    eos = SETTINGS[name].get("eos_token") or None
    text = eos["content"] if isinstance(eos, dict) else eos
    assert tokenizer.special_tokens.get("eos_token") == text
    assert tokenizer.eos_token_id == (None if text is None else reference.token_to_id(text))


FIRST: Any = [{"role": "user", "content": "Name the planets."}]
NEXT = {"role": "user", "content": "And the moons?"}


@pytest.fixture(scope="module")
def preparer(tokenizer: Tokenizer, default_model_dir: Path) -> PromptPreparer:
    return PromptPreparer(tokenizer, chat_template_for(str(default_model_dir), tokenizer=tokenizer))


def second_turn(text: str, ids: Any = None, role: str = "assistant") -> list[dict[str, Any]]:
    response = {"role": role, "content": text}
    return [*FIRST, response if ids is None else response | {"token_ids": ids}, NEXT]


@settings(max_examples=40)
@given(parts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=12), ends=st.booleans())
def test_a_later_prompt_begins_with_the_former_and_its_response_in_whatever_tokens(
    preparer: PromptPreparer, tokenizer: Tokenizer, parts: list[str], ends: bool
) -> None:
    """A response that is tokenized part by part is in tokens that a model may write and a tokenizer does not."""
    ids = [token for part in parts for token in tokenizer.encode(part, add_bos=False)]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    reported = [*ids, tokenizer.eos_token_id] if ends else ids
    prompt = preparer.prepare(second_turn(text, reported)).ids
    beginning = preparer.prepare(FIRST).ids + ids
    assert prompt[: len(beginning)] == beginning
    retokenized = preparer.prepare(second_turn(text)).ids
    assert tokenizer.decode(prompt, skip_special_tokens=False) == tokenizer.decode(
        retokenized, skip_special_tokens=False
    )
    following = tokenizer.encode("<|im_end|>\n", add_bos=False)
    assert prompt[len(beginning) :][: len(following)] == following


def test_tokens_that_stand_nowhere_change_nothing(
    preparer: PromptPreparer, tokenizer: Tokenizer, default_model_dir: Path
) -> None:
    text = "the moons"
    odd = [token for letter in text for token in tokenizer.encode(letter, add_bos=False)]
    retokenized = preparer.prepare(second_turn(text)).ids
    assert preparer.prepare(second_turn(text, odd)).ids != retokenized
    other = tokenizer.encode("Mars", add_bos=False)
    starts = tokenizer.ids_of(["<|im_start|>"])
    for ids in ([], other, odd[:-1], [*odd, *other * 9], [*starts, *odd], [2**31 - 1]):
        assert preparer.prepare(second_turn(text, ids)).ids == retokenized
    # Not the assistant's; a template that puts no token after responses; texts that must stay text.
    assert preparer.prepare(second_turn(text, odd, "user")).ids == preparer.prepare(second_turn(text, role="user")).ids
    for other_way in (
        PromptPreparer(tokenizer, MODELS.get("base")()),
        PromptPreparer(tokenizer, chat_template_for(str(default_model_dir)), split_special_tokens=True),
    ):
        assert other_way.prepare(second_turn(text, odd)).ids == other_way.prepare(second_turn(text)).ids


@pytest.mark.parametrize("ids", [7, "7", [1.0], [True], [-1], [2**31], [[1]]])
def test_what_is_no_list_of_tokens_is_refused(preparer: PromptPreparer, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\]\.token_ids must be a list of tokens"):
        preparer.prepare(second_turn("x", ids))
