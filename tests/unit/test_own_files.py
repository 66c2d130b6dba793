"""Files of a model folder lie in it, wherever its links and names lead."""

import json
import os
import shutil
from pathlib import Path

import pytest

from lmdeploy.errors import CheckpointError
from lmdeploy.outside_links import reject_outside_links
from lmdeploy.templates.of_adapters import AdapterTemplates
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "tokenizer_config.json", "config.json", "additional_chat_templates/tool_use.jinja"]
)
@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_link_out_of_the_folder_is_refused_by_name(
    tiny_llama: Path, tmp_path: Path, name: str, is_dangling: bool
) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret"
    shutil.copytree(tiny_llama, folder)
    if not is_dangling:
        secret.write_text("root:x:0:0")
    link = folder / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(secret, link.parent))
    with pytest.raises(CheckpointError, match=rf"{name} is a link to a file outside of the folder"):
        resolve(folder)


def test_a_template_of_an_adapter_that_is_a_link_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x:0:0")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "chat_template.jinja").symlink_to("../secret")
    templates = AdapterTemplates(Tokenizer(str(tiny_llama)))
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is a link to a file outside"):
        templates.add("a", adapter)
    assert templates.is_empty


def test_a_folder_that_is_a_link_out_and_a_device_are_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "additional_chat_templates").symlink_to(other)
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(
        CheckpointError, match=r"additional_chat_templates is a link .*; tokenizer\.json is no regular file"
    ):
        reject_outside_links(folder)


def test_links_of_the_hubs_cache_within_the_folder_and_of_weights_are_its_own(tiny_llama: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in tiny_llama.iterdir():
        if file.suffix == ".safetensors":
            (snapshot / file.name).symlink_to(file)
        else:
            shutil.copy(file, blobs / f"digest-{file.name}")
            (snapshot / file.name).symlink_to(f"../../blobs/digest-{file.name}")
    (snapshot / "README.md").symlink_to("config.json")
    (snapshot / "venv/bin").mkdir(parents=True)
    (snapshot / "venv/bin/python").symlink_to("/bin/sh")  # which no reader looks at
    assert resolve(snapshot).spec.hidden_size == resolve(tiny_llama).spec.hidden_size
    (tmp_path / "by-another-name").symlink_to(snapshot)
    reject_outside_links(tmp_path / "by-another-name")


@pytest.mark.parametrize("name", ["../model.safetensors", "/dev/zero", "a/../../x.safetensors"])
@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_an_index_names_files_of_its_folder(tiny_llama: Path, tmp_path: Path, name: str, suffix: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    index = "model.safetensors.index.json" if suffix == "safetensors" else "pytorch_model.bin.index.json"
    (folder / index).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CheckpointError, match=rf"{index} is broken .*it names files elsewhere"):
        resolve(folder)
