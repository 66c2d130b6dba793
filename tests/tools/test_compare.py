"""The comparison with other engines, against the targets."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.messages import TurbomindEngineConfig
from tests.support import fake_peers
from tests.support.tiny_models import make_tiny_llama
from tools.bench import matches, quiet
from tools.bench.compare import EVERY_PART, main
from tools.bench.inprocess import in_process
from tools.bench.matches import MATCHES, PARTS, Match
from tools.bench.peers.paths import llama_tool
from tools.bench.stats import Record
from tools.bench.targets import LIMIT, OURS, TARGETS, TARGETS_WITH_TILES, rows, targets_with, unmeasured
from tools.bench.workload import GREEDY, TokenRequest


def test_every_target_about_the_engines_alone_has_its_match() -> None:
    played = {str(match) for match in MATCHES}
    every = TARGETS.keys() | TARGETS_WITH_TILES.keys()
    promised = {workload for workload in every if workload.startswith(("decode", "prefill"))}
    assert promised <= played
    assert {match.part for match in MATCHES} < set(PARTS) < set(EVERY_PART)


def test_more_is_promised_where_there_are_matrix_units() -> None:
    rates = {"prefill of 512, 4-bit": {OURS: [30.0], "openvino Q4_0": [20.0]}}
    for isa, is_missed in {"avx512bf16": False, "amx": True, "": False}.items():
        assert rows(rates, {}, targets_with(isa))[0].is_missed is is_missed


def test_a_target_is_met_by_the_median_of_the_rounds_ratios() -> None:
    workload = "decode, 1 stream, 4-bit"
    rates = {workload: {OURS: [150.0, 100.0, 320.0], "llama.cpp Q4_0": [100.0, 100.0, 200.0], "other": [50.0]}}
    llama, other, limit = rows(rates, {workload: 0.6})
    assert (llama.served, llama.reference, llama.ratio, llama.target, llama.is_missed) == (
        150.0,
        100.0,
        1.5,
        1.5,
        False,
    )
    assert (other.ratio, other.target, other.is_missed) == (3.0, None, False)
    assert (limit.alongside, limit.ratio, limit.is_missed) == (LIMIT, 0.6, True)
    assert llama.cells()[-2:] == [">= 1.50", "met"]
    assert limit.cells() == [f"{workload} / {LIMIT}", "150.0", "-", "0.60", ">= 0.70", "missed"]


def test_what_was_promised_and_not_measured_is_named() -> None:
    workload = "decode, 32 streams, 4-bit"
    found = rows({workload: {OURS: [3.0], "llama.cpp Q4_0": [1.0]}}, {})
    assert unmeasured(found, [workload]) == [f"{workload} / openvino Q4_0"]


def test_a_prompt_s_rate_ends_at_its_first_token() -> None:
    requested: list[tuple[int, int, int]] = []

    def respond(requests: Any, concurrency: int) -> list[Record]:
        requested.extend((len(request.input_ids), request.output_len, concurrency) for request in requests)
        return [Record(1.0, [(1.5, 1)]), Record(1.5, [(3.0, 1)])]

    assert Match("prefill", 4, 1, 512, 1).rate(respond) == 2 * 512 / 2.0
    assert requested == [(512, 1, 1)] * 2


def test_our_engine_answers_tokens_with_exactly_as_many_as_asked_for(model: Path) -> None:
    config = TurbomindEngineConfig(weight_bits=8, max_batch_size=4, cache_max_entry_count=64)
    with in_process(str(model), config) as engine:
        requests = [TokenRequest((5, 6, 7), 9), TokenRequest((8, 9), 4), TokenRequest((8, 9), 6)]
        records = engine.generate(requests, 2, GREEDY)
    assert [(record.input_len, record.output_len) for record in records] == [(3, 9), (2, 4), (2, 6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(
        tmp_path_factory.mktemp("compare") / "tiny",
        max_position_embeddings=2048,
        head_dim=32,
        vocab_size=32000,
    )


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run the command. Streams of a tiny model may end before others begin: their rate is any number."""
    monkeypatch.setattr(matches, "steady_rate", lambda records: float(sum(record.output_len for record in records)))

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["tools.bench peers", "--timeout", "0", *arguments])
        main()

    return run


def test_peers_take_turns_with_our_engine(
    compare: Callable[..., None], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_PEERS_LOG", str(tmp_path / "calls"))
    fake_peers.install(model)
    report = tmp_path / "out.json"
    compare(str(model), "--only", "decode,streams,prefill", "--rounds", "2", "--json", str(report))
    result = json.loads(report.read_text())
    for match in MATCHES:
        sides = result["rounds"][str(match)]
        assert next(iter(sides)) == OURS
        assert len(sides) == (4 if match.streams == 1 else 3)
        assert all(len(values) == 2 and min(values) > 0 for values in sides.values())
    rated = {(row["workload"], row["alongside"]): row for row in result["rows"]}
    row = rated["prefill of 512, 8-bit", "llama.cpp Q4_0"]
    rates = result["rounds"]["prefill of 512, 8-bit"][OURS]
    assert row["ratio"] == pytest.approx(sum(rates) / 2 / 101.0)
    assert row["target"] == 2.0
    assert ("decode, 1 stream, 4-bit", LIMIT) in rated
    assert result["not_measured"] == []
    calls = (tmp_path / "calls").read_text().splitlines()
    one_stream = [call.split()[0] for call in calls][:6]
    # The first one warms up.
    assert one_stream == ["openvino", "openvino", "llama-bench", "llama-bench", "ik", "openvino"]


@pytest.mark.thorough
def test_without_peers_their_targets_are_not_measured(
    compare: Callable[..., None],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path))
    compare(str(model), "--only", "decode", "--rounds", "1")
    printed = capsys.readouterr().out
    assert f"llama.cpp: skipped, {llama_tool('llama-bench')} is not there; run `make peers`" in printed
    assert "not measured: decode, 1 stream, 16-bit / llama.cpp F16" in printed


@pytest.mark.thorough
def test_a_cache_of_fewer_bits_holds_more_of_the_same_requests(
    compare: Callable[..., None], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path))
    report = tmp_path / "out.json"
    compare(str(model), "--only", "cache", "--rounds", "1", "--json", str(report))
    rounds = json.loads(report.read_text())["rounds"]
    assert set(rounds) == {"full cache, 8-bit cache", "full cache, 4-bit cache"} == set(TARGETS) & set(rounds)
    assert all(set(sides) == {OURS, "16-bit cache"} for sides in rounds.values())


def test_a_comparison_waits_until_threads_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([1.1, 1.3, 1.9, 1.0])
    monkeypatch.setattr(quiet, "available_cpu_count", lambda: 2)
    monkeypatch.setattr(quiet, "scaling", lambda processors: next(found))
    quiet.wait_until_quiet()
    assert list(found) == [1.0]


def test_a_machine_that_stays_disturbed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quiet, "available_cpu_count", lambda: 2)
    monkeypatch.setattr(quiet, "scaling", lambda processors: 1.1)
    quiet.wait_until_quiet(1e-9)
    assert "2 threads do only 1.1 times the work of one" in capsys.readouterr().out
