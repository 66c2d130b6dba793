"""Experts of `transformers` on the engine's kernels: what the authors' code gives, in parts too, whatever the batch."""

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers.models.dbrx.modeling_dbrx import DbrxExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.ranks import Ranks
from lmdeploy.pytorch.replacing.experts import NativeExperts, is_experts
from lmdeploy.pytorch.replacing.functions import linear_by
from tests.pytorch.test_ranks import Unmet

HIDDEN, CHANNELS, EXPERTS = 48, 32, 4
SIZES: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": CHANNELS, "num_local_experts": EXPERTS}
DBRX = {"hidden_size": HIDDEN, "ffn_hidden_size": CHANNELS, "moe_num_experts": EXPERTS}
KINDS: dict[str, tuple[type[torch.nn.Module], Any]] = {
    "with a gate": (MixtralExperts, transformers.MixtralConfig(**SIZES)),
    "transposed, with biases": (GptOssExperts, transformers.GptOssConfig(**SIZES)),
    "without a gate": (
        NemotronHExperts,
        transformers.NemotronHConfig(hidden_size=HIDDEN, moe_intermediate_size=CHANNELS, n_routed_experts=EXPERTS),
    ),
    "all in one matrix": (DbrxExperts, transformers.models.dbrx.configuration_dbrx.DbrxFFNConfig(**DBRX)),
}


def make(kind: str) -> torch.nn.Module:
    made, config = KINDS[kind]
    config._experts_implementation = "eager"
    reference = made(config)
    random = torch.Generator().manual_seed(7)
    for parameter in reference.parameters():
        parameter.data.normal_(std=0.2, generator=random)
    return reference.eval().requires_grad_(False)


def choices(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, the two experts of each row, and their weights."""
    random = torch.Generator().manual_seed(rows)
    ids = torch.rand(rows, EXPERTS, generator=random).topk(2).indices
    return torch.randn(rows, HIDDEN, generator=random), ids, torch.rand(rows, 2, generator=random)


@pytest.mark.parametrize("kind", KINDS)
def test_experts_give_what_their_authors_do(kind: str) -> None:
    reference = make(kind)
    assert is_experts(reference)
    x, ids, weights = choices(13)
    x = x if kind != "all in one matrix" else x[None]
    expected = reference(x, ids, weights)
    whole = NativeExperts(copy.deepcopy(reference), kernels(2), Ranks())(x, ids, weights)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)
    parts = [NativeExperts(copy.deepcopy(reference), kernels(2), Unmet(rank, 2))(x, ids, weights) for rank in range(2)]
    assert (parts[0] - whole).abs().max() > 1e-2
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-5)


def test_a_row_has_the_same_bits_alone() -> None:
    experts = NativeExperts(make("with a gate"), kernels(2), Ranks())
    x, ids, weights = choices(29)
    together = experts(x, ids, weights)
    for row in range(len(x)):
        assert torch.equal(experts(x[row : row + 1], ids[row : row + 1], weights[row : row + 1])[0], together[row])


def test_channels_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="tp=3 does not divide the channels of an expert, 32"):
        NativeExperts(make("with a gate"), kernels(2), Ranks(0, 3))


def test_products_in_modelling_code_have_the_same_bits_alone() -> None:
    reference = torch.nn.functional.linear
    native = linear_by(kernels(2), reference)
    x, (weight, bias) = choices(31)[0], (torch.randn(8, HIDDEN), torch.randn(8))
    together = native(x, weight, bias)
    torch.testing.assert_close(together, reference(x, weight, bias), rtol=1e-4, atol=1e-5)
    for row in range(len(x)):
        assert torch.equal(native(x[row : row + 1], weight, bias)[0], together[row])
    half = x.bfloat16()
    assert torch.equal(native(half, weight.bfloat16()), reference(half, weight.bfloat16()))
