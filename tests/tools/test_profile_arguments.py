"""The profile tools take the arguments that LMDeploy's manual writes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy.cli import main as cli
from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from tests.support.tiny_models import make_tiny_llama
from tools.bench import __main__ as bench
from tools.bench import arguments as flags
from tools.bench.matches import engine_config
from tools.bench.server import engine_flags
from tools.profile_restful_api import make_parser

ROOT = Path(__file__).resolve().parent.parent.parent


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
    assert (turbomind.weight_bits, turbomind.max_batch_size, turbomind.dtype) == (8, 3, "float32")
    pytorch = flags.engine_config(parser.parse_args(["--backend", "pytorch", "--quant-policy", "8"]), 3)
    assert isinstance(pytorch, PytorchEngineConfig)
    assert (pytorch.quant_policy, pytorch.max_batch_size) == (8, 3)
    assert engine_flags(pytorch)[:2] == ["--backend", "pytorch"]
    with pytest.raises(ValueError, match=r"--backend pytorch: .*weight_bits"):
        flags.engine_config(parser.parse_args(["--backend", "pytorch", "--weight-bits", "8"]), 3)


def test_a_server_is_started_with_flags_that_it_takes() -> None:
    for bits in (4, 16):
        command = ["serve", "api_server", "a-model", *engine_flags(engine_config(bits))]
        read = cli.make_parser().parse_args(command)
        assert read.enable_prefix_caching is False
        assert (read.weight_bits, read.speculative_config) == (4 if bits == 4 else None, "none")


@pytest.mark.parametrize("more", [[], ["--backend", "pytorch"]], ids=["turbomind", "pytorch"])
def test_the_manual_s_commands_run_with_either_engine(tmp_path: Path, more: list[str], *, all_cases: bool) -> None:
    model = str(make_tiny_llama(tmp_path / "tiny"))
    dataset, report = tmp_path / "share_gpt.json", tmp_path / "out.json"
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "hi"}]
    dataset.write_text(json.dumps([{"conversations": turns}] * 4))
    sizes = {
        "throughput": [str(dataset), model, "--num-prompts", "3", "--concurrency", "2", "--completion-tokens", "4"],
        "generation": [model, "-c", "2", "-pt", "8", "-ct", "6", "-tr", "2", "-w", "0", "--quant-policy", "8"],
    }
    counts = {"throughput": [(3, 12)], "generation": [(2, 12), (2, 12)]}
    for name, arguments in list(sizes.items())[: 1 if more and not all_cases else 2]:
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
