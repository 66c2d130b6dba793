"""The matches on what people run: files of random weights, who runs them, and what is left out."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from lmdeploy.messages import TurbomindEngineConfig
from tests.support import fake_peers
from tests.support.gguf_files import byte_level_metadata, write_metadata
from tests.support.tiny_models import make_tiny_llama
from tools.bench import matches, random_gguf
from tools.bench.compare import sizes, some_of
from tools.bench.inprocess import in_process
from tools.bench.matches import LARGER_MODELS, Choice, Match, Played, Rounds, larger_matches, play
from tools.bench.peers import vllm
from tools.bench.peers.install import failures
from tools.bench.peers.paths import llama_tool, openvino_python, vllm_python
from tools.bench.random_gguf import NAMES, file_bytes, file_cost, path_of, random_file, tensors, write
from tools.bench.roofline import Limits
from tools.bench.shapes import SHAPES, Shape
from tools.bench.targets import LIMIT, OURS, TARGETS
from tools.bench.workload import GREEDY, token_requests

# As many tokens as the requests are drawn from, and more than the tokenizer has, which takes long to write and to read.
_SIZES = {"vocab_size": 30_000 + 64, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 96}
_SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_SIZES |= {"max_position_embeddings": 4096, "num_experts": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
TINY = {name: SHAPES[name].having(**_SIZES) for name in NAMES}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    return write_metadata(folder / "tokenizer.gguf", "llama", byte_level_metadata(make_tiny_llama(folder / "tiny")))


@pytest.fixture
def tiny(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny shapes instead of the real ones, and a cache without peers."""
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_PEERS_LOG", str(tmp_path / "calls"))
    for name, shape in TINY.items():
        monkeypatch.setitem(SHAPES, name, shape)

    def write_tiny(shape: Shape, bits: int, file: Path) -> None:
        write(shape, bits, file, tokenizer)

    monkeypatch.setattr(random_gguf, "write", write_tiny)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [
        ("llama-3.2-1b", 16, 1_235_814_400),
        ("qwen3-4b", 36, 4_022_468_096),
        ("qwen3-30b-a3b", 48, 30_532_122_624),
    ],
)
def test_with_all_layers_a_shape_has_as_many_parameters_as_its_original(
    name: str, layers: int, parameters: int
) -> None:
    whole = SHAPES[name].having(num_hidden_layers=layers)
    assert sum(math.prod(size) for size, _ in tensors(whole, 4).values()) == parameters


def test_a_token_reads_the_experts_it_uses_and_no_embedding() -> None:
    shape = SHAPES["qwen3-30b-a3b"]
    experts = shape.config["num_hidden_layers"] * 128 * 3 * 2048 * 768 * 18 / 32
    embedding = 151936 * 2048 * 34 / 32
    assert file_cost(shape, 4).weight_bytes() == pytest.approx(file_bytes(shape, 4) - embedding - experts * 120 / 128)
    tied = SHAPES["llama-3.2-1b"]
    assert file_cost(tied, 8).weight_bytes() == file_bytes(tied, 8)


@pytest.mark.parametrize(("name", "bits"), [("llama-3.2-1b", 16), ("qwen3-4b", 8), ("qwen3-30b-a3b", 4)])
def test_a_file_of_random_weights_is_a_model_that_runs(name: str, bits: int, tokenizer: Path, tmp_path: Path) -> None:
    shape, file = TINY[name], tmp_path / "model.gguf"
    write(shape, bits, file, tokenizer)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert {name: tuple(reversed(tensor.shape.tolist())) for name, tensor in read.items()} == {
        name: size for name, (size, _) in tensors(shape, bits).items()
    }
    assert sum(tensor.n_bytes for tensor in read.values()) == file_bytes(shape, bits)
    for tensor in read.values():
        if tensor.n_elements > 4096 and "norm" not in tensor.name:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert 0.015 < float(values.std()) < 0.03, tensor.name
    config = TurbomindEngineConfig(max_batch_size=2, cache_max_entry_count=16, session_len=256)
    with in_process(str(file), config) as engine:
        assert (engine.spec.vocab_size, engine.spec.num_layers) == (shape.config["vocab_size"], 2)
        records = engine.generate(token_requests(2, 70, 5, seed=0), 2, GREEDY)
    assert [record.output_len for record in records] == [5, 5]


