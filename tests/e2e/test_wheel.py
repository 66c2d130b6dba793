"""The wheel, without this checkout and without a compiler: what each install runs, and what it says it lacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.commands import ApiServer, api_server
from tests.support.tiny_models import make_tiny_llama

SCRIPT = """
import json, sys
from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
with pipeline(sys.argv[1], TurbomindEngineConfig(dtype="float32")) as pipe:
    answer = pipe("Hello", GenerationConfig(max_new_tokens=12, do_sample=False), do_preprocess=False)
print(json.dumps({"text": answer.text, "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel with what it asks for itself."""
    return Environment(tmp_path_factory.mktemp("base") / "env", wheel)


@pytest.fixture(scope="module")
def served(wheel: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """``lmdeploy-triton[serve]`` serving the model."""
    environment = Environment(tmp_path_factory.mktemp("serve") / "env", wheel)
    environment.add("serve")
    with api_server(str(model), "--dtype", "float32", env=environment.environ(), python=environment.python) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def offline(base: Environment, model: Path) -> dict[str, object]:
    """Responses of the base install, and the modules that it imported."""
    done = base.run("python", "-c", SCRIPT, str(model))
    assert done.returncode == 0, done.stderr
    response: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return response


def test_the_wheel_holds_engine_backend_programs_and_model_repository_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for expected in (
        "lmdeploy/backends/turbomind/libtriton_turbomind.so",
        "lmdeploy/backends/turbomind/libprivate_files.so",
        "lmdeploy/model_repository/ensemble/config.pbtxt",
        "python_backend/preprocessing/model.py",
        "openai_gateway/app.py",
        "webui/app.py",
        "webui/browser.js",
        "webui/style.css",
    ):
        assert expected in names
    assert any(name.startswith("lmdeploy/_turbomind.") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "tools/", "backend_cpp/"))]
    # Compiled files are where they are built; everything else is a file that git keeps.
    made = re.compile(r"lmdeploy_triton-.*\.dist-info/|lmdeploy/(backends/.*\.so|_turbomind\..*\.so)$")
    model_repository = "lmdeploy/model_repository/"
    rest = {name.replace(model_repository, "model_repository/") for name in names if not made.match(name)}
    assert rest <= kept_by_git()


def test_the_base_install_answers_without_gradio_triton_and_fastapi(
    base: Environment, offline: dict[str, object]
) -> None:
    assert offline["text"]
    loaded = offline["modules"]
    assert isinstance(loaded, list)
    assert not {"gradio", "fastapi", "tritonclient", "pytriton"} & set(loaded)
    absent = base.run("python", "-c", "import importlib.util as u; print(*map(u.find_spec, ['gradio', 'fastapi']))")
    assert absent.stdout.split() == ["None", "None"]
    assert base.run("lmdeploy", "--help").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "api_server", "anything"], "serve"),
        (["serve", "gateway"], "serve"),
        (["serve", "proxy"], "serve"),
        (["serve", "gradio", "anything"], "webui"),
    ],
)
def test_what_the_base_install_lacks_is_named_in_one_sentence(
    base: Environment, arguments: list[str], extra: str
) -> None:
    done = base.run("lmdeploy", *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"run: pip install 'lmdeploy-triton[{extra}]'")


def test_a_served_gateway_answers_as_the_base_install_does_offline(
    served: ApiServer, offline: dict[str, object]
) -> None:
    (model,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    body = {"model": model["id"], "prompt": "Hello", "max_tokens": 12, "temperature": 0}
    response = httpx.post(f"{served.url}/v1/completions", json=body).json()
    assert response["choices"][0]["text"] == offline["text"]


def test_a_served_gateway_keeps_to_a_response_format(served: ApiServer) -> None:
    (model,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    form = {"type": "regex_schema", "regex_schema": "(yes|no)!"}
    body = {"model": model["id"], "prompt": "Hello", "max_tokens": 12, "response_format": form}
    response = httpx.post(f"{served.url}/v1/completions", json=body).json()
    assert response["choices"][0]["text"] in ("yes!", "no!")


ROOT = Path(__file__).resolve().parent.parent.parent


def build_wheel(directory: Path) -> Path:
    """Return this checkout's wheel. Nothing is downloaded, and nothing compiled that ``make build`` has compiled."""
    compiled = ROOT / "build"
    assert (compiled / "CMakeCache.txt").is_file(), "nothing is built: run `make build` first"
    build = ROOT / "build-wheel"  # as deep as the other: objects are known by their paths
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(compiled, build)
    cache = build / "CMakeCache.txt"
    cache.write_text(re.sub(rf"{re.escape(str(compiled))}(?=/|$)", str(build), cache.read_text(), flags=re.MULTILINE))
    env = {"CXX": shutil.which("c++") or "c++", **os.environ}  # CMake's own choice, not that of Python's build
    # As `make build` does: the build's tools are those of this environment.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    options += ["--config-settings", f"build-dir={build.name}"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    shutil.rmtree(build)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = directory.glob("*.whl")
    return wheel


def kept_by_git() -> set[str]:
    """Return the files of this checkout that git keeps, as paths from its root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(filter(None, listed.split("\0")))


class Environment:
    """A virtual environment without this checkout, and with the packages that it is given alone.

    Packages are links to those of the running environment, so nothing is downloaded: what is shown is that an extra
    names all that is imported, not that an index has it.
    """

    def __init__(self, directory: Path, wheel: Path) -> None:
        venv.create(directory, symlinks=True)
        self._packages = next((directory / "lib").glob("python3*/site-packages"))
        self._bin = directory / "bin"
        self._there: set[tuple[str, str]] = set()
        options = ["--no-deps", "--no-index", "--disable-pip-version-check", "-q"]
        install = [sys.executable, "-m", "pip", "--python", self.python, "install", *options, str(wheel)]
        subprocess.run(install, check=True)
        (reported,) = self._packages.glob("lmdeploy_triton-*.dist-info")
        self.metadata = metadata.Distribution.at(reported)
        self.add("")

    def add(self, extra: str) -> None:
        """Add what the wheel's metadata asks for an extra; empty: for itself."""
        for text in self.metadata.requires or []:
            self._add(Requirement(text), extra)

    def _add(self, requirement: Requirement, extra: str) -> None:
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            return
        name = canonicalize_name(requirement.name)
        if name == "lmdeploy-triton":
            for included in requirement.extras:
                self.add(included)
            return
        for correct in ("", *requirement.extras):
            if (name, correct) in self._there:
                continue
            self._there.add((name, correct))
            found = metadata.distribution(name)
            for file in found.files or []:
                if file.parts[0] != ".." and file.parts[0] != "__pycache__":
                    link = self._packages / file.parts[0]
                    if not link.exists():
                        link.symlink_to(Path(str(found.locate_file(file.parts[0]))))
            for text in found.requires or []:
                self._add(Requirement(text), correct)

    def run(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, somewhere else than in the checkout."""
        return subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            cwd=self._bin,
            env={**self.environ(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self._bin / "python")

    @staticmethod
    def environ() -> dict[str, str]:
        """Return this process's environment without what would find the checkout."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, "PYTHONSAFEPATH": "1"}
