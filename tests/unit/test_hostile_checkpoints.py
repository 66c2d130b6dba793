"""A checkpoint that breaks its readers is refused in a sentence, and a request that does costs nobody else."""

import json
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import tokenizers

import lmdeploy.tokenizer
from lmdeploy.errors import CheckpointError, is_panic
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_is_nested_too_deeply_is_an_error_of_the_checkpoint(
    tiny_llama: Path, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / file).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(CheckpointError, match=r"nested too deeply|recursion"):
        resolve(folder)


def test_a_panic_of_the_tokenizers_library_is_known(tiny_llama: Path) -> None:
    content = json.loads((tiny_llama / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 5}
    with pytest.raises(BaseException, match="stride") as caught:
        tokenizers.Tokenizer.from_str(json.dumps(content)).encode("a b c d e f g h i j k l m n")
    assert is_panic(caught.value)
    assert not isinstance(caught.value, Exception)


def test_a_panic_while_it_loads_is_an_error_of_the_checkpoint(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(_: Path) -> NoReturn:
        raise type("PanicException", (BaseException,), {})("index out of bounds")

    monkeypatch.setattr(lmdeploy.tokenizer, "is_resolved", lambda _: True)
    monkeypatch.setattr(lmdeploy.tokenizer, "read_resolved", breaks_off)
    with pytest.raises(CheckpointError, match=r"its tokenizer cannot be loaded \(index out of bounds\)"):
        Tokenizer(str(tiny_llama))


def test_a_template_that_never_ends_in_itself_is_refused() -> None:
    template = JinjaChatTemplate("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}")
    with pytest.raises(ValueError, match="refused by the model's chat template: maximum recursion depth"):
        template.render([{"role": "user", "content": "-"}])
    with pytest.raises(ValueError, match="nested too deeply"):
        JinjaChatTemplate("{{" + "(" * 20_000 + "1" + ")" * 20_000 + "}}").require_valid()


def test_a_decoder_that_is_published_for_embeddings_says_so(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    resolve(folder)
    assert "is_causal false is for embeddings" in caplog.text
