"""Checkpoints in ``pytorch_model*.bin`` are read as tensors alone, and rewritten once."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lmdeploy.paths import cache_root
from lmdeploy.turbomind.engine_dir import CheckpointError, resolve
from tests.support.manifest_weights import load_weights

CopyOf = Callable[[Path], Path]
INDEX = "pytorch_model.bin.index.json"


def as_bins(checkpoint: Path, count: int = 1, *, index: bool = True, legacy: bool = False) -> Path:
    """Put a checkpoint's tensors into ``count`` pickled files."""
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    weight_map = {}
    for number in range(count):
        name = f"pytorch_model-{number + 1:05}-of-{count:05}.bin" if count > 1 else "pytorch_model.bin"
        part = {key: tensors[key] for key in sorted(tensors)[number::count]}
        torch.save(part, checkpoint / name, _use_new_zipfile_serialization=not legacy)
        weight_map |= dict.fromkeys(part, name)
    if count > 1 and index:
        (checkpoint / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return checkpoint


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before PyTorch 1.6"])
@pytest.mark.parametrize(("count", "index"), [(1, False), (3, True), (3, False)])
def test_the_weights_are_those_of_the_safetensors(
    tiny_llama: Path, copy_of: CopyOf, count: int, index: bool, legacy: bool
) -> None:
    expected = load_weights(resolve(tiny_llama))
    got = load_weights(resolve(as_bins(copy_of(tiny_llama), count, index=index, legacy=legacy)))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_what_transformers_saves_is_read_with_tensors_that_share_memory(tiny_llama: Path, copy_of: CopyOf) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    checkpoint = copy_of(tiny_llama)
    (checkpoint / "model.safetensors").unlink()
    torch.save(model.state_dict(), checkpoint / "pytorch_model.bin")  # with the head, which is the embedding
    assert load_weights(resolve(checkpoint)).keys() == load_weights(resolve(tiny_llama)).keys()


def test_it_is_rewritten_once_and_says_so(
    tiny_llama: Path, copy_of: CopyOf, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = as_bins(copy_of(tiny_llama), 2)
    files = json.loads((resolve(checkpoint).path / "manifest.json").read_text())["files"]
    stderr = capsys.readouterr().err
    assert [f"({number} of 2)" in stderr for number in (1, 2)] == [True, True]
    assert all(cache_root() / "rewritten" in Path(file).parents for file in files)
    times = [Path(file).stat().st_mtime_ns for file in files]
    resolve(checkpoint)
    assert capsys.readouterr().err == ""
    shutil.rmtree(Path(files[0]).parent)
    resolve(checkpoint)  # removed from the cache, it is written again
    assert [Path(file).stat().st_mtime_ns for file in files] > times


class Touch:
    """Content of a malicious file: a call that leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return open, (str(self.path), "w")  # type: ignore[return-value]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called(
    tiny_llama: Path, copy_of: CopyOf, tmp_path: Path, zipped: bool
) -> None:
    checkpoint, trace = as_bins(copy_of(tiny_llama)), tmp_path / "executed"
    content = {"model.norm.weight": torch.ones(2), "x": Touch(trace)}
    with (checkpoint / "pytorch_model.bin").open("wb") as file:
        torch.save(content, file) if zipped else pickle.dump({"x": Touch(trace)}, file)
    with pytest.raises(CheckpointError, match=r"\.bin: holds more than tensors.*nothing of it was executed"):
        resolve(checkpoint)
    assert not trace.exists()
    assert not list((cache_root() / "rewritten").rglob(".writing-*"))
    with (checkpoint / "pytorch_model.bin").open("rb") as file:  # the trace is real: this is what was not done
        torch.load(file, weights_only=False) if zipped else pickle.load(file)
    assert trace.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": torch.ones(1), "step": 3}, "'step' must be the name of a tensor, got int"),
        ({"state_dict": {"a": torch.ones(1)}}, "'state_dict' must be the name of a tensor, got dict"),
        ([torch.ones(1)], "must hold tensors by name, got list"),
    ],
)
def test_anything_but_tensors_is_refused_by_name(tiny_llama: Path, copy_of: CopyOf, content: Any, reason: str) -> None:
    checkpoint = as_bins(copy_of(tiny_llama))
    torch.save(content, checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=reason):
        resolve(checkpoint)


@pytest.mark.parametrize("index", [True, False])
def test_every_missing_file_is_named(tiny_llama: Path, copy_of: CopyOf, index: bool) -> None:
    checkpoint = as_bins(copy_of(tiny_llama), 4, index=index)
    for number in (2, 4):
        (checkpoint / f"pytorch_model-{number:05}-of-00004.bin").unlink()
    with pytest.raises(CheckpointError) as caught:
        resolve(checkpoint)
    assert caught.value.problems == [f"pytorch_model-{n:05}-of-00004.bin is missing" for n in (2, 4)]


def test_a_tensor_that_its_file_lacks_and_a_cut_file_are_named(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = as_bins(copy_of(tiny_llama), 2)
    index = json.loads((checkpoint / INDEX).read_text())
    index["weight_map"]["model.extra.weight"] = "pytorch_model-00001-of-00002.bin"
    (checkpoint / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"00001-of-00002.bin lacks tensor model.extra.weight"):
        resolve(checkpoint)
    cut = checkpoint / "pytorch_model-00002-of-00002.bin"
    cut.write_bytes(cut.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"00002-of-00002.bin: (cannot be read|.*is broken)"):
        resolve(checkpoint)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {"a": "../outside.bin"}}'])
def test_a_broken_index_is_refused(tiny_llama: Path, copy_of: CopyOf, text: str) -> None:
    checkpoint = as_bins(copy_of(tiny_llama), 2)
    (checkpoint / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin.index.json is broken"):
        resolve(checkpoint)
