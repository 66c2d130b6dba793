"""`lmdeploy convert` writes a model repository that serves the checkpoint, or nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.cli.main import main
from lmdeploy.model import MODELS, chat_template_for
from lmdeploy.turbomind.convert import convert
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.repository import set_parameter, template_dir
from lmdeploy.turbomind.text_part import ARCHITECTURES as SEEING

CopyOf = Callable[[Path], Path]


def parameters(workspace: Path, model: str) -> dict[str, str]:
    config = text_format.Parse((workspace / model / "config.pbtxt").read_text(), ModelConfig())
    assert config.name == model
    return {key: value.string_value for key, value in config.parameters.items()}


def test_a_workspace_with_a_copy_of_the_weights_serves_where_it_is_moved_to(
    tiny_llama: Path, copy_of: CopyOf, tmp_path: Path
) -> None:
    source = copy_of(tiny_llama)
    expected = read_output(source)
    assert main(["convert", str(source), "--copy", "--dst-path", str(tmp_path / "workspace")]) == 0
    shutil.rmtree(source)
    (tmp_path / "workspace").rename(tmp_path / "moved")
    assert read_output(tmp_path / "moved") == expected


def read_output(path: Path) -> list[int]:
    with pipeline(str(path), TurbomindEngineConfig(session_len=64, cache_max_entry_count=4)) as pipe:
        tokens: list[int] = pipe("Hi", max_new_tokens=8, ignore_eos=True).token_ids
        return tokens


def test_the_workspace_is_a_model_repository_without_weights(tiny_llama: Path, tmp_path: Path) -> None:
    workspace = convert(str(tiny_llama), tmp_path / "out" / "workspace", dtype="float32")
    assert workspace == tmp_path / "out" / "workspace"
    models = ["ensemble", "ensemble_vision", "postprocessing", "preprocessing", "turbomind", "vision"]
    assert sorted(path.name for path in workspace.iterdir()) == models
    assert all((workspace / model / "1").is_dir() for model in models)
    assert all((workspace / model / "1" / "model.py").is_file() for model in models if "processing" in model)
    assert sum(file.stat().st_size for file in workspace.rglob("*.safetensors")) == 0
    turbomind = parameters(workspace, "turbomind")
    assert (turbomind["model_path"], turbomind["served_model_name"]) == (".", "tiny-llama")
    assert turbomind["model_name"] == "qwen-7b"  # for older clients: the tiny model has the default model's template
    assert json.loads(turbomind["engine_config"]) == {"dtype": "float32", "tp": 1}
    for model in ("preprocessing", "postprocessing", "vision"):
        path = parameters(workspace, model)["model_path"]
        assert (workspace / model / "1" / path).samefile(workspace / "turbomind" / "1")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["workspace"]


def test_the_workspace_resolves_to_its_own_engine_directory(tiny_llama: Path, tmp_path: Path) -> None:
    workspace = convert(str(tiny_llama), tmp_path / "workspace", model_name="mine")
    engine = resolve(workspace)
    assert engine.path == workspace / "turbomind" / "1"
    assert engine.spec.model_name == "mine"
    for name in ("manifest.json", "token_bytes.bin"):
        assert (engine.path / name).read_bytes() == (resolve(tiny_llama).path / name).read_bytes()


def test_a_template_file_is_stored_in_the_repository(tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.json"
    file.write_text(json.dumps({"model_name": "mine", "user": 'A "quoted"\n用户: ', "eoh": "\\"}))
    workspace = convert(str(tiny_llama), tmp_path / "workspace", chat_template=str(file))
    messages = [{"role": "user", "content": "hi"}]
    stored = parameters(workspace, "preprocessing")["chat_template"]
    assert chat_template_for("", stored).render(messages) == 'A "quoted"\n用户: hi\\'


def test_an_earlier_workspace_is_replaced_and_anything_else_is_not(tiny_llama: Path, tmp_path: Path) -> None:
    workspace = convert(str(tiny_llama), tmp_path / "workspace", model_name="one")
    assert parameters(convert(str(tiny_llama), workspace, model_name="two"), "turbomind")["served_model_name"] == "two"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="is no workspace"):
        convert(str(tiny_llama), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_path_that_triton_cannot_serve_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"in a path with spaces, got --dst-path .*/my workspace"):
        convert(str(tiny_llama), tmp_path / "my workspace")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing(tiny_llama: Path, tmp_path: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    (checkpoint / "model.safetensors").write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="is truncated"):
        convert(str(checkpoint), tmp_path / "workspace")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("template", ["chatlm", '{"user": "x"}'])
def test_a_bad_template_is_refused_before_anything_is_written(tiny_llama: Path, tmp_path: Path, template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        convert(str(tiny_llama), tmp_path / "workspace", chat_template=template)
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_remembers_the_template_that_the_checkpoints_name_suggests(
    tiny_llama: Path, copy_of: CopyOf, tmp_path: Path
) -> None:
    checkpoint = copy_of(tiny_llama)
    (checkpoint / "chat_template.jinja").unlink()
    checkpoint = checkpoint.rename(checkpoint.with_name("vicuna-7b-tiny"))
    workspace = convert(str(checkpoint), tmp_path / "workspace", model_name="mine")
    messages = [{"role": "user", "content": "hi"}]
    for directory in (workspace, workspace / "turbomind" / "1"):
        assert chat_template_for(str(directory)).render(messages) == MODELS.get("vicuna")().render(messages)
    assert parameters(workspace, "turbomind")["model_name"] == "vicuna"


def test_both_forms_of_the_command_convert(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    assert main(["convert", str(tiny_llama), "--dst-path", str(new), "--model-name", "mine"]) == 0
    assert main(["convert", "chatml", str(tiny_llama), "--dst-path", str(old)]) == 0
    assert parameters(new, "turbomind")["served_model_name"] == "mine"
    assert parameters(old, "turbomind")["served_model_name"] == "chatml"
    assert parameters(old, "preprocessing")["chat_template"] == "chatml"
    assert f"--model-repository {old}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere/at/all"], "nowhere/at/all: no such directory"),
        (["", "--model-format", "llama"], "model_format is meta_llama, but the checkpoint's weights are hf"),
        (["", "--model-format", "awq"], "model_format is awq, but the checkpoint's weights are hf"),
        (["a", "b", "c"], "expected [MODEL_NAME] MODEL_PATH, got 3 names"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", *arguments, "--dst-path", str(tmp_path / "workspace")]) != 0
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_list_names_templates_and_architectures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"chatml", "llama3", "internlm2"} <= set(lines)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if "safetensors" in line}
    assert rows["LlamaForCausalLM"] == "C++ safetensors, GGUF transformers; GGUF: llama.cpp"
    assert rows["HeliumForCausalLM"] == "C++ safetensors transformers"
    assert rows["LlavaForConditionalGeneration"] == "C++, with images safetensors images: transformers"
    assert rows.keys() == {*families(), *SEEING}
    assert len(rows) == sum("safetensors" in line for line in lines)


def test_an_unknown_parameter_is_a_bug_that_shows() -> None:
    text = (template_dir() / "turbomind" / "config.pbtxt").read_text()
    with pytest.raises(KeyError, match="no parameter model_pth"):
        set_parameter(text, "model_pth", "x")
