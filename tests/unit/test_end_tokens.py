"""Every place where published checkpoints name the end of a response ends one, and is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as RustTokenizer

from lmdeploy.errors import CheckpointError
from lmdeploy.model_metadata.end_tokens import EndToken, end_texts, end_tokens
from lmdeploy.templates.of_adapters import AdapterTemplates
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.published_templates import INDEX

GENERATION, CONFIG, TOKENIZER, TEMPLATE = (
    "generation_config.json: eos_token_id",
    "config.json: eos_token_id",
    "the tokenizer's eos_token",
    "the chat template closes a turn with it",
)
# Special tokens, generation_config.json, config.json, the tokenizer's eos and the template, as published, with the ids
# of special tokens by their place (the piece "#" comes after them); and the ends, with who names each.
PUBLISHED: dict[str, tuple[list[str], Any, dict[str, Any], str | None, str, dict[str, list[str]]]] = {
    "Kimi-K2-Instruct": (
        ["[EOS]", "<|im_end|>"], 1, {"eos_token_id": 0}, "[EOS]", "kimi_k2",
        {"<|im_end|>": [GENERATION, TEMPLATE], "[EOS]": [CONFIG, TOKENIZER]},
    ),
    "Meta-Llama-3-8B-Instruct": (
        ["<|end_of_text|>", "<|eot_id|>"], [0, 1], {"eos_token_id": 0}, "<|end_of_text|>", "llama3",
        {"<|end_of_text|>": [GENERATION, CONFIG, TOKENIZER], "<|eot_id|>": [GENERATION, TEMPLATE]},
    ),
    "gemma-4-E2B": (
        ["<eos>", "<turn|>", "<x>"], [0, 1, 2], {"eos_token_id": [0, 1], "text_config": {"eos_token_id": 0}},
        "<eos>", "gemma4",
        {
            "<eos>": [GENERATION, CONFIG, "config.json: text_config.eos_token_id", TOKENIZER],
            "<turn|>": [GENERATION, CONFIG, TEMPLATE],
            "<x>": [GENERATION],
        },
    ),
    "InternVL2-2B": (
        ["</s>", "<|im_end|>", "<|action_end|>"], [1, 2], {"llm_config": {"eos_token_id": 0}}, "</s>", "internlm2",
        {
            "<|im_end|>": [GENERATION, TEMPLATE],
            "<|action_end|>": [GENERATION],
            "</s>": ["config.json: llm_config.eos_token_id", TOKENIZER],
        },
    ),
    "granite-7b-lab": (
        ["</s>", "<|endoftext|>"], 0, {"eos_token_id": 0}, "<|endoftext|>", "",
        {"</s>": [GENERATION, CONFIG], "<|endoftext|>": [TOKENIZER]},
    ),
    "Yi-1.5-6B-Chat, its end in the tokenizer alone": (
        ["</s>", "<|im_end|>"], None, {"eos_token_id": 0}, "<|im_end|>", "yi",
        {"</s>": [CONFIG], "<|im_end|>": [TOKENIZER, TEMPLATE]},
    ),
    "gemma-2b-it, its end of turn in the template alone": (
        ["<eos>", "<end_of_turn>"], 0, {"eos_token_id": 0}, "<eos>", "gemma",
        {"<eos>": [GENERATION, CONFIG, TOKENIZER], "<end_of_turn>": [TEMPLATE]},
    ),
    "an ordinary piece, which config.json names first": (
        ["<|endoftext|>", "<|end|>"], None, {"eos_token_id": 2}, "<|endoftext|>", "phi-3",
        {"#": [CONFIG], "<|endoftext|>": [TOKENIZER], "<|end|>": [TEMPLATE]},
    ),
    "gpt-oss-20b, whose calls and analyses end otherwise": (
        ["<|endoftext|>", "<|return|>", "<|end|>", "<|call|>"], [1, 0], {"eos_token_id": 1}, "<|return|>", "gpt-oss",
        {"<|return|>": [GENERATION, CONFIG, TOKENIZER], "<|endoftext|>": [GENERATION]},
    ),
    "nothing": (["<s>"], None, {}, None, "", {}),
}  # fmt: skip


def write(
    directory: Path, special: list[str], generation: Any, config: dict[str, Any], eos: str | None, template: str
) -> Tokenizer:
    vocabulary = [*special, "#", "a", "?"]
    rust = RustTokenizer(models.WordLevel({text: token for token, text in enumerate(vocabulary)}, "?"))
    rust.add_special_tokens([AddedToken(text, special=True) for text in special])
    rust.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": eos}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    if template:
        (directory / "chat_template.jinja").write_text(INDEX[template]["template"])
    return Tokenizer(str(directory))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_place_that_names_an_end_is_read(name: str, tmp_path: Path) -> None:
    *files, expected = PUBLISHED[name]
    tokenizer = write(tmp_path, *files)
    found = end_tokens(tokenizer, tokenizer.vocab_size)
    assert {end.text: list(end.sources) for end in found} == expected
    assert not any(end.ignored for end in found)
    assert end_texts(tokenizer) == list(expected)


def test_what_closes_a_part_of_a_turn_ends_no_response(tmp_path: Path) -> None:
    """Some publish gpt-oss with a template that closes every message alike."""
    source = INDEX["gpt-oss"]["template"].replace("<|return|>", "<|end|>")
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    tokenizer = write(tmp_path, ["<|return|>", "<|end|>"], None, {}, "<|return|>", "")
    assert end_texts(tokenizer) == ["<|return|>"]


def test_an_end_that_cannot_be_is_left_out_and_reported(tmp_path: Path) -> None:
    """Of a vocabulary's rows, and an ordinary piece that the configuration of another model ends with."""
    tokenizer = write(tmp_path, ["</s>"], [0, 9], {"eos_token_id": 1}, "</s>", "")
    assert end_tokens(tokenizer, 4) == [
        EndToken(0, "</s>", (GENERATION, TOKENIZER)),
        EndToken(9, "", (GENERATION,), "the vocabulary has the tokens 0 to 3"),
        EndToken(1, "#", (CONFIG,), "it is an ordinary piece of text, and another end is named before"),
    ]


def test_an_engine_directory_ends_responses_where_any_file_says_so(
    tiny_llama: Path, copy_of: Callable[[Path], Path], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = copy_of(tiny_llama)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 49160]}))
    assert resolve(checkpoint).spec.eos_token_ids == (0, 2)  # <|endoftext|>; <|im_end|> of the tokenizer
    assert f"{GENERATION}: token 49160 ends no response: the vocabulary has the tokens 0 to 2047" in caplog.text


def test_what_an_adapters_template_closes_turns_with_stops_its_responses(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, ["</s>", "<|im_end|>"], 0, {}, "</s>", "")
    templates = AdapterTemplates(tokenizer)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "chat_template.jinja").write_text(INDEX["chatml"]["template"])
    templates.add("adapter", adapter)
    template = templates.get("adapter")
    assert template is not None
    assert template.stop_words == ["<|im_end|>"]


def test_what_is_no_token_id_is_refused_by_file_and_field(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, ["</s>"], None, {"text_config": {"eos_token_id": [0, "</s>"]}}, None, "")
    with pytest.raises(CheckpointError, match=r"config.json: eos_token_id must be .* got \[0, '</s>'\]"):
        end_tokens(tokenizer)