def test_a_file_is_there_for_its_matches_if_the_disk_has_room(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with random_file("qwen3-4b", 4) as file:
        assert file.stat().st_size > file_bytes(SHAPES["qwen3-4b"], 4)
    assert not any(file.parent.iterdir())
    monkeypatch.setattr(random_gguf.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(RuntimeError, match=r"qwen3-4b-random-Q4_0.gguf takes 0.0 GB"), random_file("qwen3-4b", 4):
        pass


def played(choice: Choice, rounds: int) -> dict[str, tuple[dict[str, list[float]], float | None]]:
    found: list[Played] = list(play(choice, Path("none"), Rounds(rounds, lambda: None), Limits(1e9, 1.0, 1.0)))
    return {title: (sides, share) for title, sides, share in found}


def test_peers_read_the_same_file_and_one_that_cannot_is_named(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [Match("decode", 4, 1, 64, 64), Match("streams", 4, 2, 64, 64), Match("prefill", 4, 1, 1024, 1, prompts=1)]
    monkeypatch.setattr(matches, "larger_matches", lambda bits: few)
    # One stream of a tiny model may end before the other begins: their rate is any number.
    monkeypatch.setattr(matches, "steady_rate", lambda records: float(sum(record.output_len for record in records)))
    fake_peers.install(Path("none"))
    fake_peers.write_program(openvino_python(), fake_peers.FAILING)
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
    assert share == pytest.approx(file_cost(SHAPES[name], 4).weight_bytes() * sum(sides[OURS]) / 2 / 1e9)
    assert sides["llama.cpp Q4_0"] == [101.0, 101.0]
    # Both kinds of attention once, then the faster one.
    threads = matches.llama_cpp.thread_count()
    bench, ik = f"llama-bench 0 64 64 {threads}", f"ik 0 64 {threads} 0,1"
    assert (tiny / "calls").read_text().splitlines()[:5] == [bench, bench, ik, bench, ik]
    printed = capsys.readouterr().out
    assert "openvino Q4_0 is left out: no such processor" in printed
    assert not path_of(name, 4).exists()


def test_a_file_of_the_user_s_is_measured_beside_llama_cpp_and_ik(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "steady_rate", lambda records: float(sum(record.output_len for record in records)))
    fake_peers.install(Path("none"))
    with random_file("llama-3.2-1b", 4) as file:
        found = played(Choice([], files=[file]), 1)
    peers = [OURS, "openvino GGUF", "llama.cpp GGUF", "ik_llama.cpp GGUF"]
    assert {title: list(sides) for title, (sides, _) in found.items()} == {
        f"{file.stem}: decode, 1 stream": peers,
        f"{file.stem}: decode, 8 streams": peers[:3],
        f"{file.stem}: prefill of 512": peers,
    }


def test_long_contexts_have_a_row_for_the_prompt_and_one_for_what_follows(tiny: Path) -> None:
    fake_peers.install(Path("none"))
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
    # The stand-in's first token comes after 1 s, the others every 0.1 s.
    assert (prompt["openvino Q4_0"], decode["openvino Q4_0"]) == ([150.0], [pytest.approx(10.0)])
    assert "openvino Q4_0" not in found["llama-3.2-1b: prompt of 150, 4-bit, 16-bit cache"][0]


def test_an_agent_s_day_runs_without_peers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.conversations.AGENT_TURNS", 2)
    found = played(Choice(["agent"]), 1)
    (sides, _) = found["llama-3.2-1b: agent's day, 4-bit"]
    assert list(sides) == [OURS]
    assert sides[OURS][0] > 0


def test_what_is_promised_has_a_row() -> None:
    titles = {
        f"{name}: {match}"
        for kind in ("large", "moe")
        for name, bits in LARGER_MODELS[kind]
        for match in larger_matches(bits)
    }
    promised = {title: sides for title, sides in TARGETS.items() if title.partition(":")[0] in NAMES}
    assert {title for title in promised if "decode, " in title} <= titles
    assert promised["qwen3-4b: decode, 1 stream, 8-bit"] == {"llama.cpp Q8_0": 1.0, LIMIT: 0.9}


def test_flags_are_lists_with_commas() -> None:
    assert some_of(NAMES, "qwen3-4b,llama-3.2-1b") == ["qwen3-4b", "llama-3.2-1b"]
    assert sizes("4000,16000") == [4000, 16000]
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        some_of(NAMES, "none")
    with pytest.raises(ValueError, match="none"):
        sizes("none")


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


def test_programs_that_are_not_there_have_no_side(tiny: Path) -> None:
    fake_peers.install(Path("none"))
    llama_tool("llama-batched-bench").unlink()
    openvino_python().unlink()
    found = played(Choice(["long"], contexts=[80], cache_bits=[8]), 1)
    assert [list(sides) for sides, _ in found.values()] == [[OURS], [OURS]]
