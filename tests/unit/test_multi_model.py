"""Sets of models, their shares of the memory, and the list of those that are served."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.cli import api_server
from lmdeploy.cli.main import make_parser
from lmdeploy.serve.multi_model import placing
from lmdeploy.serve.multi_model.memory import divide
from lmdeploy.serve.multi_model.placing import place_another, place_first
from lmdeploy.serve.multi_model.prepare import prepare
from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.serve.multi_model.registry import Registry, RegistryBusyError, triton_models
from lmdeploy.serve.multi_model.requested import RequestedModel, from_arguments, newest_versions, read_models_file
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.repository import MODELS, get_parameter
from tests.support.hybrid_models import make_hybrid
from tests.support.tiny_encoders import make_encoder

GB = 10**9


def prepared(name: str, *, weights: int = GB, device: str = "cpu", **engine: Any) -> PreparedModel:
    return PreparedModel(name, f"/engines/{name}", "llama2", "vicuna", engine, device, weights, 1_000_000, 10**6)


def need(name: str, *, cache: float | None = None, weights: int = GB, device: str = "cuda") -> PreparedModel:
    return prepared(name, weights=weights, device=device, cache_max_entry_count=cache)


def test_a_model_of_a_command_line_is_called_as_said_or_as_its_folder(tmp_path: Path) -> None:
    (tmp_path / "odd=name").mkdir()
    given = ["/models/small", "big@2=/models/large", "big@1=/models/old", str(tmp_path / "odd=name")]
    models = from_arguments(given, {"engine": {"session_len": 64}})
    assert [(model.name, model.path) for model in models] == [
        ("small", "/models/small"),
        ("big@2", "/models/large"),
        ("big@1", "/models/old"),
        ("odd=name", given[-1]),
    ]
    assert {json.dumps(model.engine) for model in models} == {'{"session_len": 64}'}


def test_the_only_model_may_be_named_in_front_of_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, str]] = []
    monkeypatch.setattr(api_server, "served_model", lambda path, args: served.append((path, args.model_name)))
    for arguments in (["chat=/models/a"], ["/models/a", "--model-name", "chat"], ["/models/a=b"]):
        api_server._served(make_parser().parse_everything(["serve", "api_server", *arguments]))
    assert served == [("/models/a", "chat"), ("/models/a", "chat"), ("/models/a=b", "")]
    twice = make_parser().parse_everything(["serve", "api_server", "chat=/models/a", "--model-name", "b"])
    with pytest.raises(ValueError, match="called chat and b"):
        api_server._served(twice)


def test_a_length_for_all_models_is_what_each_can_have(tmp_path: Path) -> None:
    make_encoder(tmp_path, "Bert")
    positions = resolve(tmp_path).spec.learned_positions
    assert 0 < positions < 65536
    for length in (65536, positions, positions - 1):
        requested = RequestedModel("encoder", str(tmp_path), engine={"session_len": length})
        assert prepare(requested, length).engine["session_len"] == min(length, positions)
        assert prepare(requested).engine["session_len"] == length  # its own, which the engine may refuse


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_a_model_that_only_the_users_classes_can_run_is_made_ready(
    tiny_llama: Path, copy_of: Callable[[Path], Path], backend: str
) -> None:
    checkpoint = copy_of(tiny_llama)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"architectures": ["MineForCausalLM"]}))
    classes = {"custom_module_map": json.dumps({"MineForCausalLM": "lmdeploy.pytorch.models.llama.LlamaForCausalLM"})}
    made = prepare(RequestedModel("mine", str(checkpoint), backend=backend, engine=classes))
    assert resolve(made.engine_dir).backend == "pytorch"
    assert made.engine == classes


@pytest.mark.parametrize(
    ("name", "state", "token"),
    [
        # Per layer: 3 inputs of a convolution of 2 x 2 x 16 + 4 x 24 channels, 4 states of 16 x 24.
        ("Qwen3.5", 3 * (3 * 160 + 4 * 16 * 24), 2 * 2 * 16),
        ("LFM2", 2 * 2 * 32, 2 * 2 * 8),
        ("Mamba2", 2 * (3 * (64 + 2 * 2 * 16) + 8 * 8 * 16), 0),
    ],
)
def test_states_and_keys_are_counted_for_the_layers_that_have_them(
    name: str, state: int, token: int, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32} | ({} if name == "Mamba2" else {"num_key_value_heads": 2})
    checkpoint = make_hybrid(tmp_path / "model", name, **sizes)
    settings = {"dtype": "float32", "session_len": 64, "cache_block_seq_len": 16, "device": "cpu"}
    few, many = (
        prepare(RequestedModel("mine", str(checkpoint), engine=settings | {"max_batch_size": batch}))
        for batch in (2, 5)
    )
    assert many.weights - few.weights == 2 * 3 * 4 * state  # states and as many snapshots of three more sequences
    assert few.block == max(1, 16 * 4 * token)


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
def test_a_file_says_of_each_model_what_the_command_line_says_of_all(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "alongside").mkdir()
    (tmp_path / "file.gguf").touch()
    content = {
        "models": [
            {"path": "alongside", "engine": {"session_len": 64}, "idle_timeout": "5m"},
            {"path": "file.gguf", "name": "file"},
            {"name": "chat@3", "path": "owner/name", "chat_template": "vicuna", "backend": "pytorch"},
        ]
    }
    file = tmp_path / f"models.{suffix}"
    in_toml = "models = " + re.sub(r'"(\w+)": ', r"\1 = ", json.dumps(content["models"]))
    file.write_text(in_toml if suffix == "toml" else json.dumps(content))  # JSON is YAML
    common = {"engine": {"session_len": 8, "max_batch_size": 2}, "chat_template": "llama2"}
    first, gguf, second = read_models_file(file, common)
    assert gguf == RequestedModel("file", str(tmp_path / "file.gguf"), "llama2", engine=common["engine"])  # type: ignore[arg-type]
    assert first == RequestedModel(
        "alongside",
        str(tmp_path / "alongside"),
        "llama2",
        engine={"session_len": 64, "max_batch_size": 2},
        idle_timeout=300,
    )
    assert second == RequestedModel("chat@3", "owner/name", "vicuna", "pytorch", common["engine"])  # type: ignore[arg-type]


BAD_FILES = {
    "not there": (None, "cannot be read"),
    "no JSON": ("{", "Expecting"),
    "no models": ("{}", "must hold a list `models`"),
    "no path": ('[{"name": "a"}]', "model 1 has no path"),
    "a misspelt member": ('[{"path": "/a", "engin": {}}]', "unknown member engin; did you mean engine?"),
    "a misspelt setting": (
        '[{"path": "/a", "engine": {"session_length": 9}}]',
        "a: the engine has no setting session_length; did you mean session_len?",
    ),
    "a setting out of range": ('[{"path": "/a", "engine": {"session_len": 1}}]', "session_len must be"),
    "a number for a name": ('[{"path": "/a", "name": 3}]', "model 1: name must be a text"),
    "two of one name": ('[{"path": "/a"}, {"path": "/b/a"}]', "two models are called a"),
    "versions and none": ('[{"path": "/a"}, {"path": "/b", "name": "a@2"}]', "a is served with versions and without"),
    "a version that is no number": ('[{"path": "/a", "name": "a@new"}]', "NAME@VERSION with a whole number"),
    "an odd time": ('[{"path": "/a", "idle_timeout": "5 minutes"}]', "model 1: idle_timeout must be seconds"),
    "a list of times": ('[{"path": "/a", "idle_timeout": [5]}]', "model 1: idle_timeout must be seconds"),
    "another engine": ('[{"path": "/a", "backend": "vllm"}]', "backend must be one of turbomind, pytorch"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_what_is_wrong_with_a_file_is_reported_in_a_sentence(tmp_path: Path, case: str) -> None:
    text, sentence = BAD_FILES[case]
    file = tmp_path / "models.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=r"models\.json") as caught:
        read_models_file(file, {})
    assert sentence in str(caught.value)


def test_a_name_without_a_version_is_the_highest_there_is() -> None:
    assert newest_versions(["a@2", "b", "a@10", "c@1", "a@9"]) == {"a": "a@10", "c": "c@1"}


def test_shares_are_of_what_all_weights_leave() -> None:
    blocks = divide([need("a", weights=2 * GB, cache=0.5), need("b", weights=3 * GB, cache=0.25)], 25 * GB)
    assert blocks == {"a": 10_000, "b": 5_000}


def test_models_that_say_nothing_share_evenly_what_the_others_leave() -> None:
    blocks = divide([need("a", cache=0.5), need("b"), need("c"), need("d", cache=1000)], 25 * GB)
    assert blocks == {"a": 10_000, "b": 4_000, "c": 4_000, "d": 1_000}  # of 25 - 4 weights - 1 fixed
    on_cpu = divide([need("a", device="cpu"), need("b", device="cpu")], 100 * GB)
    assert on_cpu == {"a": 4294, "b": 4294}  # 4 GiB, as for a model alone


@pytest.mark.parametrize(
    ("needs", "sentence"),
    [
        (
            [need("a", weights=6 * GB), need("b", weights=5 * GB)],
            "the models do not fit together into the 10.00 GB that are free on cuda: a takes 6.00 GB of weights and at "
            "least 1.0 MB of cache, b takes 5.00 GB",
        ),
        ([need("a", cache=8000), need("b", cache=8000)], "a takes 1.00 GB of weights and 8.00 GB of cache"),
        ([need("a", weights=10 * GB)], "a does not fit into the 10.00 GB"),
        ([need("a", cache=0.7), need("b", cache=0.7)], "are a 0.7, b 0.7: together 1.4, and may be 1"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_sizes(needs: list[PreparedModel], sentence: str) -> None:
    with pytest.raises(ValueError, match="cache_max_entry_count") as caught:
        divide(needs, 10 * GB)
    assert sentence in str(caught.value)


def test_a_model_has_folders_of_its_own_in_tritons_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "free_memory", lambda device: 22 * GB)
    registry = Registry(tmp_path)
    models = [prepared("a/b", cache_max_entry_count=0.5), prepared("a_b", cache_max_entry_count=0.25)]
    place_first(registry, models, unload_seconds=7.5)
    first, second = registry.models()
    assert (first.suffix, second.suffix) == (".a_b", ".a_b-2")
    assert (first.memory, second.memory) == (11 * GB, 6 * GB)  # a weight's and a cache's
    assert first.triton_models[-2:] == ["ensemble.a_b", "ensemble_vision.a_b"]  # when what they need is there
    folders = {path.name for path in registry.repository.iterdir()}
    assert folders == {f"{name}{entry.suffix}" for name in MODELS for entry in (first, second)}
    ensemble = (registry.repository / "ensemble_vision.a_b-2" / "config.pbtxt").read_text()
    assert 'name: "ensemble_vision.a_b-2"' in ensemble
    assert {line.split('"')[1] for line in ensemble.splitlines() if "model_name:" in line} == {
        f"{name}.a_b-2" for name in ("preprocessing", "vision", "turbomind")
    }
    engine = (registry.repository / "turbomind.a_b" / "config.pbtxt").read_text()
    reported = {key: get_parameter(engine, key) for key in ("model_path", "served_model_name", "unload_seconds")}
    assert reported == {"model_path": "/engines/a/b", "served_model_name": "a/b", "unload_seconds": "7.5"}
    assert json.loads(get_parameter(engine, "engine_config")) == {"cache_max_entry_count": 10_000}


def test_a_later_model_gets_what_is_set_apart_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 22 * GB
    monkeypatch.setattr(placing, "free_memory", lambda device: free)
    registry = Registry(tmp_path)
    place_first(registry, [prepared("a", cache_max_entry_count=0.5)], unload_seconds=1)
    (first,) = registry.models()
    later = place_another(registry, prepared("b", cache_max_entry_count=0.5), unload_seconds=1)
    assert later.memory == GB + (free - first.memory - GB) // 2
    assert registry.models() == (first,)  # it is served when it is loaded
    free = 3 * GB  # somebody else took the rest
    tight = place_another(registry, prepared("c", cache_max_entry_count=0.5), unload_seconds=1)
    assert tight.memory == 2 * GB
    with pytest.raises(ValueError, match=r"d does not fit into the 3\.00 GB"):
        place_another(registry, prepared("d", cache_max_entry_count=5000), unload_seconds=1)


def test_a_model_leaves_memory_as_it_says_or_else_as_the_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "free_memory", lambda device: 22 * GB)
    registry = Registry(tmp_path)
    models = [prepared("a"), replace(prepared("b"), idle_timeout=-1.0)]
    place_first(registry, models, unload_seconds=1, idle_timeout=600)
    place_another(
        Registry(tmp_path), replace(prepared("c", cache_max_entry_count=5), idle_timeout=30), unload_seconds=1
    )
    configs = {name: (registry.repository / f"turbomind.{name}" / "config.pbtxt").read_text() for name in "abc"}
    assert {name: get_parameter(config, "idle_timeout") for name, config in configs.items()} == {
        "a": "600", "b": "-1", "c": "30",
    }  # fmt: skip


def test_engines_of_models_that_take_turns_size_their_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "free_memory", lambda device: 22 * GB)
    registry = Registry(tmp_path)
    models = [prepared("a"), prepared("b", cache_max_entry_count=0.75), prepared("c", cache_max_entry_count=2000)]
    place_first(registry, models, unload_seconds=1, budget=3 * GB)
    place_another(Registry(tmp_path), prepared("d"), unload_seconds=1)
    configs = [(registry.repository / f"turbomind.{name}" / "config.pbtxt").read_text() for name in "abcd"]
    engines = [json.loads(get_parameter(config, "engine_config")) for config in configs]
    assert [engine.get("cache_max_entry_count") for engine in engines] == [None, 0.75, 2000, None]
    with pytest.raises(ValueError, match=r"e does not fit into the 3\.00 GB of --models-memory: e takes 1\.00 GB"):
        place_another(registry, prepared("e", cache_max_entry_count=2001), unload_seconds=1)
    with pytest.raises(ValueError, match=r"a does not fit into the 500\.0 MB of --models-memory"):
        place_first(Registry(tmp_path / "other"), models, unload_seconds=1, budget=GB // 2)


def test_one_change_at_a_time_and_everybody_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "free_memory", lambda device: None)
    writer, reader = Registry(tmp_path), Registry(tmp_path)
    assert reader.models() == ()
    with writer.changing(), pytest.raises(RegistryBusyError, match="try again"), reader.changing():
        pass
    place_first(writer, [prepared("a"), prepared("b")], unload_seconds=1)
    assert [model.name for model in reader.models()] == ["a", "b"]
    writer.write(writer.models()[1:])
    assert [model.name for model in reader.models()] == ["b"]
    assert all(name.endswith(".b") for name in triton_models(".b"))
