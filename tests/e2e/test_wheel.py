"""The wheel, without this checkout and without a compiler: what each install runs, and what it says it lacks."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.commands import ApiServer, api_server
from tests.support.tiny_models import make_tiny_llama
from tests.support.wheel import Environment, build_wheel, kept_by_git

ASK = """
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
    done = base.run("python", "-c", ASK, str(model))
    assert done.returncode == 0, done.stderr
    response: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return response


def test_the_wheel_holds_engine_backend_programs_and_model_repository_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for expected in (
        "lmdeploy/backends/turbomind/libtriton_turbomind.so",
        "lmdeploy/backends/turbomind/libprivate_files.so",
        "lmdeploy/turbomind_grammar.so",
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
    made = re.compile(
        r"lmdeploy_triton-.*\.dist-info/|lmdeploy/(backends/.*\.so|_turbomind\..*\.so|turbomind_grammar\.so)$"
    )
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
