"""Which kernels a worker on a GPU trusts: those that bring what float64 brings."""

import logging
from collections.abc import Iterator

import pytest
import torch

from lmdeploy.pytorch.kernels import awq_linear, decoding_attention, fp8_linear, int8_linear, prompt_attention
from lmdeploy.pytorch.paged import LayerShape
from lmdeploy.pytorch.start import attention, quantized
from lmdeploy.pytorch.start.flex import flex_prompt_attention
from tests.kernels.reference import attention_of_last
from tests.pytorch.kernels.steps import Cache, Step

SHAPE = LayerShape(2, 32, 16)
BLOCK_LEN = 8
LINEAR = {"awq": (awq_linear, "awq_linear"), "int8": (int8_linear, "int8_linear"), "fp8": (fp8_linear, "fp8_linear")}


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Nothing has been checked yet, and is checked again afterwards."""
    for check in (attention.uses_native, quantized.uses_native):
        check.cache_clear()
    yield
    for check in (attention.uses_native, quantized.uses_native):
        check.cache_clear()


@pytest.mark.parametrize("rule", [{}, {"window": 9}, {"softcap": 4.0}, {"has_sinks": True}])
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_flex_attention_brings_what_float64_brings(
    bits: int, rule: dict[str, float], random: torch.Generator, device: torch.device
) -> None:
    spans = [(5, 5), (3, 40), (1, 17), (300, 300)]
    options = {"kv_heads": 2, "dims": (32, 16), "block_len": BLOCK_LEN, "dtype": torch.float32, "device": device}
    step = Step(random, spans, **options)
    cache = Cache(bits, step.blocks, BLOCK_LEN, 2, (32, 16), torch.float32, device)
    step.fill(cache)
    query = torch.randn(sum(step.q_lens), 4, 32, generator=random).to(device)
    sinks = torch.randn(4, generator=random).to(device) if rule.get("has_sinks") else None
    rule = {"scale": 0.2, "sinks": sinks, **{name: rule[name] for name in rule if name != "has_sinks"}}
    with torch.inference_mode():
        got = flex_prompt_attention(
            query, cache.k, cache.v, step.q_start_loc, step.q_seqlens, step.kv_seqlens, step.block_offsets,
            max_q_len=300, v_dim=16, k_scales=cache.k_scales, v_scales=cache.v_scales, bits=bits, **rule,
        )  # fmt: skip
    for span, rows in enumerate(got.cpu().double().split(step.q_lens)):
        queries = query.split(step.q_lens)[span]
        assert rows == pytest.approx(attention_of_last(queries, *step.cached(span, bits), **rule), abs=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_our_attention_is_trusted(dtype: torch.dtype, device: torch.device) -> None:
    assert attention.uses_native(SHAPE, dtype, device)


@pytest.mark.parametrize("broken", [prompt_attention, decoding_attention])
def test_attention_that_differs_is_left_to_pytorch(
    broken: object, device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = broken.__name__.rpartition(".")[2]
    right = getattr(broken, name)
    monkeypatch.setattr(broken, name, lambda *args, **options: right(*args, **options) * 1.01)
    with caplog.at_level(logging.WARNING):
        assert not attention.uses_native(SHAPE, torch.float32, device)
    assert "own kernels are left out of attention: it differs from float64 by 0.0" in caplog.text


def test_attention_that_cannot_be_compiled_is_left_to_pytorch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler for\nsm_100")

    monkeypatch.setattr(prompt_attention, "prompt_attention", fail)
    with caplog.at_level(logging.WARNING):
        assert not attention.uses_native(SHAPE, torch.float32, device)
    assert "own kernels are left out of attention: RuntimeError: no compiler for sm_100" in caplog.text


def test_the_environment_names_the_attention(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "attention=torch")
    assert not attention.uses_native(SHAPE, torch.float32, device)


@pytest.mark.parametrize("kind", LINEAR)
def test_our_products_with_codes_are_trusted(kind: str) -> None:
    if kind == "fp8" and torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU lacks the type")
    assert quantized.uses_native(kind)


@pytest.mark.parametrize("kind", LINEAR)
def test_products_that_differ_are_left_to_pytorch(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, name = LINEAR[kind]
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: right(*args, **options) * 1.02)
    with caplog.at_level(logging.WARNING):
        assert not quantized.uses_native(kind)
    assert f"own kernels are left out of linear layers on {kind} codes: products of 3 rows differ" in caplog.text


def test_the_environment_leaves_codes_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "codes=torch")
    assert not any(quantized.uses_native(kind) for kind in LINEAR)
