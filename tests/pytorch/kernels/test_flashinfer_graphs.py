"""FlashInfer in graphs: what it is given for each replay, by a stand-in with the interface that it documents.

That its own kernels do what the stand-in does is shown by nothing but the self-check on a GPU.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmdeploy.pytorch.graphs import DecodingGraphs
from lmdeploy.pytorch.paged import LayerShape
from lmdeploy.pytorch.start import attention, flashinfer
from tests.pytorch.kernels.conftest import Again, check
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make
from tests.support.worker_steps import Part, StepDriver

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the stand-in computes on the CPU")

SHAPE = LayerShape(2, 16, 16)
CPU = torch.device("cpu")


def attention_of(
    query: torch.Tensor, blocks: torch.Tensor, last: int, cache: Any, rule: dict[str, Any]
) -> torch.Tensor:
    """Return float64 causal attention of the last rows of a sequence in these blocks."""
    length = (len(blocks) - 1) * cache[0].shape[1] + last
    group = query.shape[1] // cache[0].shape[2]
    k, v = (tensor[blocks.long()].flatten(0, 1)[:length].double().repeat_interleave(group, 1) for tensor in cache)
    scores = torch.einsum("ihd,jhd->hij", query.double() * rule["sm_scale"], k)
    row = torch.arange(length - len(query), length)[:, None]
    weights = scores.masked_fill(torch.arange(length) > row, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).to(query.dtype)


class Prompts:
    """BatchPrefillWithPagedKVCacheWrapper."""

    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert (workspace.dtype, layout) == (torch.uint8, "NHD")

    def plan(self, **lists: Any) -> None:
        self._lists = lists

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, begins = self._lists["qo_indptr"].tolist(), self._lists["paged_kv_indptr"].tolist()
        last = self._lists["paged_kv_last_page_len"].tolist()
        return torch.cat(
            [
                attention_of(query[rows[i] : rows[i + 1]], self._lists["paged_kv_indices"][begins[i] : begins[i + 1]],
                         last[i], cache, self._lists)
                for i in range(len(last))
            ]
        )  # fmt: skip


class Tokens:
    """BatchDecodeWithPagedKVCacheWrapper in memory that is given: what is planned is in it, and nowhere else."""

    runs = 0
    factor = 1.0
    plans_once = False

    def __init__(
        self,
        workspace: torch.Tensor,
        layout: str,
        *,
        use_cuda_graph: bool,
        use_tensor_cores: bool,
        paged_kv_indptr_buffer: torch.Tensor,
        paged_kv_indices_buffer: torch.Tensor,
        paged_kv_last_page_len_buffer: torch.Tensor,
    ) -> None:
        assert not workspace.any(), "FlashInfer wants zeros at first"
        assert (layout, use_cuda_graph, use_tensor_cores) == ("NHD", True, False)
        self._memory = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        self._rule: dict[str, Any] = {}

    def plan(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, **rule: Any) -> None:
        if self.plans_once and self._rule:
            return
        given = indptr, indices, last_page_len
        assert all(tensor.dtype == torch.int32 and tensor.device.type == "cpu" for tensor in given)
        assert len(last_page_len) == len(self._memory[2])
        for memory, content in zip(self._memory, given, strict=True):
            memory[: len(content)] = content
        self._rule = rule

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        Tokens.runs += 1
        begins, blocks, last = (memory.tolist() for memory in self._memory)
        return self.factor * torch.cat(
            [
                attention_of(
                    query[i : i + 1], torch.tensor(blocks[begins[i] : begins[i + 1]]), last[i], cache, self._rule
                )
                for i in range(len(last))
            ]
        )


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlashInfer's place is taken, and it knows float32."""
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Prompts, BatchDecodeWithPagedKVCacheWrapper=Tokens)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer, "is_installed", lambda: True)
    monkeypatch.setattr(flashinfer, "_TYPES", (torch.float32,))
    monkeypatch.setattr(flashinfer, "_WORKSPACE_BYTES", 1 << 10)
    attention.served_by.cache_clear()
    yield
    attention.served_by.cache_clear()


def test_graphs_of_any_size_bring_what_their_steps_bring_alone(
    tmp_path: Path, gpu_driver: Callable[..., StepDriver]
) -> None:
    make(tmp_path / "model", "Qwen2ForCausalLM")
    options = {"dtype": "float32", "by_transformers": True}
    cpu = StepDriver(tmp_path / "model", VOCAB, HIDDEN, device="cpu", **options)
    gpu = gpu_driver(tmp_path / "model", VOCAB, HIDDEN, **options)
    gpu.runner._forward = DecodingGraphs(gpu.runner._model, Again).forward

    def runs(*parts: Part) -> int:
        before = Tokens.runs
        check(cpu, gpu, *parts)
        return Tokens.runs - before

    assert runs(Part(0, 0, [5, 17, 300]), Part(1, 0, [8]), Part(2, 0, [*range(20, 35)])) == 0
    first = runs(Part(0, 3, [41]), Part(1, 1, [42]), Part(2, 15, [43]))  # 4 rows, one of nobody
    layers = runs(Part(2, 16, [44]), Part(0, 4, [45]), Part(1, 2, [46]))  # over the end of a block
    assert first > layers > 0  # the first one is captured too
    runs(Part(1, 3, [47]))
    assert runs(Part(0, 5, [9])) == layers


def test_single_tokens_are_trusted_to_it_once_a_later_plan_was_obeyed() -> None:
    served = attention.served_by(SHAPE, torch.float32, CPU)
    assert served.library is not None
    assert served.library_tokens is not None


@pytest.mark.parametrize(("name", "value"), [("factor", 1.01), ("plans_once", True)])
def test_single_tokens_that_differ_are_left_to_ours(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Tokens, name, value)
    with caplog.at_level(logging.WARNING):
        served = attention.served_by(SHAPE, torch.float32, CPU)
    assert served.library is not None
    assert served.library_tokens is None
    assert served.is_native
    assert "library kernels are left out of attention of single tokens: it differs from float64" in caplog.text


def test_heads_of_two_sizes_are_left_to_ours() -> None:
    served = attention.served_by(LayerShape(2, 32, 16), torch.float32, CPU)
    assert served.library is not None
    assert served.library_tokens is None
