"""``lmdeploy check_env --model`` says what is read of a checkpoint, and from which of its files."""

import json
import shutil
from pathlib import Path

import pytest

from lmdeploy.cli.checkpoint_report import checkpoint_report
from lmdeploy.cli.main import main


def test_each_fact_names_its_file(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    rows, end = config["vocab_size"], config["eos_token_id"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, rows + 5]}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    shutil.copy(folder / "model.safetensors", folder / "model_ema.safetensors")
    report = checkpoint_report(str(folder))
    assert "generation_config.json" in report["end token 7"]
    assert "ignored" not in report["end token 7"]
    assert "config.json: eos_token_id" in report[f"end token {end}"]
    assert f"ignored: the vocabulary has the tokens 0 to {rows - 1}" in report[f"end token {rows + 5}"]
    assert report["chat template"] == "chat_template.json"
    assert report["vocabulary"].startswith(f"{rows} rows of the embedding")
    assert report["rope"].startswith("config.json: rope_")
    assert report["quantization"] == "none"
    assert report["ignored files"] == "model_ema.safetensors"


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq, 4 bits, from config.json"),
        ("quantize_config.json", {"bits": 8, "group_size": 128}, "gptq, 8 bits, from quantize_config.json"),
    ],
)
def test_quantization_names_where_it_is_said(
    tmp_path: Path, file: str, content: dict[str, object], expected: str
) -> None:
    from lmdeploy.cli.checkpoint_report import _quantization

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_text(json.dumps(content))
    assert _quantization(tmp_path) == expected


def test_the_command_prints_it(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--model", str(tiny_llama)]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name}" in printed for name in ("model: Llama", "end token ", "chat template: ", "cache group 0: "))


def test_a_program_is_printed_layer_by_layer(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--program", str(tiny_llama)]) == 0
    program = capsys.readouterr().out.split("\nprogram: \n")[1]
    assert program.startswith("embeddings\n  stream = embed(tokens)\n")
    assert "\nlayer 0\n  queries, keys, values = qkv(norm(stream))\n" in program
