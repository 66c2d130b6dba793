"""Expressions over checkpoint tensors: the engine reads from them what torch computes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lmdeploy.turbomind.manifest import (
    Expression,
    Load,
    Manifest,
    concat,
    find_problems,
    permute,
    reshape,
    rows_of,
    transpose,
)
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from tests.kernels import device
from tests.support.manifest_weights import execute

STACKED = Load("stacked", (3, 4, 10))
MATRIX = Load("matrix", (6, 4))
CASES: dict[str, Expression] = {
    "load": STACKED,
    "concat": concat(MATRIX, MATRIX),
    "rows": rows_of(MATRIX, 2, 5),
    "inner slice": rows_of(STACKED, 1, 3, dim=1),
    "transpose": transpose(MATRIX),
    "rows taken in turns": reshape(permute(reshape(MATRIX, 3, 2, 4), 1, 0, 2), 6, 4),
    "middle dimensions swapped": permute(reshape(STACKED, 3, 2, 2, 10), 0, 2, 1, 3),
    "inner dimensions swapped": permute(STACKED, 0, 2, 1),
    "nothing moved": permute(STACKED, 0, 1, 2),
    "an expert's neighbouring gates and ups, apart": reshape(
        permute(reshape(rows_of(STACKED, 1, 2), 4, 5, 2), 2, 1, 0), 10, 4
    ),
    "joined after rearranging": concat(transpose(MATRIX), rows_of(reshape(STACKED, 20, 6), 0, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_the_engine_reads_what_torch_computes(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    values = {"stacked": torch.arange(120.0).view(3, 4, 10), "matrix": -torch.arange(24.0).view(6, 4)}
    save_file({key: value.to(dtype) for key, value in values.items()}, tmp_path / "model.safetensors")
    index = read_checkpoint(tmp_path)
    tensors = {"x": CASES[name]}
    assert not find_problems(tensors, index)
    manifest = Manifest.build(tensors, index)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    expected = execute(manifest)["x"]
    assert expected.shape == CASES[name].shape
    found = device.read_tensor(tmp_path, "x", list(expected.shape))
    assert torch.equal(found, expected)


BROKEN: dict[str, tuple[Expression, str]] = {
    "slice beyond the end": (rows_of(MATRIX, 2, 7), r"tensor x: slice 2\.\.7 of dimension 0 is outside"),
    "dimension twice": (permute(MATRIX, 0, 0), "tensor x: permute must name every dimension once"),
    "too many elements": (reshape(MATRIX, 5, 5), "tensor x: reshape must keep the number of elements, 24"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    expression, reason = BROKEN[case]
    save_file({"matrix": torch.zeros(6, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "manifest.json").write_text(Manifest.build({"x": expression}, read_checkpoint(tmp_path)).to_json())
    with pytest.raises(ValueError, match=reason):
        device.read_tensor(tmp_path, "x", list(expression.shape))


def test_gates_and_ups_are_taken_apart() -> None:
    value = torch.arange(40.0).view(4, 5, 2)  # [hidden, size, gate or up]
    columns = value.permute(2, 1, 0).reshape(10, 4)
    assert torch.equal(columns[:5], value[:, :, 0].T)
    assert torch.equal(columns[5:], value[:, :, 1].T)
