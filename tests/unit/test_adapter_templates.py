"""A chat template in an adapter's folder is that of prompts for the adapter, and of nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.errors import CheckpointError
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.templates.of_adapters import AdapterTemplates
from lmdeploy.tokenizer import Tokenizer
from tests.support.adapters import OWN_TEMPLATE, make_adapter
from tests.support.fake_pb_utils import Request, loaded_model
from tests.support.tiny_models import make_tiny_llama

MESSAGES = [{"role": "user", "content": "Hi, 你好 🙂"}]
GREEDY = GenerationConfig(max_new_tokens=6, ignore_eos=True)


def written(directory: Path, template: str | None = None) -> str:
    """Return the conversation as `transformers` writes it."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text: str = tokenizer.apply_chat_template(
        MESSAGES, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    return text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture(scope="module")
def adapters(directory: Path) -> dict[str, str]:
    """One with a template in a file, one with it among the tokenizer's settings, and one without."""
    paths = {
        name: make_adapter(directory.parent / name, directory, seed=seed)
        for seed, name in enumerate(("file", "settings", "plain"))
    }
    (paths["file"] / "chat_template.jinja").write_text(OWN_TEMPLATE)
    (paths["settings"] / "tokenizer_config.json").write_text(json.dumps({"chat_template": OWN_TEMPLATE}))
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def broken(directory: Path) -> Path:
    path = make_adapter(directory.parent / "broken", directory)
    (path / "chat_template.jinja").write_text("line 1\n{% for message in %}")
    return path


@pytest.fixture(scope="module")
def pipe(directory: Path, adapters: dict[str, str]) -> Iterator[AsyncEngine]:
    given = {name: adapters[name] for name in ("file", "plain")}
    with pipeline(str(directory), dtype="float32", adapters=given, cache_max_entry_count=64) as loaded:
        yield loaded


def as_written(pipe: AsyncEngine, text: str, adapter: str | None) -> str:
    response: str = pipe(text, GREEDY, do_preprocess=False, adapter_name=adapter).text
    return response


def test_each_adapter_is_asked_in_its_own_words(pipe: AsyncEngine, directory: Path) -> None:
    base, adapted = written(directory), written(directory, OWN_TEMPLATE)
    for adapter, text in ((None, base), ("plain", base), ("file", adapted)):
        assert pipe(MESSAGES, GREEDY, adapter_name=adapter).text == as_written(pipe, text, adapter)
    assert as_written(pipe, base, "file") != as_written(pipe, adapted, "file")


def test_sessions_are_asked_so_too(pipe: AsyncEngine, directory: Path) -> None:
    with pipe.session(GREEDY, adapter_name="file") as session:
        response = session(MESSAGES[0]["content"], stream_response=False)
        assert response.text == as_written(pipe, written(directory, OWN_TEMPLATE), "file")


def test_an_adapter_that_is_loaded_later_brings_its_own_and_takes_it_along(
    pipe: AsyncEngine, directory: Path, adapters: dict[str, str]
) -> None:
    pipe.load_adapter("late", adapters["settings"])
    adapted = written(directory, OWN_TEMPLATE)
    assert pipe(MESSAGES, GREEDY, adapter_name="late").text == as_written(pipe, adapted, "late")
    pipe.unload_adapter("late")
    pipe.load_adapter("late", adapters["plain"])
    assert pipe(MESSAGES, GREEDY, adapter_name="late").text == as_written(pipe, written(directory), "plain")
    pipe.unload_adapter("late")


def test_a_template_that_cannot_be_read_is_refused_with_its_adapter(
    pipe: AsyncEngine, directory: Path, broken: Path
) -> None:
    with pytest.raises(ValueError, match=r"adapter bad: its chat template cannot be read \(line 2: "):
        pipe.load_adapter("bad", str(broken))
    with pytest.raises(ValueError, match="adapter_name must be one of adapters"):
        pipe(MESSAGES, GREEDY, adapter_name="bad")
    with pytest.raises(ValueError, match="adapter bad: its chat template"):
        pipeline(str(directory), adapters={"bad": str(broken)})


