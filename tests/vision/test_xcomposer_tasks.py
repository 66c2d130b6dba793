"""The tool that puts a task's low-rank matrices into the weights of an XComposer2.5."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.vl.tools import merge_xcomposer2d5_task
from tests.support.xcomposer_reference import make_tiny_xcomposer

KINDS = {"web": ["web"], "write": ["sft", "dpo"]}


def with_tasks(directory: Path) -> dict[str, torch.Tensor]:
    make_tiny_xcomposer(directory, tiles=True)
    tensors = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("attention.wqkv.weight", "feed_forward.w2.weight"))]:
        outputs, inputs = tensors[name].shape
        at = name.removesuffix("weight")
        for kind in ("sft", "dpo", "web"):
            tensors[f"{at}lora_{kind}_A.weight"] = torch.randn(8, inputs, generator=random)
            tensors[f"{at}lora_{kind}_B.weight"] = torch.randn(outputs, 8, generator=random)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return tensors


@pytest.mark.parametrize("task", KINDS)
def test_a_task_is_added_to_the_weights(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = with_tasks(tmp_path / "model")
    arguments = [str(tmp_path / "model"), str(tmp_path / "merged"), "--task", task]
    assert merge_xcomposer2d5_task.main(arguments) == 0
    assert f"{4 * len(KINDS[task])} pairs of matrices of {task}" in capsys.readouterr().out
    after = load_file(tmp_path / "merged" / "model.safetensors")
    assert after.keys() == {name for name in before if ".lora_" not in name}
    changed = set()
    for name, tensor in after.items():
        at = name.removesuffix("weight")
        expected = before[name].double()
        for kind in KINDS[task]:
            if f"{at}lora_{kind}_A.weight" in before:
                down, up = (before[f"{at}lora_{kind}_{part}.weight"].double() for part in "AB")
                expected = expected + up @ down
                changed.add(name)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-5)
    assert len(changed) == 4
    describe(tmp_path / "merged", "merged")  # a whole checkpoint


def test_what_cannot_be_merged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tiny_xcomposer(tmp_path / "plain")
    arguments = [str(tmp_path / "plain"), str(tmp_path / "merged"), "--task", "web"]
    assert merge_xcomposer2d5_task.main(arguments) == 1
    assert "has no low-rank matrices named lora_web_A" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()
    tensors = with_tasks(tmp_path / "model")
    del tensors["model.layers.0.attention.wqkv.lora_web_B.weight"]
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    arguments[0] = str(tmp_path / "model")
    assert merge_xcomposer2d5_task.main(arguments) == 1
    assert "tensor model.layers.0.attention.wqkv.lora_web_B.weight is missing" in capsys.readouterr().err
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "kept").touch()
    assert merge_xcomposer2d5_task.main([*arguments[:3], "write"]) == 1
    assert "is not empty" in capsys.readouterr().err
