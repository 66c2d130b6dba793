"""The measurement of a GPU, tried out on the CPU: its numbers mean nothing here, that it has all of them does."""

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tools.bench import device_targets
from tools.bench.device_targets import Bench, Finding, Pace
from tools.bench.random_model import SHAPES, write


@pytest.mark.parametrize("shape", ["tiny"])
def test_a_random_model_is_a_checkpoint_that_transformers_reads(shape: str, tmp_path: Path) -> None:
    directory = write(shape, tmp_path / shape)
    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert {name: getattr(model.config, name) for name in SHAPES[shape][1]} == SHAPES[shape][1]
    text = "Größe, 大小"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(said, tokenize=False) == "a\nb\n"
    assert GenerationConfig.from_pretrained(directory).eos_token_id == 257


def test_every_line_of_the_table_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", ["device_targets", "--shape", "tiny", "--device", "cpu", "--json", str(report)])
    device_targets.main()
    found = {line["workload"]: line for line in json.loads(report.read_text())["found"]}
    assert {name.partition(":")[0] for name in found} == {
        "decode, batch 1",
        "decode, batch 4, context 32",
        "attention, 16-bit cache",
        "attention, 8-bit cache",
        "attention, 4-bit cache",
        "decode, batch 1, 4-bit weights",
        "prefill of 64",
        "full cache, 8-bit",
        "full cache, 4-bit",
    }
    assert all(line["value"] > 0 for line in found.values())
    assert found["prefill of 64: of the matrix products' rate"]["target"] == 0.65


def test_what_was_measured_before_a_failure_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bench: Bench) -> tuple[float, float]:
        raise RuntimeError("out of memory")

    report = tmp_path / "report.json"
    monkeypatch.setattr(Bench, "prefill_share", fail)
    monkeypatch.setattr(Bench, "step_pace", lambda *_: Pace(0.01, 0.9))
    monkeypatch.setattr(sys, "argv", ["device_targets", "--shape", "tiny", "--device", "cpu", "--json", str(report)])
    with pytest.raises(RuntimeError, match="out of memory"):
        device_targets.main()
    assert len(json.loads(report.read_text())["found"]) == 9


def test_a_promise_is_kept_from_its_value_on() -> None:
    assert Finding("x", 0.85, 0.85).cells() == ["x", "0.85", ">= 0.85", "met"]
    assert Finding("x", 0.849, 0.85).cells()[-1] == "missed"
    assert Finding("x", 3.0).cells() == ["x", "3", "", ""]
