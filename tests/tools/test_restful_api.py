"""The load tools against a real gateway over a scripted Triton, with the arguments of LMDeploy's manual."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.tiny_models import make_tiny_llama
from tools.bench import __main__ as bench
from tools.bench import arguments as flags
from tools.bench.over_http import Target, run_open_loop, run_over_http
from tools.bench.workload import GREEDY, Request
from tools.profile_restful_api import make_parser

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton("m") as server:
        yield server


@pytest.fixture
def url(fake: FakeTriton) -> Iterator[str]:
    with running_gateway(Settings(triton_address=fake.address)) as address:
        yield address


def test_tokens_without_text_of_their_own_are_counted(url: str) -> None:
    # The scripted engine reports two tokens for each of three pieces of text.
    summary = run_over_http(url, [Request("a b c", 6)] * 5, 2, GREEDY)
    assert (summary.requests, summary.output_tokens, summary.input_tokens) == (5, 30, 35)


def test_requests_say_greedy_fixed_length_streaming(fake: FakeTriton, url: str) -> None:
    run_over_http(url, [Request("a b c", 6)], 1, GREEDY)
    inputs = fake.requests[0].inputs
    assert inputs["text_input"] == "a b c"
    assert (inputs["max_new_tokens"], inputs["ignore_eos"], inputs["stream"]) == (6, True, True)
    assert inputs["temperature"] == 0


def test_response_of_another_length_is_an_error(url: str) -> None:
    with pytest.raises(RuntimeError, match="6 tokens, expected 7"):
        run_over_http(url, [Request("a b c", 7)], 1, GREEDY)


def test_failed_request_is_an_error(fake: FakeTriton, url: str) -> None:
    fake.script = Script(fail_after=1)
    with pytest.raises(RuntimeError, match="scripted failure"):
        run_over_http(url, [Request("a b c", 6)], 1, GREEDY)


def profile(url: str, *flags: str) -> str:
    return run_profile(url, *flags).stdout


def run_profile(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "profile_restful_api.py"), "--base-url", url, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_results_are_a_table_and_lines_of_json(url: str, fake: FakeTriton, tmp_path: Path) -> None:
    dataset = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "world"}]
    dataset.write_text(json.dumps([{"conversations": turns}] * 12))
    lines = tmp_path / "out.jsonl"
    flags = ["--dataset-path", str(dataset), "--num-prompts", "10", "--sharegpt-output-len", "6"]
    printed = profile(url, *flags, "--multi", "--request-rate-range", "200,600,200", "--output-file", str(lines))
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [result["request_rate"] for result in results] == [200, 400]
    assert all((result["requests"], result["output_tokens"], result["failed"]) == (10, 60, 0) for result in results)
    assert "tokens/s" in printed
    request = fake.requests[-1].inputs
    assert (request["text_input"], request["ignore_eos"], request["temperature"]) == ("hello", True, 0.0)


def test_other_fields_and_whole_responses(url: str, fake: FakeTriton) -> None:
    profile(
        url, "--num-prompts", "3", "--disable-stream", "--disable-ignore-eos", "--extra-request-body", '{"top_k": 7}'
    )
    request = fake.requests[-1].inputs
    assert (request["stream"], request["ignore_eos"], request["top_k"]) == (False, False, 7)


@pytest.mark.parametrize("flags", [(), ("--disable-tqdm",)])
def test_a_progress_bar_counts_requests_unless_it_is_disabled(url: str, flags: tuple[str, ...]) -> None:
    done = run_profile(url, "--num-prompts", "3", "--disable-warmup", *flags)
    assert ("0/3" in done.stderr) is (not flags)
    assert "tokens/s" in done.stdout


async def test_failures_are_counted_not_hidden(url: str, fake: FakeTriton) -> None:
    fake.script = lambda received: Script(fail_after=1) if "bad" in received.inputs["text_input"] else Script()
    target = Target(url=url, model="m", fields={"ignore_eos": True})
    load = await run_open_loop(target, [Request("good", 4), Request("bad", 4)], math.inf, 8, 0)
    assert load.summary.requests == 1
    assert len(load.failures) == 1
    assert "scripted failure" in load.failures[0]


async def test_requests_arrive_at_the_rate_asked_for(url: str) -> None:
    target = Target(url=url, model="m", fields={"ignore_eos": True})
    begin = time.perf_counter()
    load = await run_open_loop(target, [Request("x", 4)] * 60, 100.0, 64, 3)
    assert load.summary.requests == 60
    # 60 exponential gaps of mean 10 ms: 0.6 s, standard deviation 0.08 s; only a lower bound holds on a busy machine
    assert time.perf_counter() - begin > 0.6 - 4 * 0.08
    await asyncio.sleep(0)


ENDS_AFTER_A_RESPONSE = """
import gevent
from locust import events
@events.init.add_listener
def watch(environment, **_):
    @environment.events.request.add_listener
    def end(name, **_):
        if name == "/v1/chat/completions":
            gevent.spawn(environment.runner.quit)
