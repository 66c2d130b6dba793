"""Devices: one page says where one plugs in, and one there is no code for is refused by name."""

import re
from pathlib import Path

import pytest

from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.turbomind.supported import reject_unsupported_engine

ROOT = Path(__file__).resolve().parents[2]
# Places for tools of PyTorch's devices, and for the kernels of one device themselves.
ELSEWHERE = re.compile(r"lmdeploy/(lite/|cli/lite)|backend_cpp/(tests|testing|kernels/cuda)/|/cuda_\w+\.(cc|h)$")


def test_the_guide_names_every_file_that_knows_the_devices_by_name() -> None:
    guide = (ROOT / "docs" / "internals" / "new-device.md").read_text(encoding="utf-8")
    files = [file for folder in ("backend_cpp", "lmdeploy") for file in (ROOT / folder).rglob("*.*")]
    sources = {str(file.relative_to(ROOT)): file for file in files if file.suffix in (".cc", ".h", ".py")}
    knowing = [
        name for name, file in sources.items() if not ELSEWHERE.search(name) and '"cuda"' in file.read_text("utf-8")
    ]
    assert len(knowing) > 4
    assert [name for name in knowing if f"`{name}`" not in guide] == []


def test_the_guide_names_files_that_exist() -> None:
    guide = (ROOT / "docs" / "internals" / "new-device.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./]+/[\w.]*)`", guide)
    assert len(named) > 12
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("device", ["ascend", "maca", "camb"])
def test_a_device_there_is_no_code_for_is_refused_with_the_reason(device: str) -> None:
    with pytest.raises(
        ValueError, match=f"device_type must be cpu or cuda: there is no code for .* yet, got '{device}'"
    ):
        reject_unsupported_engine(PytorchEngineConfig(device_type=device))


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="device_type must be cpu or cuda, got 'abacus'"):
        reject_unsupported_engine(PytorchEngineConfig(device_type="abacus"))
    with pytest.raises(ValueError, match="device must be one of 'auto', 'cpu', 'cuda', got 'ascend'"):
        TurbomindEngineConfig(device="ascend")
