"""The matches on what people run: files of random weights, who runs them, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from lmdeploy.messages import TurbomindEngineConfig
from tests.support import fake_peers
from tests.support.gguf_files import byte_level_metadata, write_metadata
from tools.bench import larger
from tools.bench.compare import model_names, sizes
from tools.bench.inprocess import in_process
from tools.bench.larger import Choice
from tools.bench.matches import Rounds
from tools.bench.peers import ik_llama, shapes, vllm
from tools.bench.peers.install import failures
from tools.bench.peers.mistral import Usage, mistral
from tools.bench.peers.places import ik_tool, llama_tool, mistral_python, openvino_python, vllm_python
from tools.bench.peers.shapes import SHAPES, Shape, path_of, random_file, write
from tools.bench.roofline import Limits
from tools.bench.targets import LIMIT, OURS, TARGETS
from tools.bench.workload import GREEDY, token_requests

# As many tokens as the requests are drawn from, and more than the tokenizer has.
_SIZES = {"vocab": 49152 + 64, "hidden": 64, "inner": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32}
TINY = {name: replace(shape, **_SIZES, context=4096) for name, shape in SHAPES.items()}  # type: ignore[arg-type]
TINY["qwen3-30b-a3b"] = replace(TINY["qwen3-30b-a3b"], experts=8, experts_used=2)
TINY["gpt-oss-20b"] = replace(TINY["gpt-oss-20b"], experts=4, experts_used=2)


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.gguf"
    return write_metadata(file, "llama", byte_level_metadata(default_model_dir))


@pytest.fixture
def tiny(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny shapes instead of the real ones, and a cache without peers."""
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_PEERS_LOG", str(tmp_path / "calls"))
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)

    def write_tiny(shape: Shape, bits: int, file: Path) -> None:
        write(shape, bits, file, tokenizer)

    monkeypatch.setattr(shapes, "write", write_tiny)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("llama-3.2-1b", 16, 1_235_814_400),
        ("qwen3-4b", 36, 4_022_468_096),
        ("qwen3-30b-a3b", 48, 30_532_122_624),
        ("gpt-oss-20b", 24, 20_914_757_184),
    ],
)
def test_with_all_layers_a_shape_has_as_many_parameters_as_its_original(
    name: str, layers: int, parameters: int
) -> None:
    whole = replace(SHAPES[name], layers=layers)
    assert sum(math.prod(size) for size, _ in whole.tensors(4).values()) == parameters


def test_a_token_reads_the_experts_it_uses_and_no_embedding() -> None:
    shape = SHAPES["qwen3-30b-a3b"]
    experts = shape.layers * 128 * 3 * 2048 * 768 * 18 / 32
    embedding = 151936 * 2048 * 34 / 32
    assert shape.token_bytes(4) == shape.file_bytes(4) - embedding - experts * 120 / 128
    assert (SHAPES["gpt-oss-20b"].kind(4), shape.kind(4)) == ("MXFP4", "Q4_0")
    tied = SHAPES["llama-3.2-1b"]
    assert tied.token_bytes(8) == tied.file_bytes(8)


@pytest.mark.parametrize(
    ("name", "bits"), [("llama-3.2-1b", 16), ("qwen3-4b", 8), ("qwen3-30b-a3b", 4), ("gpt-oss-20b", 4)]
)
def test_a_file_of_random_weights_is_a_model_that_runs(name: str, bits: int, tokenizer: Path, tmp_path: Path) -> None:
    shape, file = TINY[name], tmp_path / "model.gguf"
    write(shape, bits, file, tokenizer)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert {name: tuple(reversed(tensor.shape.tolist())) for name, tensor in read.items()} == {
        name: size for name, (size, _) in shape.tensors(bits).items()
    }
    assert sum(tensor.n_bytes for tensor in read.values()) == shape.file_bytes(bits)
    for tensor in read.values():
        if tensor.n_elements > 4096 and "norm" not in tensor.name:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert 0.015 < float(values.std()) < 0.03, tensor.name
    config = TurbomindEngineConfig(max_batch_size=2, cache_max_entry_count=16, session_len=256)
    with in_process(str(file), config) as engine:
        assert (engine.spec.vocab_size, engine.spec.num_layers) == (shape.vocab, shape.layers)
        records = engine.generate(token_requests(2, 70, 5, seed=0), 2, GREEDY)
    assert [record.output_len for record in records] == [5, 5]


