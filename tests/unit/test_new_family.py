"""`lmdeploy new-family` says what a config asks for, and writes a family that loads."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.cli.main import main
from lmdeploy.turbomind.families import family_of
from lmdeploy.turbomind.families.common import Checkpoint, llama_config

# Names and fields of no family; the sizes are those of a Llama.
CONFIG = {
    "architectures": ["FreshForCausalLM"],
    "model_type": "fresh",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
}


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | more))
    assert main(["new-family", str(tmp_path), "--output", str(tmp_path / "fresh.py")]) == 0
    return capsys.readouterr().out


def test_the_family_that_is_written_describes_a_llama(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, capsys)
    family = runpy.run_path(str(tmp_path / "fresh.py"))["FAMILY"]
    assert family.architectures == ("FreshForCausalLM",)
    checkpoint = Checkpoint("FreshForCausalLM", "fresh", "bfloat16", 1)
    _, llama = family_of(["LlamaForCausalLM"])
    config = llama_config(CONFIG)
    assert family.config is not None
    assert family.spec(family.config(CONFIG), checkpoint) == llama.spec(config, checkpoint)
    assert family.tensors(llama.spec(config, checkpoint)) == llama.tensors(llama.spec(config, checkpoint))


def test_fields_are_told_apart_by_who_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(tmp_path, capsys, logit_scale=0.25, frobs_a_token=7, use_cache=True, head_gate=None)
    shared, special, unread = printed.split("\nRead by ")
    assert "hidden_size" in shared
    assert "num_key_value_heads" in shared
    assert "logit_scale = 0.25\n    cohere.py" in special
    assert "frobs_a_token = 7" in unread
    assert "use_cache" not in printed
    assert "head_gate" not in printed
    assert "# frobs_a_token = 7: no family reads it" in (tmp_path / "fresh.py").read_text()


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, capsys)
    (tmp_path / "fresh.py").write_text("mine")
    assert main(["new-family", str(tmp_path), "--output", str(tmp_path / "fresh.py")]) == 1
    assert "fresh.py" in capsys.readouterr().err
    assert (tmp_path / "fresh.py").read_text() == "mine"