"""


@pytest.mark.skipif(find_spec("locust") is None, reason="locust is not installed")
def test_locust_users_chat(url: str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS_AFTER_A_RESPONSE)
    files = f"{ROOT / 'tools' / 'locustfile.py'},{tmp_path / 'ends.py'}"
    command = [sys.executable, "-m", "locust", "-f", files, "--host", url, "--headless"]
    done = subprocess.run(
        [*command, "-u", "2", "-r", "2", "-t", "170s", "--json"], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    measurements = {entry["name"]: entry for entry in json.loads(done.stdout)}  # the table goes to stderr
    assert measurements["first token"]["num_requests"] > 0
    assert measurements["/v1/chat/completions"]["num_failures"] == 0


@pytest.mark.parametrize(
    ("given", "dataset", "model"),
    [
        (["./share_gpt.json", "internlm/internlm-7b"], Path("share_gpt.json"), "internlm/internlm-7b"),
        (["internlm/internlm-7b"], None, "internlm/internlm-7b"),
        (["--dataset", "a.json", "m"], Path("a.json"), "m"),
        (["a.json", "m", "--num-prompts", "3"], Path("a.json"), "m"),
    ],
)
def test_a_data_set_may_stand_before_the_model(given: list[str], dataset: Path | None, model: str) -> None:
    parser = flags.parser("", takes_dataset=True)
    flags.add_workload(parser)
    read = parser.parse_args(given)
    assert (read.dataset, read.model_path) == (dataset, model)


def test_without_either_the_default_model_is_asked_random_words() -> None:
    parser = flags.parser("", takes_dataset=True)
    flags.add_workload(parser)
    read = parser.parse_args([])
    assert (read.dataset, Path(read.model_path).name) == (None, "SmolLM2-135M-Instruct")
    with pytest.raises(SystemExit):
        parser.parse_args(["a.json", "b", "c"])


def test_options_are_taken_with_underscores_as_the_manual_writes_one() -> None:
    read = make_parser().parse_args(["--backend", "lmdeploy", "--dataset-path", "a.json", "--num_prompts", "1"])
    assert (read.dataset_path, read.num_prompts) == (Path("a.json"), 1)


def test_each_engine_has_its_settings() -> None:
    parser = flags.parser("")
    flags.add_engine(parser)
    turbomind = flags.engine_config(parser.parse_args(["--weight-bits", "8"]), 3)
    assert isinstance(turbomind, TurbomindEngineConfig)
    assert (turbomind.weight_bits, turbomind.max_batch_size, turbomind.dtype) == (8, 3, "auto")
    pytorch = flags.engine_config(parser.parse_args(["--backend", "pytorch", "--quant-policy", "8"]), 3)
    assert isinstance(pytorch, PytorchEngineConfig)
    assert (pytorch.quant_policy, pytorch.max_batch_size) == (8, 3)
    with pytest.raises(ValueError, match=r"--backend pytorch: .*weight_bits"):
        flags.engine_config(parser.parse_args(["--backend", "pytorch", "--weight-bits", "8"]), 3)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="turbomind"),
        pytest.param(["--backend", "pytorch"], id="pytorch", marks=pytest.mark.thorough),
    ],
)
def test_the_manual_s_commands_run_with_either_engine(tmp_path: Path, more: list[str]) -> None:
    model = str(make_tiny_llama(tmp_path / "tiny"))
    dataset, report = tmp_path / "share_gpt.json", tmp_path / "out.json"
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "hi"}]
    dataset.write_text(json.dumps([{"conversations": turns}] * 4))
    sizes = {
        "throughput": [str(dataset), model, "--num-prompts", "3", "--concurrency", "2", "--completion-tokens", "4"],
        "generation": [model, "-c", "2", "-pt", "8", "-ct", "6", "-tr", "2", "-w", "0", "--quant-policy", "8"],
    }
    counts = {"throughput": [(3, 12)], "generation": [(2, 12), (2, 12)]}
    for name, arguments in sizes.items():
        command = [sys.executable, str(ROOT / "tools" / f"profile_{name}.py"), *arguments, *more]
        done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        runs = json.loads(report.read_text())["runs"].values()
        assert [(run["requests"], run["output_tokens"]) for run in runs] == counts[name]


def test_every_measurement_has_a_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, function in (where.split(":") for where, _ in bench.COMMANDS.values()):
        assert callable(getattr(importlib.import_module(module), function))
    monkeypatch.setattr(sys, "argv", ["bench", "engin"])
    assert bench.main() == 2
    assert "got 'engin'" in capsys.readouterr().out
