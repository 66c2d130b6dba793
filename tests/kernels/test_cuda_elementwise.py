"""The element by element operators on CUDA against float64, over sizes that do and do not fill vectors and blocks."""

import numpy as np
import pytest
import torch

from tests.kernels.cuda_device import CudaModule

EPS = 2.0**-24
# One warp a row up to 1024, a block beyond; vectors of four where the size is a multiple of it.
NORM_SIZES = [1, 15, 16, 576, 1001, 1028, 2049]


@pytest.mark.parametrize("size", NORM_SIZES)
def test_rms_norm_agrees_with_float64(cuda: CudaModule, size: int) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(5, size) * 3, torch.randn(size)
    wide = x.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = torch.from_numpy(cuda.norm(x.numpy(), False, weight.numpy(), None, 1e-5))
    torch.testing.assert_close(out.double(), exact, rtol=size * EPS + 4 * EPS, atol=1e-30)


@pytest.mark.parametrize("size", NORM_SIZES[1:])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm_agrees_with_float64_far_from_zero_too(cuda: CudaModule, size: int, has_bias: bool) -> None:
    torch.manual_seed(size)
    x = torch.randn(5, size) * 3 + torch.tensor([0.0, 1.0, -10.0, 100.0, 0.1])[:, None]
    weight, bias = torch.randn(size), torch.randn(size) if has_bias else None
    wide_bias = None if bias is None else bias.double()
    exact = torch.nn.functional.layer_norm(x.double(), (size,), weight.double(), wide_bias, 1e-5)
    out = torch.from_numpy(cuda.norm(x.numpy(), True, weight.numpy(), None if bias is None else bias.numpy(), 1e-5))
    # The mean is off by a few roundings of the largest value, 100, beside a spread of 3.
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(("first", "heads", "head_dim"), [(0, 3, 64), (4, 2, 18), (7, 5, 80), (0, 1, 1200)])
def test_heads_are_normed_one_by_one_and_what_lies_beside_them_stays(
    cuda: CudaModule, first: int, heads: int, head_dim: int
) -> None:
    torch.manual_seed(first)
    x, weight = torch.randn(6, first + heads * head_dim + 12), torch.randn(head_dim)
    end = first + heads * head_dim
    own = x[:, first:end].double().view(6, heads, head_dim)
    normed = own / (own.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    out = torch.from_numpy(cuda.norm_heads(x.numpy(), first, heads, head_dim, False, weight.numpy(), 1e-6))
    torch.testing.assert_close(out[:, first:end].double(), normed.flatten(1), rtol=head_dim * EPS + 4 * EPS, atol=1e-30)
    assert np.array_equal(out[:, :first], x[:, :first])
    assert np.array_equal(out[:, end:], x[:, end:])
