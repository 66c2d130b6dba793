"""Every block format of GGUF stands for what the `gguf` package says: its numbers, and products with its codes.

Blocks are random bytes, scales apart, which are halves of a usual size.
"""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from lmdeploy.turbomind.gguf.header import BLOCK_TYPES, TYPES, read_header
from lmdeploy.turbomind.gguf.stored import describe_upcast
from lmdeploy.turbomind.manifest import Expression, Load, Manifest, concat, permute, reshape, rows_of
from lmdeploy.turbomind.safetensors_index import read_files
from tests.kernels import device
from tests.kernels.reference import round_activations

Type = gguf.GGMLQuantizationType
INPUTS = 768
# Where a block keeps halves.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "IQ1_M": (),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
    "MXFP4": (), "NVFP4": (),
}  # fmt: skip
# Formats whose scales are halves as they are stored; the others' are products, which kernels have in 11 bits.
EXACT = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"}
# Formats whose scales are products of a half and small integers, which are both in memory.
K_QUANTS = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}


def random_blocks(kind: str, rows: int, seed: int = 0) -> np.ndarray:
    """Return rows of blocks, ``[rows, bytes]``."""
    generator = np.random.default_rng(seed)
    _, in_block, size = next(entry for entry in TYPES.values() if entry[0] == kind)
    blocks = generator.integers(0, 256, (rows, INPUTS // in_block, size), np.uint8)
    for offset in HALVES[kind]:
        halves = generator.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = generator.integers(115, 128, blocks.shape[:2])  # powers of two of a usual size
    if kind == "NVFP4":
        blocks[..., :4] = generator.integers(32, 64, blocks[..., :4].shape)  # scales of a usual size
    if kind == "IQ1_M":  # a half of a usual size, four bits in each word
        words = blocks[..., 48:56].view(np.uint16)
        halves = generator.normal(0, 0.01, blocks.shape[:2]).astype(np.float16).view(np.uint16)
        for number in range(4):
            words[..., number] = words[..., number] & 0x0FFF | (halves >> 4 * number & 15) << 12
    return blocks.reshape(rows, -1)


def write(directory: Path, kinds: Sequence[str], rows: int = 24) -> list[torch.Tensor]:
    """Write matrices m0, m1, ... into a GGUF file; return their numbers as the package has them."""
    writer = gguf.GGUFWriter(directory / "x.gguf", "test")
    numbers = []
    for number, kind in enumerate(kinds):
        data = random_blocks(kind, rows, number)
        writer.add_tensor(f"m{number}", data, raw_dtype=Type[kind])
        numbers.append(torch.from_numpy(dequantize(data, Type[kind]).astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def load(number: int, rows: int = 24) -> Load:
    return Load(f"m{number}", (rows, INPUTS), BLOCK_TYPES)


def describe(directory: Path, expression: Expression) -> None:
    manifest = Manifest.build({"x": expression}, read_files([directory / "x.gguf"]), "gguf")
    (directory / "manifest.json").write_text(manifest.to_json())


def test_every_format_is_tried() -> None:
    assert set(HALVES) == set(BLOCK_TYPES)
    sizes = {name: (elements, size) for name, elements, size in TYPES.values()}
    assert sizes == {name: gguf.GGML_QUANT_SIZES[Type[name]] for name in sizes}


def test_what_wider_codes_take_in_memory_is_said(tmp_path: Path) -> None:
    write(tmp_path, ["IQ2_XXS", "Q4_0", "MXFP4"], rows=1000)
    index = read_files([tmp_path / "x.gguf"])
    assert describe_upcast(index) == (
        "codes of IQ2_XXS, MXFP4 are kept in 8 bits: 1.5 MB in memory, 0.6 MB in the file"
    )
    write(tmp_path, ["Q4_0"])
    assert describe_upcast(read_files([tmp_path / "x.gguf"])) == ""


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_numbers_and_products_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    (numbers,) = write(tmp_path, [kind])
    describe(tmp_path, load(0))
    # Products and sums of two or three float32 each.
    torch.testing.assert_close(device.read_tensor(tmp_path, "x", [24, INPUTS]), numbers, rtol=1e-6, atol=1e-7)
    rows, _ = device.look_up_quantized(tmp_path, "x", [24, INPUTS])
    error = 1e-6 if kind in EXACT | K_QUANTS else 2.0**-10
    torch.testing.assert_close(rows, numbers, rtol=error, atol=1e-6)
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1))
    found = device.multiply_quantized(tmp_path, "x", [24, INPUTS], x)
    assert found is not None
    group = 16 if kind in {"Q2_K", "Q3_K", "Q6_K", "NVFP4"} else 32
    rounded = round_activations(x, group).double()
    expected = rounded @ numbers.double().T
    bound = (rounded.abs() @ numbers.double().abs().T) * (1e-5 if kind in EXACT else 2.0**-9)
    if kind in {"Q2_K", "Q4_K", "Q5_K", "Q4_1", "Q5_1"}:
        bound *= 4  # scale code and minimum are larger than their sum
    assert ((found - expected).abs() <= bound).all()


@pytest.mark.parametrize("kind", sorted(K_QUANTS - {"Q2_K", "Q3_K", "IQ4_XS"}))
def test_a_matrix_has_at_most_a_twentieth_more_bytes_than_in_the_file(kind: str, tmp_path: Path) -> None:
    write(tmp_path, [kind], rows=32)
    describe(tmp_path, load(0, rows=32))
    _, size = device.look_up_quantized(tmp_path, "x", [32, INPUTS])
    assert size <= 1.05 * random_blocks(kind, 32).size


@pytest.mark.parametrize("kinds", [("Q4_0", "Q8_0"), ("Q4_K", "Q6_K"), ("Q4_0", "Q4_1"), ("Q3_K", "Q5_0", "Q2_K")])
def test_formats_that_are_joined_stay_codes(kinds: tuple[str, ...], tmp_path: Path) -> None:
    numbers = torch.cat(write(tmp_path, kinds))
    describe(tmp_path, concat(*(load(number) for number in range(len(kinds)))))
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(2))
    found = device.multiply_quantized(tmp_path, "x", list(numbers.shape), x)
    assert found is not None
    group = 16 if {"Q3_K", "Q6_K", "Q2_K"} & set(kinds) else 32
    rounded = round_activations(x, group).double()
    bound = (rounded.abs() @ numbers.double().abs().T) * 2.0**-7
    assert ((found - rounded @ numbers.double().T).abs() <= bound).all()


def test_rows_move_as_codes_and_inputs_are_cut(tmp_path: Path) -> None:
    (numbers,) = write(tmp_path, ["Q4_K"])
    swapped = reshape(permute(reshape(load(0), 2, 6, 2, INPUTS), 0, 2, 1, 3), 24, INPUTS)
    describe(tmp_path, swapped)
    expected = numbers.view(2, 6, 2, INPUTS).transpose(1, 2).reshape(24, INPUTS)
    torch.testing.assert_close(device.read_tensor(tmp_path, "x", [24, INPUTS]), expected, rtol=1e-6, atol=1e-7)
    assert device.multiply_quantized(tmp_path, "x", [24, INPUTS], torch.ones(1, INPUTS)) is not None
    describe(tmp_path, rows_of(load(0), 96, 480, dim=1))
    found = device.read_tensor(tmp_path, "x", [24, 384])
    torch.testing.assert_close(found, numbers[:, 96:480], rtol=1e-6, atol=1e-7)


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    write(tmp_path, ["Q4_0"])
    describe(tmp_path, load(0))
    begin = read_header(tmp_path / "x.gguf").tensors["m0"].offset
    content = bytearray((tmp_path / "x.gguf").read_bytes())
    content[begin : begin + 2] = np.float16("nan").tobytes()
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ValueError, match="must be finite halves"):
        device.multiply_quantized(tmp_path, "x", [24, INPUTS], torch.ones(1, INPUTS))


def test_a_file_cut_after_it_was_described_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ["Q8_0"])
    describe(tmp_path, load(0))
    content = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(content[:-64])
    with pytest.raises(ValueError, match="is beyond the end"):
        device.read_tensor(tmp_path, "x", [24, INPUTS])
