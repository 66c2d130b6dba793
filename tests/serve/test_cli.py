import json
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lmdeploy
from lmdeploy.cli import check_env
from lmdeploy.cli.main import main, make_parser
from lmdeploy.cli.parser import exit_status
from lmdeploy.serve.ports import free_ports
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton
from tests.support.servers import answers
from tests.support.waiting import eventually_sync


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; from lmdeploy.cli.main import make_parser; make_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"torch", "transformers", "numpy", "grpc", "fastapi", "uvicorn", "gradio", "ray", "tritonclient"}
    assert not loaded & heavy


@pytest.mark.parametrize("ending", ["json", "yml", "pkl"])
def test_check_env_writes_what_it_prints(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"environment.{ending}"
    assert main(["check_env", "--dump-file", str(path)]) == 0
    printed = capsys.readouterr().out
    read = {"json": json.loads, "yml": yaml.safe_load, "pkl": pickle.loads}[ending]
    report = read(path.read_bytes())
    assert printed == "".join(f"{name}: {value}\n" for name, value in report.items())
    assert {"sys.platform", "Python", "CUDA_HOME", "NVCC", "GCC", "PyTorch", "PyTorch compiling details"} <= set(report)
    assert {"TorchVision", "LMDeploy", "transformers", "gradio", "fastapi", "pydantic", "triton"} <= set(report)
    assert {"NVIDIA Topology", "cpu isa", "tritonserver", "triton backend"} <= set(report)
    assert report["LMDeploy"].startswith(lmdeploy.__version__)


def test_check_env_says_what_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setitem(check_env._PACKAGES, "gradio", "no-such-package")
    assert main(["check_env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = ["NVCC: Not Found", "GCC: Not Found", "gradio: Not Found", "NVIDIA Topology: Not Found"]
    assert [line for line in lines if line in expected] == expected
    assert "CUDA available: False" in lines


def test_a_dump_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check_env", "--dump-file", str(tmp_path / "missing" / "environment.json")]) == 1
    assert "environment.json cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_dump_file_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check_env", "--dump-file", "environment.txt"])
    assert ".json, .yml, .yaml, .pkl" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["api_server", "gateway", "gradio localhost:8001"])
def test_a_port_in_use_is_named(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", *what.split(), "--server-name", "127.0.0.1", "--server-port", port]) == 1
    assert f"port {port}" in capsys.readouterr().err


def test_a_bad_engine_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "api_server", "--max-batch-size", "0"])
    assert "--max-batch-size: it must be >= 1, got 0" in capsys.readouterr().err


@pytest.mark.alike(max_cases=4)
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("lmdeploy chat nosuch.gguf", "lmdeploy chat: nosuch.gguf: no such file"),
        ("lmdeploy lite auto_awq /nowhere", "lmdeploy lite auto_awq: /nowhere: no such directory"),
        ("lmdeploy check_env --model ./nowhere", "lmdeploy check_env: ./nowhere: no such directory"),
        ("lmdeploy serve api_client http://localhost:9", "lmdeploy serve api_client: http://localhost:9/v1/models: "),
        ("lmdeploy serve triton_client localhost:9", "lmdeploy serve triton_client: Triton at localhost:9 is not "),
        ("profile_restful_api --port 9", "profile_restful_api: http://0.0.0.0:9/v1/models: "),
        ("profile_generation nosuch.gguf", "profile_generation: nosuch.gguf: no such file"),
    ],
)
def test_what_the_user_can_mend_is_one_line(command: str, message: str) -> None:
    program, *arguments = command.split()
    module = program if program == "lmdeploy" else f"tools.{program}"
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line != "loading the model ..."]
    assert (done.returncode, len(lines), done.stdout) == (1, 1, "")
    assert lines[0].startswith(message)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m lmdeploy list | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "The supported chat template names are:\n", "")


def test_a_bug_keeps_its_traceback() -> None:
    def fail() -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        exit_status("lmdeploy", fail)


@pytest.mark.parametrize("command", ["gateway", "gateway --workers 2", "proxy", "gradio TRITON"])
def test_a_server_says_once_that_it_stops(triton: FakeTriton, command: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    given = command.replace("TRITON", triton.address).split()
    more = {"gateway": ["--triton-address", triton.address], "proxy": ["--state-file", str(tmp_path / "nodes")]}
    given += more.get(given[0], [])
    with Command("serve", *given, "--server-port", str(port)) as server:
        path = "" if given[0] == "gradio" else "health"
        eventually_sync(lambda: answers(f"http://127.0.0.1:{port}/{path}"))
        if command == "gateway":
            server.wait_for(f":{port}/v1")
        assert "stopping" not in server.output
        assert server.end(signal.SIGINT) == 130
    assert server.output.count("stopping ...\n") == 1, server.output
    assert "Traceback" not in server.output


def test_servers_that_torchrun_starts_want_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["serve", "api_server", "m", "--server-port", "23343", "--tp", "1", "--proxy-url", "http://p:8000"]
    ports = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        args = make_parser().parse_args([*flags, "--backend", "turbomind"])
        ports += [args.triton_http_port, args.triton_grpc_port, args.triton_metrics_port]
    assert ports == [8000, 8001, 8002, 8010, 8011, 8012]


def test_b2_keys_may_be_one_text_with_commas() -> None:
    assert make_parser().parse_args(["serve", "api_server", "--api-keys", "a,b", "c"]).api_keys == ["a", "b", "c"]
