"""Damaged and hostile checkpoints are refused in a sentence, and read no file but their own."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tokenizers
from safetensors.torch import load_file, save_file

import lmdeploy.tokenizer
from lmdeploy.errors import CheckpointError, is_panic
from lmdeploy.outside_links import reject_outside_links
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.of_adapters import AdapterTemplates
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve

CopyOf = Callable[[Path], Path]
Damage = Callable[[Path], object]
WEIGHTS = "model.safetensors"


def cut(name: str, keep: int) -> Damage:
    def damage(checkpoint: Path) -> None:
        path = checkpoint / name
        path.write_bytes(path.read_bytes()[:keep])

    return damage


def write(name: str, content: bytes) -> Damage:
    return lambda checkpoint: _write(checkpoint / name, content)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def remove(name: str) -> Damage:
    return lambda checkpoint: (checkpoint / name).unlink()


def configure(**changes: Any) -> Damage:
    def damage(checkpoint: Path) -> None:
        config = json.loads((checkpoint / "config.json").read_text()) | changes
        (checkpoint / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))

    return damage


def retensor(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(checkpoint: Path) -> None:
        tensors = load_file(checkpoint / WEIGHTS)
        change(tensors)
        save_file(tensors, checkpoint / WEIGHTS)

    return damage


def header(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


FAULTS: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "config.json is missing"),
    "half a config": (cut("config.json", 50), "config.json cannot be read"),
    "config is a list": (write("config.json", b"[]"), "config.json must hold a JSON object, got list"),
    "no weights": (remove(WEIGHTS), r"has no \*.safetensors file"),
    "other weights": (
        lambda checkpoint: (checkpoint / WEIGHTS).rename(checkpoint / "pytorch_model.bin"),
        "pytorch_model.bin: holds more than tensors, or is broken; nothing of it was executed",
    ),
    "empty file": (cut(WEIGHTS, 0), "model.safetensors is truncated: 0 bytes"),
    "half a header": (cut(WEIGHTS, 100), "model.safetensors is truncated: its header has"),
    "half the weights": (cut(WEIGHTS, 100_000), "model.safetensors is truncated: expected [0-9]+ bytes, got 100000"),
    "one byte short": (cut(WEIGHTS, -1), "model.safetensors is truncated"),
    "no safetensors": (write(WEIGHTS, b"PK\x03\x04" + bytes(100)), "is no safetensors file|is truncated"),
    "random bytes": (write(WEIGHTS, b"\xff" * 100), "is no safetensors file"),
    "git lfs pointer": (write(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"), "run `git lfs pull`"),
    "header no json": (write(WEIGHTS, header(b"{not json")), "its header is no JSON"),
    "header no object": (write(WEIGHTS, header(b"[1]")), "its header is no JSON object"),
    "unknown type": (
        write(WEIGHTS, header(b'{"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}')),
        "has tensor a of unknown type X9; known: F64, ",
    ),
    "type of codes": (
        lambda checkpoint: _write(
            checkpoint / WEIGHTS,
            (checkpoint / WEIGHTS).read_bytes().replace(b'"F32","shape":[32]', b'"F4","shape":[256]'),
        ),
        r"tensor model\.\S+norm\.weight has shape \[256\], expected \[32\]",
    ),
    "names of another model": (
        retensor(lambda tensors: [tensors.update({f"gpt.{name}": tensors.pop(name)}) for name in list(tensors)]),
        "of the 20 tensors of this architecture are missing, such as model.embed_tokens.weight; the files hold others",
    ),
    "an adapter alone": (
        lambda checkpoint: (checkpoint / WEIGHTS).rename(checkpoint / "adapter_model.safetensors"),
        "has no model.safetensors and no shards, only adapter_model.safetensors, which is no model",
    ),
    "two sets of unknown names": (
        lambda checkpoint: (
            [(checkpoint / f"{name}.safetensors").write_bytes((checkpoint / WEIGHTS).read_bytes()) for name in "ab"]
            and (checkpoint / WEIGHTS).unlink()
        ),
        "b.safetensors and a.safetensors both hold tensor",
    ),
    "wrong offsets": (
        write(WEIGHTS, header(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}') + bytes(8)),
        r"has tensor a F32\[2\] at bytes 0..4, expected 8 bytes",
    ),
    "missing tensor": (
        retensor(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight")),
        "tensor model.layers.1.mlp.up_proj.weight is missing",
    ),
    "wrong shape": (
        retensor(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"][:-1].clone()})),
        r"tensor model.norm.weight has shape \[31\], expected \[32\]",
    ),
    "wrong type": (
        retensor(lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].int()})),
        "tensor model.norm.weight has type I32, expected one of F32, F16, BF16",
    ),
    "unread bias": (
        retensor(
            lambda tensors: tensors.update(
                {"model.layers.0.self_attn.q_proj.bias": tensors["model.norm.weight"].clone()}
            )
        ),
        "tensor model.layers.0.self_attn.q_proj.bias is unknown to this architecture",
    ),
    "more layers": (configure(num_hidden_layers=3), "tensor model.layers.2.input_layernorm.weight is missing"),
    "zero heads": (configure(num_attention_heads=0), "num_attention_heads must be a whole number >= 1, got 0"),
    "a vocabulary beyond belief": (configure(vocab_size=10**9), "vocab_size must be at most"),
    "theta not a number": (
        configure(rope_parameters={"rope_type": "default", "rope_theta": float("nan")}),
        "rope_theta",
    ),
    "no feature of its size": (
        configure(intermediate_size=-1),
        "intermediate_size must be a whole number >= 1, got -1",
    ),
    "text for a size": (configure(hidden_size="big"), "hidden_size must be a whole number >= 1, got 'big'"),
    "size left out": (configure(vocab_size="absent"), "vocab_size must be a whole number >= 1, got None"),
    "heads do not divide": (configure(num_key_value_heads=3), "num_heads must be a multiple of num_kv_heads 3, got 4"),
    "hidden does not divide": (
        configure(num_attention_heads=5, head_dim=None),
        "hidden_size must be a multiple of num_attention_heads 5, got 32",
    ),
    "head_dim contradicts the weights": (
        configure(head_dim=10),
        r"q_proj.weight has shape \[32, 32\], expected \[40, 32\]",
    ),
    "odd head_dim": (configure(head_dim=7), "config.json is invalid: .*even"),
    "rope without factor": (configure(rope_parameters={"rope_type": "linear"}), "config.json is invalid: .*factor"),
    "rope theta zero": (configure(rope_parameters={"rope_type": "default", "rope_theta": 0}), "config.json is invalid"),
    "eps zero": (configure(rms_norm_eps=0.0), "norm.eps must be a finite number > 0"),
    "model_type unknown": (configure(model_type="absent"), "config.json is invalid"),
    "eos no id": (
        write("generation_config.json", b'{"eos_token_id": "</s>"}'),
        "generation_config.json: eos_token_id must be a token id or a list of them, got '</s>'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_checkpoint_is_refused_by_reason(fault: str, tiny_llama: Path, copy_of: CopyOf) -> None:
    damage, reason = FAULTS[fault]
    checkpoint = copy_of(tiny_llama)
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=reason) as raised:
        resolve(checkpoint)
    assert "\n" not in str(raised.value)


SHARD_FAULTS: dict[str, tuple[Damage, str]] = {
    "shard missing": (remove("model-00002-of-00006.safetensors"), "model-00002-of-00006.safetensors is missing"),
    "shard truncated": (cut("model-00003-of-00006.safetensors", -8), "model-00003-of-00006.safetensors is truncated"),
    "index broken": (write("model.safetensors.index.json", b"{"), "model.safetensors.index.json is broken"),
    "index empty": (write("model.safetensors.index.json", b"{}"), "model.safetensors.index.json is broken"),
}


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_a_damaged_sharded_checkpoint_is_refused_by_reason(fault: str, sharded_llama: Path, copy_of: CopyOf) -> None:
    damage, reason = SHARD_FAULTS[fault]
    checkpoint = copy_of(sharded_llama)
    damage(checkpoint)
    with pytest.raises(CheckpointError, match=reason):
        resolve(checkpoint)


def test_a_missing_shard_is_named_even_without_an_index(sharded_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(sharded_llama)
    remove("model.safetensors.index.json")(checkpoint)
    remove("model-00002-of-00006.safetensors")(checkpoint)
    with pytest.raises(CheckpointError, match=r"model-00002-of-00006\.safetensors is missing"):
        resolve(checkpoint)


def test_all_problems_are_reported_at_once(sharded_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(sharded_llama)
    remove("model-00001-of-00006.safetensors")(checkpoint)
    cut("model-00003-of-00006.safetensors", -8)(checkpoint)
    cut("model-00004-of-00006.safetensors", 5)(checkpoint)
    with pytest.raises(CheckpointError) as raised:
        resolve(checkpoint)
    assert [problem.split()[0][6:11] for problem in raised.value.problems] == ["00001", "00003", "00004"]


def test_a_long_list_of_problems_is_shortened(tiny_llama: Path, copy_of: CopyOf) -> None:
    checkpoint = copy_of(tiny_llama)
    retensor(lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers" in name])(checkpoint)
    with pytest.raises(CheckpointError, match=r"; and 6 more problems$") as raised:
        resolve(checkpoint)
    assert len(raised.value.problems) == 18


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_is_nested_too_deeply_is_an_error_of_the_checkpoint(
    tiny_llama: Path, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / file).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(CheckpointError, match=r"nested too deeply|recursion"):
        resolve(folder)


def test_a_panic_of_the_tokenizers_library_is_known(tiny_llama: Path) -> None:
    content = json.loads((tiny_llama / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 5}
    with pytest.raises(BaseException, match="stride") as caught:
        tokenizers.Tokenizer.from_str(json.dumps(content)).encode("a b c d e f g h i j k l m n")
    assert is_panic(caught.value)
    assert not isinstance(caught.value, Exception)


def test_a_panic_while_it_loads_is_an_error_of_the_checkpoint(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(_: Path) -> NoReturn:
        raise type("PanicException", (BaseException,), {})("index out of bounds")

    monkeypatch.setattr(lmdeploy.tokenizer, "is_resolved", lambda _: True)
    monkeypatch.setattr(lmdeploy.tokenizer, "read_resolved", breaks_off)
    with pytest.raises(CheckpointError, match=r"its tokenizer cannot be loaded \(index out of bounds\)"):
        Tokenizer(str(tiny_llama))


def test_a_template_that_never_ends_in_itself_is_refused() -> None:
    template = JinjaChatTemplate("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}")
    with pytest.raises(ValueError, match="refused by the model's chat template: maximum recursion depth"):
        template.render([{"role": "user", "content": "-"}])
    with pytest.raises(ValueError, match="nested too deeply"):
        JinjaChatTemplate("{{" + "(" * 20_000 + "1" + ")" * 20_000 + "}}").require_valid()


def test_a_decoder_that_is_published_for_embeddings_says_so(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    resolve(folder)
    assert "is_causal false is for embeddings" in caplog.text


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