def test_a_file_stays_where_it_was_there_before(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with random_file("qwen3-4b", 4) as file:
        assert file.stat().st_size > SHAPES["qwen3-4b"].file_bytes(4)
        with random_file("qwen3-4b", 4) as again:
            assert again == file
        assert file.exists()
    assert not any(file.parent.iterdir())
    monkeypatch.setattr(shapes.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(RuntimeError, match=r"qwen3-4b-random-Q4_0.gguf takes 0.0 GB"), random_file("qwen3-4b", 4):
        pass


def played(choice: Choice, rounds: int) -> dict[str, tuple[dict[str, list[float]], float | None]]:
    return {
        title: (sides, share)
        for title, sides, share in larger.play(choice, Rounds(rounds, lambda: None), Limits(1e9, 1.0, 1.0))
    }


@pytest.mark.alone  # streams of a tiny model begin one after the other where others work
def test_peers_read_the_same_file_and_one_that_cannot_is_named(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Streams that are long enough to be there together.
    matches = (("decode", 1, 64, 64), ("streams", 2, 64, 1500), ("prefill", 1, 1024, 1))
    monkeypatch.setattr(larger, "_MATCHES", matches)
    fake_peers.install(Path("none"))
    fake_peers.write_program(openvino_python(), fake_peers.FAILING)
    fake_peers.write_program(mistral_python(), MISTRAL)
    fake_peers.write_program(ik_tool("llama-batched-bench"), fake_peers.FAILING)
    found = played(Choice(["moe"], models=["qwen3-30b-a3b"]), 2)
    name = "qwen3-30b-a3b"
    assert list(found) == [
        *(f"{name}: decode, {streams}, 4-bit" for streams in ("1 stream", "2 streams")),
        f"{name}: prefill of 1024, 4-bit",
    ]
    for sides, _ in found.values():
        assert list(sides)[:2] == [OURS, "llama.cpp Q4_0"]
        assert all(len(rates) == 2 and min(rates) > 0 for rates in sides.values())
    sides, share = found[f"{name}: decode, 1 stream, 4-bit"]
    assert share == pytest.approx(SHAPES[name].token_bytes(4) * sum(sides[OURS]) / 2 / 1e9)
    assert sides["llama.cpp Q4_0"] == [101.0, 101.0]
    assert sides["mistral.rs Q4_0"] == [pytest.approx(20.0)] * 2
    assert found[f"{name}: prefill of 1024, 4-bit"][0]["mistral.rs Q4_0"] == [pytest.approx(100.0)] * 2
    assert "mistral.rs Q4_0" not in found[f"{name}: decode, 2 streams, 4-bit"][0]
    # Both kinds of attention once, then the faster one.
    assert (tiny / "calls").read_text().splitlines()[:3] == [
        f"llama-bench 0 64 64 {larger.llama_cpp.thread_count()}"
    ] * 3
    printed = capsys.readouterr().out
    assert f"{name}: decode, 1 stream, 4-bit: ik_llama.cpp Q4_0 is left out: no such processor" in printed
    assert "openvino Q4_0 is left out: no such processor" in printed
    assert not path_of(name, 4).exists()


def test_long_contexts_have_a_row_for_the_prompt_and_one_for_what_follows(tiny: Path) -> None:
    fake_peers.install(Path("none"))
    fake_peers.write_program(ik_tool("llama-batched-bench"), IK)
    found = played(Choice(["long"], contexts=[80, 150], cache_bits=[16, 8]), 1)
    assert list(found) == [
        f"llama-3.2-1b: {what} {length}, 4-bit, {bits}-bit cache"
        for bits in (16, 8)
        for length in (80, 150)
        for what in ("prompt of", "decode after")
    ]
    prompt, _ = found["llama-3.2-1b: prompt of 150, 4-bit, 8-bit cache"]
    decode, _ = found["llama-3.2-1b: decode after 150, 4-bit, 8-bit cache"]
    assert prompt[OURS][0] > 0
    assert (prompt["llama.cpp Q4_0"], decode["llama.cpp Q4_0"]) == ([900.0], [300.0])
    assert (prompt["ik_llama.cpp Q4_0"], decode["ik_llama.cpp Q4_0"]) == ([512.5], [84.25])
    # The stand-in's first token comes after 1 s, the others every 0.1 s.
    assert (prompt["openvino Q4_0"], decode["openvino Q4_0"]) == ([150.0], [pytest.approx(10.0)])
    assert "openvino Q4_0" not in found["llama-3.2-1b: prompt of 150, 4-bit, 16-bit cache"][0]


def test_an_agent_s_day_runs_without_peers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.peers.conversations.AGENT_TURNS", 2)
    found = played(Choice(["agent"]), 1)
    (sides, _) = found["llama-3.2-1b: agent's day, 4-bit"]
    assert list(sides) == [OURS]
    assert sides[OURS][0] > 0


def test_what_is_promised_has_a_row() -> None:
    titles = {
        f"{name}: {larger.Match(part, bits, *counts)}"
        for kind in ("large", "moe")
        for name, bits in larger._MODELS[kind]
        for part, *counts in larger._MATCHES
    }
    promised = {title: sides for title, sides in TARGETS.items() if title.partition(":")[0] in SHAPES}
    assert {title for title in promised if "decode, " in title} <= titles
    assert promised["qwen3-4b: decode, 1 stream, 8-bit"] == {"llama.cpp Q8_0": 1.0, LIMIT: 0.9}


def test_flags_are_lists_with_commas() -> None:
    assert model_names("qwen3-4b,gpt-oss-20b") == ["qwen3-4b", "gpt-oss-20b"]
    assert sizes("4000,16000") == [4000, 16000]
    for read in (model_names, sizes):
        with pytest.raises(Exception, match="expected"):
            read("none")


def test_a_peer_that_cannot_be_installed_is_named_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    done = []

    def fail() -> None:
        raise RuntimeError("no wheel for this machine")

    steps: dict[str, Callable[[], None]] = {"one": fail, "two": lambda: done.append("two")}
    assert failures(steps) == ["one"]
    assert done == ["two"]
    assert "one: no wheel for this machine" in capsys.readouterr().out


VLLM = """
import http.server, os, sys
with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
    print(*sys.argv[1:], os.environ["VLLM_CPU_KVCACHE_SPACE"], file=log)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_vllm_serves_the_directory_and_keeps_no_prompts(tiny: Path) -> None:
    fake_peers.write_program(vllm_python(), VLLM)
    with vllm.serving(Path("some-model"), 16, 400) as url:
        assert url.startswith("http://127.0.0.1:")
    (call,) = (tiny / "calls").read_text().splitlines()
    for part in ("--model some-model", "--dtype bfloat16", "--no-enable-prefix-caching", "--max-model-len 401"):
        assert part in call
    fake_peers.write_program(vllm_python(), fake_peers.FAILING)
    with pytest.raises(RuntimeError, match="no such processor"), vllm.serving(Path("some-model"), 16, 400):
        pass


IK = """
import os, sys
with open(os.environ["FAKE_PEERS_LOG"], "a") as log:
    print("ik", *sys.argv[3:], file=log)
print("|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |")
print("|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|")
print("|    64 |     48 |    8 |    896 |    0.100 |   512.50 |    1.000 |    84.25 |    1.100 |   814.55 |")
"""


def test_ik_llama_s_table_is_read(tiny: Path) -> None:
    fake_peers.write_program(ik_tool("llama-batched-bench"), IK)
    assert ik_llama.rates(Path("some.gguf"), 8, 64, 48, 8) == (512.5, 84.25)
    (call,) = (tiny / "calls").read_text().splitlines()
    assert "-npp 64 -ntg 48 -npl 8 -c 896 -fa on -rtr -ctk q8_0 -ctv q8_0" in call
    fake_peers.write_program(ik_tool("llama-batched-bench"), fake_peers.FAILING)
    with pytest.raises(RuntimeError, match=r"(?s)ik_llama.cpp ended with 1 and no results.*no such processor"):
        ik_llama.rates(Path("some.gguf"), 8, 64, 48)


# Every prompt at 100 tokens/s, every response at 20.
MISTRAL = """
import json, sys
for line in sys.stdin:
    prompt, tokens = json.loads(line)
    count = len(prompt.split())
    print(json.dumps([count, count / 100, tokens, tokens / 20]), flush=True)
"""


def test_mistral_s_own_times_are_its_usage(tiny: Path) -> None:
    fake_peers.write_program(mistral_python(), MISTRAL)
    with mistral(Path("some.gguf")) as runner:
        assert runner.answer("one two three", 8) == Usage(3, 0.03, 8, 0.4)
    fake_peers.write_program(mistral_python(), fake_peers.FAILING)
    with mistral(Path("some.gguf")) as runner, pytest.raises(RuntimeError, match=r"(?s)mistral.rs ended.*no such"):
        runner.answer("one", 2)


def test_programs_that_are_not_there_have_no_side(tiny: Path) -> None:
    fake_peers.install(Path("none"))
    llama_tool("llama-batched-bench").unlink()
    openvino_python().unlink()
    found = played(Choice(["long"], contexts=[80], cache_bits=[8]), 1)
    assert [list(sides) for sides, _ in found.values()] == [[OURS], [OURS]]
