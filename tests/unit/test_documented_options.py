"""Every option LMDeploy documents is accepted under each spelling, or refused with a reason."""

import argparse
import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.cli.main import make_parser
from lmdeploy.cli.options import SETTINGS

TABLE = Path(__file__).resolve().parents[1] / "data" / "lmdeploy-cli.tsv"
ROWS = list(csv.DictReader(TABLE.open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE))
OPTIONS = [row for row in ROWS if row["option"].startswith("-") and "--help" not in row["option"]]
POSITIONALS = {
    "chat": ["m"], "chat torch": ["m"], "chat turbomind": ["m"], "convert": ["name", "m"], "serve api_server": ["m"],
    "serve gradio": ["m"], "serve api_client": ["http://x"], "serve triton_client": ["x:1"],
    "lite auto_awq": ["m"], "lite smooth_quant": ["m"], "lite auto_gptq": ["m"], "lite calibrate": ["m"],
    "lite kv_qparams": ["m", "t"],
}  # fmt: skip
# Where the default is another one than documented, and why.
OTHER_DEFAULTS = {
    "--device": "a GPU is used where there is one, as documented; without one this product runs on the CPU",
    "--enable-prefix-caching": "prefixes are cached unless --no-enable-prefix-caching says otherwise",
    "--max-log-len": "prompts are not logged unless that is asked for",
    "--session-id": "two terminals must not share a conversation, so a number is drawn",
    "--w-group-size": "128, or the largest size below that fits the model's layers",
    "--calib-dataset": "a text that comes along needs no download",
    "--model-name": "empty, which means the same",
    "--chat-template": "empty, which means the same",
    "--api-keys": "empty, which means the same",
    "--api-key": "none, which means the same",
    "--allow-origins": "none: with *, any web page could use a server that has no keys",
}


def values_for(row: dict[str, str]) -> list[str]:
    if row["kind"] == "flag":
        return []
    if row["choices"] != "-":
        return [row["default"] if row["default"] in row["choices"].split(",") else row["choices"].split(",")[0]]
    if row["default"] not in ("None", "-", "''", "required"):
        return [row["default"]]
    return {"int": ["4"], "float": ["0.5"], "key=value (0 or more)": ["a=1"]}.get(row["type"], ["x.json"])


def spellings(row: dict[str, str]) -> list[str]:
    given = row["option"].split(",")
    return sorted({*given, *(name[:2] + name[2:].replace("-", "_") for name in given if name.startswith("--"))})


def parse(arguments: list[str]) -> argparse.Namespace:
    return make_parser().parse_everything(arguments)


REASONS = (" is refused: ", "not supported", "no code for")


