"""Where keys come from, and that no process list shows those that came from a file or from the environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import httpx
import pytest

from lmdeploy.cli.chat_page import ChatPage
from lmdeploy.cli.main import make_parser
from lmdeploy.serve.ports import free_ports
from lmdeploy.serve.ray.settings import RaySettings
from tests.support.commands import Command
from tests.support.processes import command_line

COMMANDS = {
    "api_server": ("api_keys", "admin_keys"),
    "gateway": ("api_keys", "admin_keys"),
    "proxy": ("api_keys", "admin_keys"),
    "gradio m": ("api_keys",),
    "ray": ("api_keys",),
}
OPTIONS = [(command, dest) for command, dests in COMMANDS.items() for dest in dests]


def parse(command: str, *words: str) -> argparse.Namespace:
    return make_parser().parse_everything(["serve", *command.split(), *words])


def keys_file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("command", "dest"), OPTIONS)
def test_keys_of_command_line_file_and_environment_count_together(
    command: str, dest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = f"--{dest.replace('_', '-')}"
    path = keys_file(tmp_path, "one\n\n  two  \r\n")
    assert getattr(parse(command), dest) == []
    assert getattr(parse(command, f"{flag}-file", str(path)), dest) == ["one", "two"]
    monkeypatch.setenv(f"LMDEPLOY_{dest.upper()}", "three,four\nfive")
    assert getattr(parse(command), dest) == ["three", "four", "five"]
    assert getattr(parse(command, flag, "six", f"{flag}-file", str(path), flag, "seven"), dest) == [
        *("three", "four", "five", "six", "one", "two", "seven")
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--api-keys"], "expected at least one key"),
        (["--api-keys", ""], "expected at least one key"),
        (["--api-keys", " , "], "expected at least one key"),
        (["--api-keys-file", "{empty}"], "holds no key"),
        (["--api-keys-file", "{folder}/none"], "cannot be read: No such file or directory"),
        (["--api-keys-file", "{folder}"], "cannot be read: Is a directory"),
        (["--api-keys-file", "{binary}"], "must be UTF-8 text"),
    ],
)
def test_a_server_that_was_to_have_keys_does_not_start_without(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    paths = {"folder": tmp_path, "empty": keys_file(tmp_path, " \n\n"), "binary": binary}
    with pytest.raises(SystemExit):
        parse("api_server", *(word.format(**paths) for word in words))
    assert reason in capsys.readouterr().err


def test_help_says_who_reads_command_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        parse("api_server", "--help")
    help_text = " ".join(capsys.readouterr().out.split())
    for name in ("api", "admin"):
        assert f"prefer --{name}-keys-file or the environment variable LMDEPLOY_{name.upper()}_KEYS" in help_text


def test_a_proxy_takes_keys_from_a_file_and_the_environment_and_shows_none(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = keys_file(tmp_path, "sk-file\n")
    where = ["--server-port", str(port), "--api-keys-file", str(path), "--state-file", str(tmp_path / "nodes")]
    environment = {"LMDEPLOY_API_KEYS": "sk-user", "LMDEPLOY_ADMIN_KEYS": "sk-boss"}
    with Command("serve", "proxy", *where, env=environment) as command:
        command.wait_for("proxy: ")
        assert "sk-" not in command_line(command.process.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

            def status(key: str, method: str = "GET", path: str = "/v1/models") -> int:
                return http.request(method, path, headers={"authorization": f"Bearer {key}"}).status_code

            assert [status(key) for key in ("none", "wrong", "sk-file", "sk-user")] == [401, 401, 200, 200]
            remove = "POST", "/nodes/remove?node_url=http://a"
            assert [status(key, *remove) for key in ("sk-file", "sk-boss")] == [401, 404]


def test_the_chat_page_and_replicas_get_keys_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ChatPage("http://localhost:1", "control", "localhost", 1, ["first", "second"], on_ready=lambda: None)
    assert not {"first", "second", "control"} & set(page._command)
    monkeypatch.setattr("os.environ", page._env)
    args = make_parser().parse_everything(page._command[3:])
    assert (args.api_keys, args.api_key) == (["first", "second"], "first")
    path = keys_file(tmp_path, "third")
    replica = RaySettings(model="m", options={"api_keys": "fourth,fifth", "api-keys-file": str(path), "threads": 2})
    assert replica.arguments() == ["m", "--threads", "2"]
    assert replica.api_keys == ("fourth", "fifth", "first", "second", "third")
