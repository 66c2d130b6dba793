"""Models whose tokenizers are published as code are served like others: prompts, texts, ends of responses."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lmdeploy import ChatTemplateConfig, GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.tokenizer import Tokenizer
from tests.support.both_engines import BACKENDS, config_for
from tests.support.published_tokenizers import byte_ranks, write_chatglm, write_glm4, write_qwen
from tests.support.tiny_models import TOKENIZER_FILES, make_tiny_llama

CONFIG = TurbomindEngineConfig(session_len=256, cache_max_entry_count=64)
FORCED = 'if name.startswith("def"): return 你好'
QUESTION = [{"role": "user", "content": "Who? 你好"}]

# How its tokenizer is written, rows of its embedding, its template, the prompt, the mark that ends a response.
KINDS: dict[str, tuple[Callable[[Path], None], int, str, str, str]] = {
    "qwen": (
        lambda directory: write_qwen(directory, byte_ranks()),
        151936,
        "qwen",
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWho? 你好<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_end|>",
    ),
    "glm4": (
        lambda directory: write_glm4(directory, byte_ranks()),
        8300,
        "",
        "[gMASK]<sop><|user|>\nWho? 你好<|assistant|>",
        "<|user|>",
    ),
    "chatglm3": (
        lambda directory: write_chatglm(directory, "THUDM/chatglm3-6b"),
        600,
        "chatglm3",
        "[gMASK]sop<|user|>\n Who? 你好<|assistant|>",
        "<|observation|>",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_such_a_tokenizer_is_served(kind: str, tmp_path: Path) -> None:
    write, rows, template, prompt, ending = KINDS[kind]
    model = make_tiny_llama(tmp_path / "model", vocab_size=rows)
    for name in TOKENIZER_FILES:
        (model / name).unlink()
    write(model)
    tokenizer = Tokenizer(str(model))
    table = tokenizer.token_bytes(rows)
    config = ChatTemplateConfig(template) if template else None
    with pipeline(str(model), backend_config=CONFIG, chat_template_config=config) as pipe:
        assert pipe.prepare(QUESTION)[0] == tokenizer.encode(prompt, add_bos=False)
        for skips in (True, False):
            sampled = GenerationConfig(
                max_new_tokens=40, do_sample=True, ignore_eos=True, random_seed=1, skip_special_tokens=skips
            )
            response = pipe(QUESTION, gen_config=sampled)
            assert response.text == table.text(response.token_ids, skips)
        forced = {"type": "grammar", "grammar": f"root ::= {json.dumps(FORCED)} [0-9]"}
        response = pipe(QUESTION, gen_config=GenerationConfig(max_new_tokens=100, response_format=forced))
        # Before a text's first word SentencePiece puts a space; its last token depends on what follows.
        own = tokenizer.encode(FORCED, add_bos=False)
        assert response.token_ids[1 : len(own) - 1] == own[1:-1]
        (end,) = tokenizer.encode(ending, add_bos=False)
        ended = pipe(QUESTION, gen_config=GenerationConfig(max_new_tokens=5, logit_bias={end: 100.0}))
        assert (ended.text, ended.finish_reason) == ("", "stop")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_the_model_has_no_embedding_of_is_refused_by_its_text(backend: str, tmp_path: Path) -> None:
    """Gemma 3 1B, CodeLlama 34B and others are published with tokens for images or padding after the vocabulary."""
    rows = 49152
    model = make_tiny_llama(tmp_path / "model", vocab_size=rows)
    content = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    soft = {**content["added_tokens"][0], "id": rows, "content": "<image_soft_token>"}
    content["added_tokens"].append(soft)
    (model / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    config = config_for(backend, dtype="float32", session_len=256, cache_max_entry_count=64)
    named = re.escape(f"got {rows} (<image_soft_token>, a token that this model has no embedding of)")
    with pipeline(str(model), backend_config=config) as pipe:
        sampled = GenerationConfig(max_new_tokens=8, do_sample=True, ignore_eos=True, random_seed=1)
        # A text that is never generated is no mistake.
        possible = dataclasses.replace(sampled, bad_words=["Hello"], stop_words=["<image_soft_token>"])
        assert max(pipe(QUESTION, gen_config=possible).token_ids) < rows
        for request in ({"stop_token_ids": [rows]}, {"bad_token_ids": [rows]}, {"logit_bias": {rows: 1.0}}):
            with pytest.raises(ValueError, match=named):
                pipe(QUESTION, gen_config=dataclasses.replace(sampled, **request))
        with pytest.raises(ValueError, match=named):
            pipe([{"role": "user", "content": "<image_soft_token>"}], gen_config=sampled)
