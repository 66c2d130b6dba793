"""Promises of the Docker image, read from its file: there is no container engine to build it with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from lmdeploy.cli.main import make_parser
from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.restrictions import is_loopback
from openai_gateway.settings import DEFAULT_PORT

ROOT = Path(__file__).resolve().parent.parent.parent
# Of NVIDIA's bulletins up to September 2026, the last is fixed in this release.
FIRST_FIXED = (26, 7)
EXIT_SECONDS = 15  # what tritonserver gets to end: lmdeploy/serve/tritonserver.py

Instruction = tuple[str, str]


def stages(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage, ``ARG`` before the first one apart."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: list[list[Instruction]] = [[]]
    for line in filter(None, map(str.strip, lines)):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


@pytest.fixture(scope="module")
def image() -> list[list[Instruction]]:
    return stages((ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8"))


def given(stage: list[Instruction], word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


def test_its_triton_is_a_release_without_known_holes(image: list[list[Instruction]]) -> None:
    before, *rest = image
    base, build = given(before, "ARG")
    found = re.fullmatch(r"TRITON_IMAGE=nvcr\.io/nvidia/tritonserver:(\d+)\.(\d+)-py3", base)
    assert found
    assert (int(found[1]), int(found[2])) >= FIRST_FIXED
    assert build == "BUILD_IMAGE=${TRITON_IMAGE}"
    assert [given(stage, "FROM")[0].split()[0] for stage in rest] == ["${BUILD_IMAGE}", "${TRITON_IMAGE}"]


def test_it_runs_as_a_user_without_rights(image: list[list[Instruction]]) -> None:
    # A number, so that a platform can see that it is not root's.
    user, group = given(image[-1], "USER")[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0
    after = [word for word, _ in image[-1]]
    assert after.index("USER") > max(index for index, word in enumerate(after) if word in ("RUN", "COPY"))


def test_what_it_writes_lies_on_volumes(image: list[list[Instruction]]) -> None:
    (volumes,) = given(image[-1], "VOLUME")
    settings = dict(word.split("=", 1) for line in given(image[-1], "ENV") for word in line.split())
    assert set(json.loads(volumes)) == {settings["LMDEPLOY_CACHE"], settings["HOME"], "/tmp"}


def test_compose_builds_and_runs_it_with_gpus(image: list[list[Instruction]]) -> None:
    server = yaml.safe_load((ROOT / "docker" / "compose.cuda.yml").read_text(encoding="utf-8"))["services"]["server"]
    names = {line.partition("=")[0] for stage in image for line in given(stage, "ARG")}
    assert server["build"]["args"].keys() <= names
    assert server["build"]["args"]["CUDA"] == "1"
    [device] = server["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


@pytest.mark.parametrize("file", ["compose.yml", "compose.model.yml"])
def test_compose_gives_it_commands_of_ours(file: str) -> None:
    server = yaml.safe_load((ROOT / "docker" / file).read_text(encoding="utf-8"))["services"]["server"]
    parsed = make_parser().parse_args(server["command"])
    assert is_loopback(parsed.triton_server_name)
    assert parsed.server_port == DEFAULT_PORT


def test_compose_runs_it_with_a_root_that_nobody_writes(image: list[list[Instruction]]) -> None:
    server = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text(encoding="utf-8"))["services"]["server"]
    assert server["read_only"]
    mounted = {volume.split(":")[1] for volume in server["volumes"]}
    assert mounted | set(server["tmpfs"]) == set(json.loads(given(image[-1], "VOLUME")[0]))
    assert any(make_parser().parse_args(server["command"]).cache_dir.startswith(f"{path}/") for path in mounted)
    drained = make_parser().parse_args(server["command"]).drain_seconds
    assert float(server["stop_grace_period"].removesuffix("s")) >= drained + EXIT_SECONDS


def test_its_command_is_one_of_ours_and_leaves_tritons_ports_closed(image: list[list[Instruction]]) -> None:
    final = image[-1]
    assert json.loads(given(final, "ENTRYPOINT")[0]) == ["/opt/lmdeploy/.venv/bin/lmdeploy"]
    parsed = make_parser().parse_args(json.loads(given(final, "CMD")[0]))
    assert is_loopback(parsed.triton_server_name)
    assert {int(port) for port in given(final, "EXPOSE")[0].split()} == {parsed.server_port, parsed.webui_port}
    made_in = dict(line.split("=", 1) for line in given(image[1], "ENV"))["LMDEPLOY_CACHE"]
    assert parsed.model == f"{made_in}/models/{DEFAULT_MODEL_NAME}"
