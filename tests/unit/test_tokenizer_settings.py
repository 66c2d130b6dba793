"""Settings of tokenizers as published give the tokenizer and the chat template that ``transformers`` gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RustTokenizer
from transformers import PreTrainedTokenizerFast
from transformers.processing_utils import ProcessorMixin

from lmdeploy.tokenizer import Tokenizer
from lmdeploy.tokenizer_readers.settings import TokenizerSettings

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
