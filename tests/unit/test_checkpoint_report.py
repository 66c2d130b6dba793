"""``lmdeploy check_env --model`` says what is read of a checkpoint, from which file, and how its cache is grouped."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers

from lmdeploy.capacity.groups import MemoryGroup, memory_groups
from lmdeploy.cli.checkpoint_report import checkpoint_report
from lmdeploy.cli.main import main
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.hybrid_models import make_hybrid
from tests.support.layered_models import MODELS
from tests.support.tiny_models import make_tiny


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


def test_a_program_is_printed_layer_by_layer(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--program", str(tiny_llama)]) == 0
    program = capsys.readouterr().out.split("\nprogram: \n")[1]
    assert program.startswith("embeddings\n  stream = embed(tokens)\n")
    assert "\nlayer 0\n  queries, keys, values = qkv(norm(stream))\n" in program


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 4 31B", "MiMo-V2-Flash"])
def test_groups_hold_what_transformers_caches(name: str, tmp_path: Path) -> None:
    architecture, fields = MODELS[name]
    directory = make_tiny(tmp_path / "model", architecture, **fields)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        cached = model(torch.arange(100, 140)[None], use_cache=True).past_key_values.layers
    kept: Counter[tuple[int, int]] = Counter()  # layers by the tokens that they keep of 40, and a token's values
    for layer in cached:
        if layer.keys is None:  # it attends to the keys of an earlier layer
            continue
        _, heads, tokens, size = layer.keys.shape
        kept[tokens, heads * (size + layer.values.shape[-1])] += 1
    # The token that comes next is not in that cache yet.
    groups = memory_groups(resolve(directory).spec)
    assert Counter({(g.window - 1 if g.window else 40, g.values): g.layers for g in groups}) == kept


def test_layers_with_a_state_are_a_group(tmp_path: Path) -> None:
    directory = make_hybrid(tmp_path / "model", "Qwen3-Next")
    kinds = transformers.AutoConfig.from_pretrained(directory).layer_types
    groups = {group.kind: group.layers for group in memory_groups(resolve(directory).spec)}
    assert groups == {"paged": kinds.count("full_attention"), "state": kinds.count("linear_attention")}


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (MemoryGroup("paged", 1, values=1536), "all tokens in 1 layer, 1,536 values a token"),
        (MemoryGroup("chunk", 3, 8192, 64), "the last chunk of 8,192 tokens in 3 layers, 64 values a token"),
        (MemoryGroup("cross", 8, values=2048), "images in 8 layers, 2,048 values a row"),
        (MemoryGroup("state", 2), "a state in 2 layers"),
    ],
)
def test_a_group_is_a_sentence(group: MemoryGroup, text: str) -> None:
    assert str(group) == text


def test_check_env_shows_the_groups_of_a_model(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--model", str(tiny_llama)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "model: LlamaForCausalLM, 2 layers, engine turbomind" in lines
    assert all(any(line.startswith(name) for line in lines) for name in ("end token ", "chat template: "))
    assert lines[-1] == "cache group 0: all tokens in 2 layers, 32 values a token"


def test_check_env_names_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--model", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err