def error_of(arguments: list[str]) -> str:
    """Return the error where arguments are refused; empty: they are taken."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            assert callable(parse(arguments).run)
        except SystemExit:
            return stderr.getvalue()
    return ""


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: f"{row['command']} {row['option']}")
def test_a_documented_option_is_accepted_or_refused_with_a_reason(
    row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    if row["command"] == "(top)":
        with pytest.raises(SystemExit, match="0"):
            parse([row["option"].split(",")[0]])
        return
    command = row["command"].split()
    for spelling in spellings(row):
        arguments = [*command, *POSITIONALS.get(row["command"], []), spelling, *values_for(row)]
        problem = error_of(arguments)
        assert problem == "" or any(reason in problem for reason in REASONS), problem
        capsys.readouterr()


CURRENT = [row for row in OPTIONS if row["status"] == "current" and row["command"] in POSITIONALS | {"serve proxy": 0}]


@pytest.mark.parametrize("command", sorted({row["command"] for row in CURRENT}))
def test_documented_options_have_their_documented_defaults(command: str) -> None:
    args = parse([*command.split(), *POSITIONALS.get(command, [])])
    for row in (row for row in CURRENT if row["command"] == command):
        name = row["option"].split(",")[-1]
        if name in OTHER_DEFAULTS:
            continue
        dest = name[2:].replace("-", "_")
        value: Any = getattr(args, dest)
        if value is None and dest in SETTINGS:
            value = SETTINGS[dest].default
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        assert shown in {row["default"].strip("'"), *(["None"] if row["kind"] == "flag" else [])}, name


def test_every_device_without_code_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("ascend", "maca"):
        with pytest.raises(SystemExit, match="2"):
            parse(["serve", "api_server", "m", "--device", device])
        assert device in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        parse(["lite", "auto_awq", "m", "--device", "npu"])
    assert "must be cpu or cuda: there is no code for Huawei's NPUs yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["convert"], "--tokenizer-path"),
        (["convert"], "--group-size"),
        (["convert"], "--quant-path"),
        (["chat"], "--cap"),
        (["serve", "api_server"], "--meta-instruction"),
        (["serve", "api_server"], "--vision-max-batch-size"),
        (["serve", "gradio"], "--share"),
        (["serve", "triton_client"], "--cap"),
    ],
)
def test_help_shows_what_an_option_of_the_manual_does(
    command: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse([*command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    _, found, description = shown.partition(f" {option} ")
    assert found
    assert any(word in description[:60] for word in ("refused: ", "has no effect: ")), description[:60]


def test_an_unknown_option_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["serve", "api_server", "m", "--quant-polcy", "8"])
    assert "there is no option --quant-polcy; did you mean --quant-policy?" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["serve"], ["lite"]])
def test_a_command_without_its_subcommand_shows_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(command)
    assert args.run(args) == 0
    assert "usage: lmdeploy" in capsys.readouterr().out


def test_unsupported_methods_report_the_alternative(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(["lite", "get_small_sharded_hf", "a", "--calib-samples", "3"])
    assert args.run(args) == 2
    assert "lite get_small_sharded_hf is not supported: " in capsys.readouterr().err


def test_an_old_command_for_scales_of_the_cache_says_that_none_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = parse(["lite", "kv_qparams", str(tmp_path), str(tmp_path), "--kv-bits", "4"])
    assert args.run(args) == 0
    assert "the engines need no scales file; serve with --quant-policy 4" in capsys.readouterr().out
    args = parse(["lite", "kv_qparams", str(tmp_path / "none"), str(tmp_path)])
    assert args.run(args) == 1
    assert "is no folder" in capsys.readouterr().err


def test_environment_and_options_are_merged_and_options_win(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmdeploy.cli.options import engine_config

    monkeypatch.setenv("LMDEPLOY_ENGINE_CONFIG", '{"session_len": 100, "quant_policy": 4}')
    args = parse(["serve", "api_server", "m", "--session-len", "200", "--enable-prefix-caching"])
    assert engine_config(args) == {"session_len": 200, "quant_policy": 4, "enable_prefix_caching": True}


def test_an_option_that_is_an_object_is_checked_member_by_member(capsys: pytest.CaptureFixture[str]) -> None:
    from lmdeploy.cli.options import engine_config

    def given(text: str) -> list[str]:
        return ["serve", "api_server", "m", "--enable-prefix-caching", "--kv-events-config", text]

    events = {"enable_kv_cache_events": True, "endpoint": "ipc:///run/events"}
    assert engine_config(parse(given(json.dumps(events))))["kv_events_config"] == events
    with pytest.raises(ValueError, match="kv_events_config: there is no field endpont; did you mean endpoint"):
        engine_config(parse(given('{"endpont": "ipc:///run/events"}')))
    for text in ("{", "[1]"):
        with pytest.raises(SystemExit):
            parse(given(text))
        assert "--kv-events-config: must be a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sesion_len": 1}', "the engine has no setting sesion_len; did you mean session_len?"),
        ("[1]", r"must hold a JSON object, got \[1\]"),
        ("{", "must hold JSON: "),
        ('{"session_len": 1}', "session_len must be >= 2, got 1"),
    ],
)
def test_bad_settings_in_the_environment_are_refused_by_name(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmdeploy.cli.options import engine_config

    monkeypatch.setenv("LMDEPLOY_ENGINE_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        engine_config(parse(["serve", "api_server", "m"]))
