"""float8 whose scales a library's product applies: what surrounds it, and that only one which agrees with ours is used.

The library is emulated here: a loop that takes the scales where cuBLASLt does.
"""

import pytest
import torch

from tests.kernels.device import Device
from tests.kernels.emulated_library import NONE, RIGHT, WRONG, library, needs_emulation
from tests.kernels.reference import LARGEST_FLOAT8, round_to_float8
from tests.kernels.test_cuda_launches import only_checked
from tests.kernels.weights import Weight, quantized_weight

ROWS, LAST = 211, 3  # the last are no multiple of 16, and ours
OUTPUTS = 48
BLOCKS, WHOLE = (128, 128), (1, 1 << 20)
INPUTS = {BLOCKS: 320, WHOLE: 384}  # of blocks the last is not whole; the library takes whole steps of ring_linear

pytestmark = needs_emulation


def make_scaled(
    device: Device, block: tuple[int, int], bias: torch.Tensor | None = None, shape: tuple[int, int] | None = None
) -> Weight:
    """Return float8 codes of all sizes with scales of several magnitudes."""
    shape = shape or (OUTPUTS, INPUTS[block])
    size = torch.exp(2 * torch.randn(shape))
    quantized = (torch.randn(shape) * size).clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8).to(torch.float8_e4m3fn)
    scales = torch.exp(torch.randn(-(-shape[0] // block[0]), -(-shape[1] // block[1])) - 8)
    return quantized_weight(device, quantized, scales, block, bias)


@pytest.mark.parametrize("block", [BLOCKS, WHOLE], ids=["blocks", "rows"])
@pytest.mark.parametrize("adds", [False, True])
def test_a_librarys_product_is_that_of_rounded_inputs(
    block: tuple[int, int], adds: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    x = torch.randn(ROWS, INPUTS[block]) * torch.exp(2 * torch.randn(1, INPUTS[block]))
    before = torch.randn(ROWS, OUTPUTS) if adds else None
    with library("scales", RIGHT) as device:
        weight = make_scaled(device, block)
        y = device.linear(weight, x, before)
        # the self-check, and, where nothing is added, two: the binding asks twice.
        assert device.module.library_launches("scales") == (2 if adds else 3)
    assert "agrees with ours" in capfd.readouterr().err
    added = (y if before is None else y - before).double()
    exact = x.double() @ weight.exact.T
    by_library = round_to_float8(x, 128 if block == BLOCKS else INPUTS[block]) @ weight.exact.T
    # The kernel multiplies with the scale's inverse, so a number next to a border may be rounded the other way.
    assert (added - by_library)[:-LAST].norm() < 3e-3 * by_library.norm()
    assert (added - exact)[-LAST:].norm() < 1e-3 * exact[-LAST:].norm()
    magnitude = x.double().abs() @ weight.exact.abs().T
    assert ((added - exact).abs() <= 2**-4 * magnitude + 1e-5).all()


@pytest.mark.parametrize(("block", "launches"), [(BLOCKS, 2), (WHOLE, 1)], ids=["blocks", "rows"])
def test_a_weight_of_any_size_is_one_product_and_not_unpacked(block: tuple[int, int], launches: int) -> None:
    with library("scales", RIGHT) as device:
        weight, x = make_scaled(device, block, shape=(8224, 256)), torch.randn(192, 256)
        device.linear(make_scaled(device, block, shape=(16, 256)), x)  # with the self-check
        before = device.module.library_launches("scales"), device.module.calls_of("cudaLaunchKernel")
        with only_checked(device):
            device.linear(weight, x, torch.zeros(192, 8224))
        # The input is rounded, and scales of blocks are laid out.
        assert device.module.calls_of("cudaLaunchKernel") - before[1] == launches
        assert device.module.library_launches("scales") - before[0] == 1


@pytest.mark.parametrize("block", [BLOCKS, WHOLE], ids=["blocks", "rows"])
def test_rows_made_while_they_are_rounded_come_to_the_bits_of_those_made_before(block: tuple[int, int]) -> None:
    torch.manual_seed(4)
    size = 1104 if block == BLOCKS else 1152  # in blocks and out of them
    x, scale, bias = torch.randn(ROWS, 2 * size), torch.randn(size), torch.randn(size)
    rows = x[:, :size].contiguous()
    with library("scales", RIGHT) as device:
        weight = make_scaled(device, block, shape=(OUTPUTS, size))
        gated = device.linear(weight, device.activate(x, "gelu", is_gated=True))
        assert torch.equal(device.linear_of_gates(weight, x, "gelu"), gated)
        normed = device.linear(weight, device.layer_norm(rows, scale, bias, 1e-5))
        assert torch.equal(device.linear_of_norms(weight, rows, scale, 1e-5, bias), normed)


@pytest.mark.alike
@pytest.mark.parametrize("block", [BLOCKS, WHOLE], ids=["blocks", "rows"])
@pytest.mark.parametrize("kernel", [RIGHT, WRONG])
def test_a_librarys_products_pass_through_a_gated_mlp_in_bfloat16(
    block: tuple[int, int], kernel: int, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(5)
    x = torch.randn(ROWS, INPUTS[block])
    with library("scales", kernel) as device:
        up = make_scaled(device, block, shape=(512, INPUTS[block]))
        down = make_scaled(device, block, shape=(OUTPUTS, 256))
        y = device.gated_mlp(up, "silu", down, x)
        between = device.linear(up, x).bfloat16().float()
        expected = device.linear_of_gates(down, between, "silu")
    assert torch.equal(y[:-LAST], expected[:-LAST])
    assert (y - expected)[-LAST:].norm() < 0.1 * expected[-LAST:].norm()  # whose first product is the library's too
    assert ("rounded to bfloat16, agrees" in capfd.readouterr().err) == (kernel == RIGHT)


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    torch.manual_seed(2)
    x = torch.randn(ROWS, INPUTS[BLOCKS])
    with library("scales", RIGHT) as device:
        weight = make_scaled(device, BLOCKS)
        clean = device.linear(weight, x)
        x[7, 200] = float("nan")
        x[9, 300] = float("inf")
        y = device.linear(weight, x)
    assert y[[7, 9]].isnan().all()
    others = [row for row in range(ROWS) if row not in (7, 9)]
    assert torch.equal(y[others], clean[others])


@pytest.mark.alike
@pytest.mark.parametrize("reason", ["it is wrong", "the user said so", "rows are few", "there is a bias"])
@pytest.mark.parametrize("block", [BLOCKS, WHOLE], ids=["blocks", "rows"])
def test_a_librarys_product_is_left_out(block: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    if reason == "the user said so":
        monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "scales=own")
    x = torch.randn(100 if reason == "rows are few" else ROWS, INPUTS[block])
    with library("scales", WRONG if reason == "it is wrong" else RIGHT) as device:
        weight = make_scaled(device, block, torch.randn(OUTPUTS) if reason == "there is a bias" else None)
        reference = device.linear(weight, x)
        tried = device.module.library_launches("scales")
        device.module.set_library("scales", NONE)
        native = Device("emulated").linear(weight, x)
    assert torch.equal(reference, native)
    assert tried == (1 if reason == "it is wrong" else 0)