@pytest.fixture
def model(directory: Path, adapters: dict[str, str]) -> Iterator[Any]:
    """The model `preprocessing` of a server that was started with one adapter."""
    engine_config = json.dumps({"adapters": {"file": adapters["file"]}})
    with loaded_model("preprocessing", model_path=str(directory), engine_config=engine_config) as instance:
        yield instance


def ids_of(model: Any, **inputs: str) -> list[int]:
    [response] = model.execute([Request(messages=json.dumps(MESSAGES), **inputs)])
    assert response.error is None
    ids: list[int] = response.array("INPUT_ID")[0].tolist()
    return ids


def control(model: Any, key: str, **inputs: str) -> str:
    """Send a control request and return why it was refused, if it was."""
    request = Request(**inputs)
    request.reported = {"control_key": key}
    [response] = model.execute([request])
    return "" if response.error is None else str(response.error)


def test_a_server_writes_messages_for_the_adapter_that_they_name(model: Any, directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    base, adapted = tokenizer.encode(written(directory)), tokenizer.encode(written(directory, OWN_TEMPLATE))
    assert ids_of(model) == ids_of(model, lora_name="unknown") == base
    assert ids_of(model, lora_name="file") == adapted
    by_parameter = Request(messages=json.dumps(MESSAGES))
    by_parameter.reported = {"lora_name": "file"}
    [response] = model.execute([by_parameter])
    assert response.array("INPUT_ID")[0].tolist() == adapted


def test_a_server_is_reported_of_adapters_with_its_key_alone(
    model: Any, directory: Path, adapters: dict[str, str], broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CONTROL_KEY", "secret")
    base, adapted = ids_of(model), ids_of(model, lora_name="file")
    load = {"lora_control": "load", "lora_name": "late", "lora_path": adapters["settings"]}
    assert "control_key" in control(model, "predicted", **load)
    assert ids_of(model, lora_name="late") == base
    assert control(model, "secret", **load) == ""
    assert ids_of(model, lora_name="late") == adapted
    assert control(model, "secret", lora_control="unload", lora_name="late") == ""
    assert ids_of(model, lora_name="late") == base
    assert "line 2: " in control(model, "secret", **load | {"lora_path": str(broken)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"lora_control": "list", "lora_name": "late"}, "lora_control must be load or unload, got list"),
        ({"lora_control": "unload"}, "lora_control needs lora_name"),
        ({"lora_control": "load", "lora_name": "late"}, "lora_control load needs lora_path"),
    ],
)
def test_malformed_control_requests_are_refused(model: Any, inputs: dict[str, str], message: str) -> None:
    assert message in control(model, "", **inputs)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (LOOPS, "rendering the chat template takes longer than 2 s"),
        ("{{ 'a' * 9000000000 }}", "rendering the chat template takes too much memory"),
        ("{{ [0] * 9000000000 }}", "rendering the chat template takes too much memory"),
        (
            "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}",
            "memory|longer than 2 s",  # a slow machine meets the other bound first
        ),
    ],
    ids=["time", "memory at compilation", "a list", "memory at rendering"],
)
def test_a_template_that_costs_too_much_is_refused_where_it_is_loaded(
    directory: Path, tmp_path: Path, template: str, problem: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    templates = AdapterTemplates(Tokenizer(str(directory)))
    with pytest.raises(CheckpointError, match=problem):
        templates.add("costly", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(OWN_TEMPLATE)
    templates.add("costly", tmp_path)
    found = templates.get("costly")
    assert found is not None
    assert found.render(MESSAGES) == written(directory, OWN_TEMPLATE)


def test_a_template_that_costs_too_much_for_some_messages_fails_their_request(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        OWN_TEMPLATE + "{% if messages[0].content == 'slowly' %}" + LOOPS + "{% endif %}"
    )
    templates = AdapterTemplates(Tokenizer(str(directory)))
    templates.add("slow", tmp_path)
    found = templates.get("slow")
    assert found is not None
    with pytest.raises(ValueError, match="rendering the chat template takes longer than 2 s"):
        found.render([{"role": "user", "content": "slowly"}])
    assert found.render(MESSAGES) == written(directory, OWN_TEMPLATE)
