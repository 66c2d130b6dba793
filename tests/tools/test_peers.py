"""Other engines alongside ours: who runs, in what order, and what is made of what they print."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.paths import default_model_dir
from lmdeploy.turbomind.engine_dir import resolve
from tests.kernels.device import host_module
from tests.support import fake_peers
from tools.bench.peers import llama_cpp
from tools.bench.peers.genai import genai
from tools.bench.peers.install import llama_options
from tools.bench.peers.paths import gguf, llama_tool, openvino_python, why_missing
from tools.bench.roofline import ModelCost, engine_cost
from tools.bench.stats import Record, steady_rate, summarize
from tools.bench.turns import numbered, ratio, take_turns
from tools.bench.workload import TokenRequest, token_requests

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = Path("some-model")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_PEERS_LOG", str(tmp_path / "calls"))
    return tmp_path / "calls"


def test_llama_cpp_is_built_without_the_matrix_units_that_it_traps_on(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx512f amx_tile amx_int8\n", encoding="utf-8")
    assert "-mno-amx-int8" in llama_options(cpuinfo)["CMAKE_CXX_FLAGS"]
    cpuinfo.write_text("flags : avx512f\n", encoding="utf-8")
    assert "CMAKE_CXX_FLAGS" not in llama_options(cpuinfo)
    assert llama_options(cpuinfo)["GGML_NATIVE"] == "ON"


def test_a_peer_that_is_not_there_says_what_to_do(log: Path) -> None:
    for peer in ("llama.cpp", "openvino"):
        assert "run `make peers`" in (why_missing(peer, MODEL, 4) or "")
    fake_peers.install(MODEL)
    assert [why_missing(peer, MODEL, 4) for peer in ("llama.cpp", "openvino")] == [None, None]
    gguf(MODEL, 8).unlink()
    assert "some-model-Q8_0.gguf is not there" in (why_missing("openvino", MODEL, 8) or "")


def test_llama_cpp_is_asked_for_the_same_lengths(log: Path) -> None:
    fake_peers.install(MODEL)
    assert llama_cpp.decode_rate(MODEL, 64, 96, "on") == 100.0
    assert llama_cpp.prefill_rate(MODEL, 512, 2, "off") == 101.0
    assert llama_cpp.streams_rate(MODEL, 8, 64, 32, "on") == 300.0
    assert llama_cpp.ik_rate(MODEL, 512, 0) == 60.0
    threads = llama_cpp.thread_count()
    assert log.read_text().splitlines() == [
        f"llama-bench 0 96 64 {threads}",
        f"llama-bench 512 0 0 {threads}",
        "llama-batched-bench 8 64 32 768",
        f"ik 512 0 {threads} 0,1",
    ]


def test_a_program_that_fails_shows_what_it_printed(log: Path) -> None:
    fake_peers.write_program(llama_tool("llama-bench"), fake_peers.FAILING)
    with pytest.raises(RuntimeError, match=r"(?s)llama-bench ended with 1 and no results.*no such processor"):
        llama_cpp.prefill_rate(MODEL, 512, 2, "on")
    fake_peers.write_program(openvino_python(), fake_peers.FAILING)
    with genai(MODEL, 4) as peer, pytest.raises(RuntimeError, match=r"(?s)ended while it answered.*no such processor"):
        peer.generate(token_requests(1, 4, 4, 0), 1)


def test_openvino_answers_in_records(log: Path) -> None:
    fake_peers.install(MODEL)
    with genai(MODEL, 4) as peer:
        records = peer.generate([TokenRequest((5, 6, 7), 11)] * 2, 2)
        assert [(record.input_len, record.output_len) for record in records] == [(3, 11)] * 2
        assert steady_rate(records) == pytest.approx(20.0)
        assert peer.generate([TokenRequest((5,), 3)], 1)[0].first_token_latency == 1.0


def test_steady_rate_is_that_of_the_steps_whatever_the_order_inside_a_step() -> None:
    generator = random.Random(0)
    # Eight streams in steps of 10 ms; prompts enter one a step, so the first ones have tokens before the last begins.
    records = []
    for stream in range(8):
        steps = range(stream, 40)
        records.append(Record(0.0, [(step * 0.01 + generator.uniform(0, 1e-6), 1) for step in steps]))
    assert steady_rate(records) == pytest.approx(8 / 0.01, rel=1e-3)
    with pytest.raises(RuntimeError, match="too short"):
        steady_rate([Record(0.0, [(0.1, 1), (0.2, 1)]), Record(0.0, [(0.5, 1), (0.6, 1)])])


def test_sides_take_turns() -> None:
    calls: list[str] = []

    def side(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = take_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 3, str)
    assert calls == ["a", "b"] * 3
    assert results == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([10, 30, 20], [10, 10, 10]) == 2.0
    assert ratio([10, 20, 90], [10]) == 2.0  # a side measured once repeats
    runs = {
        name: [summarize([Record(0.0, [(1.0, count)])], 1.0) for count in counts]
        for name, counts in {"ours": (10, 30, 20), "peer": (5, 5, 20)}.items()
    }
    assert list(numbered(runs)) == ["ours (1)", "ours (2)", "ours (3)", "peer (1)", "peer (2)", "peer (3)"]


def test_a_step_reads_the_checkpoint_s_matrices_once(default_model_dir: Path) -> None:
    sizes, dim = Sizes.read(default_model_dir), resolve(str(default_model_dir)).spec.head_dim
    with safe_open(default_model_dir / "model.safetensors", framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118, it is no dict
    elements = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        assert engine_cost(sizes, TurbomindEngineConfig(dtype=dtype), dim).weight_bytes() == size * elements
    rounded = engine_cost(sizes, TurbomindEngineConfig(weight_bits=4), dim)
    # 4 bits and a 16th of a float16 scale for each weight; the output layer has 8.
    assert rounded.weight_bytes() == (elements - sizes.output) * (4 + 0.5) / 8 + sizes.output * (8 + 0.5) / 8
    assert rounded.row_operations == 2 * (elements - sizes.output)


@pytest.mark.parametrize(("quant_policy", "bits"), [(0, 16), (8, 8), (4, 4)])
def test_a_token_takes_as_much_of_the_cache_as_the_engine_keeps_for_it(
    quant_policy: int, bits: int, default_model_dir: Path
) -> None:
    spec = resolve(str(default_model_dir)).spec
    block = host_module().cache_block_bytes(bits, (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim, 64))
    config = TurbomindEngineConfig(dtype="bfloat16", quant_policy=quant_policy)
    cost = engine_cost(Sizes.read(default_model_dir), config, spec.head_dim)
    assert cost.cache_bytes == spec.num_layers * block / 64


def test_a_share_counts_weights_once_a_step_and_every_stream_s_context() -> None:
    sizes = Sizes(
        embedding=1, output=1, is_tied=False, dense=1, expert=0, experts=0, experts_per_token=0, cached=1, attention=1
    )
    cost = ModelCost(sizes, dense_bytes=900, output_bytes=100, cache_bytes=10)
    assert cost.bandwidth_share(1e6, rate=100, context=100) == pytest.approx(0.2)
    # 4 streams, 25 steps a second: 25 x 1000 bytes of weights, 100 x 1000 of cache
    assert cost.bandwidth_share(1e6, rate=100, context=100, streams=4) == pytest.approx(0.125)


def test_the_default_model_has_a_directory_of_its_name(log: Path) -> None:
    assert gguf(default_model_dir(), 4).name == "SmolLM2-135M-Instruct-Q4_0.gguf"
