"""Old public names work for one release, and the documentation lists each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmdeploy import renamed
from lmdeploy.cli.main import main
from lmdeploy.turbomind.engine import Engine
from lmdeploy.turbomind.repository import MODELS, copy_models
from openai_gateway.metrics.page import GatewayMetrics
from tools import fleet
from webui.conversations import conversation_of

ROOT = Path(__file__).resolve().parents[2]
TABLES = (
    renamed.TRITON_MODELS,
    renamed.GATEWAY_METRICS,
    renamed.ENGINE_METRICS,
    renamed.CONVERSATION_KEYS,
    renamed.OPTIONS,
    renamed.PLAN_KEYS,
    renamed.COMPARISON_KEYS,
    renamed.FLEET_STRATEGIES,
)


def test_the_documentation_lists_every_old_name() -> None:
    page = (ROOT / "docs" / "reference" / "renamed.md").read_text(encoding="utf-8")
    for table in TABLES:
        for old, new in table.items():
            assert any(old in line and new in line for line in page.splitlines())


def test_a_copied_repository_has_the_ensemble_under_both_names(tmp_path: Path) -> None:
    copy_models(tmp_path, {})
    assert {path.name for path in tmp_path.iterdir()} == {*MODELS, *renamed.TRITON_MODELS}
    for old, new in renamed.TRITON_MODELS.items():
        old_text, new_text = ((tmp_path / name / "config.pbtxt").read_text(encoding="utf-8") for name in (old, new))
        assert old_text == new_text.replace(f'name: "{new}"', f'name: "{old}"')
        assert old_text == (ROOT / "model_repository" / old / "config.pbtxt").read_text(encoding="utf-8")


def test_the_gateways_page_has_both_names_of_a_metric() -> None:
    metrics = GatewayMetrics()
    metrics.responses.of("m").ends["stop"].inc()
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    for old, new in renamed.GATEWAY_METRICS.items():
        values = [
            {
                (sample.name.removeprefix(name), *sample.labels.items()): sample.value
                for sample in families[name].samples
            }
            for name in (old, new)
        ]
        assert values[0] == {key: value for key, value in values[1].items() if key[0] != "_created"}


def test_the_engines_counters_have_both_names() -> None:
    class Native:
        def stats(self) -> dict[str, float]:
            return {name: float(number) for number, name in enumerate(renamed.ENGINE_METRICS.values())}

    engine = Engine.__new__(Engine)
    engine._engine = Native()
    found = engine.metrics()
    assert {old: found[old] for old in renamed.ENGINE_METRICS} == {
        old: found[new] for old, new in renamed.ENGINE_METRICS.items()
    }


def test_conversations_with_the_old_keys_are_read(tmp_path: Path) -> None:
    image = tmp_path / "one.png"
    image.write_bytes(b"")
    (turn,) = conversation_of(
        {"turns": [{"question": "?", "pictures": [str(image)], "answers": [{"text": "!"}]}]}, tmp_path
    ).turns
    assert turn.images == (str(image),)
    assert turn.response.text == "!"


def test_an_old_option_works_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="program")
    size = parser.add_argument("--new-size", type=int, default=1)
    flag = parser.add_argument("--new-flag", action="store_true")
    renamed.accept_old_option(parser, size, "--size")
    renamed.accept_old_option(parser, flag, "--flag")
    assert parser.parse_args(["--size", "3", "--flag"]) == argparse.Namespace(new_size=3, new_flag=True)
    assert capsys.readouterr().err.splitlines() == [
        "program: --size is called --new-size now; the old name works until 0.3",
        "program: --flag is called --new-flag now; the old name works until 0.3",
    ]
    assert parser.parse_args([]) == argparse.Namespace(new_size=1, new_flag=False)
    assert capsys.readouterr().err == ""
    assert "--size" not in parser.format_help().replace("--new-size", "")


def test_a_plan_takes_and_reports_the_old_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    reports = []
    for option in ("--answer", "--output-tokens"):
        assert main(["plan", str(tmp_path), "--gpu", "L4", option, "50", "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    for old, new in renamed.PLAN_KEYS.items():
        assert reports[0][old] == reports[0][new]


def test_the_fleet_takes_old_strategies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--replicas", "2", "--requests", "20", "--rate", "4", "--json"]
    monkeypatch.setattr("sys.argv", ["fleet", "--strategies", *renamed.FLEET_STRATEGIES, *load])
    fleet.main()
    printed = capsys.readouterr()
    assert [json.loads(line)["strategy"] for line in printed.out.splitlines()] == [*renamed.FLEET_STRATEGIES.values()]
    assert len(printed.err.splitlines()) == len(renamed.FLEET_STRATEGIES)


def test_a_report_has_its_values_under_old_keys_too() -> None:
    assert renamed.with_old_keys({"alongside": 1}, renamed.COMPARISON_KEYS) == {"alongside": 1, "beside": 1}
