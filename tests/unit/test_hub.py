"""Models of a hub: what is pulled is whole or not there, whatever happens on the way."""

import argparse
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from lmdeploy.cli.main import main
from lmdeploy.cli.pull import pulled_or_rejected
from lmdeploy.errors import CheckpointError
from lmdeploy.hub import HubError
from lmdeploy.hub.choice import HubFile, chosen_files
from lmdeploy.hub.names import HubName, hub_name
from lmdeploy.hub.pull import Progress, pull
from lmdeploy.hub.pulled import find, pulled_models, remove, snapshot_of_others
from lmdeploy.paths import locate_model, pulled_records
from tests.support.fake_hub import FakeHub, digest_of, running_hub, use_hub

SMALL = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "README.md": b"# hello", "model.py": b"import os"}
WEIGHTS = bytes(range(256)) * 1000
PLAIN = HubName("owner/plain")
QUANTIZED = HubName("owner/quantized", "Q8_0")
REPOSITORIES = {
    "owner/plain": SMALL | {"model.safetensors": WEIGHTS, "pytorch_model.bin": b"x" * 100},
    "owner/quantized": {"a-Q4_K_M.gguf": b"4" * 500, "a-Q8_0.gguf": b"8" * 900, "config.json": b"{}"},
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with running_hub(REPOSITORIES) as hub:
        use_hub(hub, monkeypatch)
        yield hub


def pulled(name: HubName = PLAIN, **options: Any) -> Path:
    return pull(pulled_records(), name, **options).path


def test_a_model_is_pulled_whole_and_then_found_without_the_hub(hub: FakeHub) -> None:
    steps: list[Progress] = []
    path = pulled(report=steps.append)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    assert files == {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "model.safetensors": WEIGHTS}
    assert [step.status for step in steps if not step.file] == [
        "pulling manifest",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    of_weights = [step.completed for step in steps if step.file == "model.safetensors"]
    assert of_weights == sorted(of_weights)
    assert of_weights[-1] == steps[-4].total == len(WEIGHTS)
    hub.files.clear()
    assert locate_model("owner/plain") == path
    assert [(str(model.name), model.size) for model in pulled_models(pulled_records())] == [
        ("owner/plain", sum(map(len, files.values())))
    ]


def test_what_is_there_is_not_fetched_again(hub: FakeHub) -> None:
    pulled()
    requested = len(hub.requests)
    hub.commit = "b" * 40
    hub.files["owner/plain"]["config.json"] = b'{"new": true}'
    assert (pulled() / "config.json").read_bytes() == b'{"new": true}'
    assert [name for name, _ in hub.requests[requested:]] == ["config.json"]


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: FakeHub) -> None:
    hub.cut_after["model.safetensors"] = [100_000]
    assert (pulled() / "model.safetensors").read_bytes() == WEIGHTS
    assert [begin for name, begin in hub.requests if name == "model.safetensors"] == [0, 100_000]


def test_a_download_that_was_broken_off_leaves_no_model_and_is_continued(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after["model.safetensors"] = [70_000, *[0] * 20]
    with pytest.raises(HubError, match=r"model\.safetensors was interrupted .*; what is there is kept: try again"):
        pulled()
    assert find(pulled_records(), PLAIN) is None
    assert pulled_models(pulled_records()) == []
    assert not list((tmp_path / "hub").rglob("snapshots/*/*"))
    hub.cut_after.clear()
    hub.requests.clear()
    assert (pulled() / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.requests == [("model.safetensors", 70_000)]


def test_a_file_with_another_checksum_is_never_used(hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong["model.safetensors"] = b"?" * len(WEIGHTS)
    with pytest.raises(HubError, match=r"model\.safetensors has not the checksum that the hub names \(sha256:"):
        pulled()
    assert find(pulled_records(), PLAIN) is None
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.is_file() and b"???" in path.read_bytes()]
    hub.wrong.clear()
    assert (pulled() / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("etag", ["../../outside", "{digest of another}", "/etc/passwd", "../../../../../etc/passwd"])
def test_headers_of_a_hub_decide_nothing_about_where_a_file_goes(hub: FakeHub, tmp_path: Path, etag: str) -> None:
    if etag.startswith("{"):
        etag = digest_of("model.safetensors", WEIGHTS)
    named = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": "5", "X-Repo-Commit": "b" * 40}
    hub.headers = dict.fromkeys(("config.json", "model.safetensors"), named)
    path = pulled()
    blobs = path.parent.parent / "blobs"
    for file in path.iterdir():
        content = REPOSITORIES["owner/plain"][file.name]
        assert file.read_bytes() == content
        assert file.resolve() == blobs / digest_of(file.name, content)
    files = {
        file for file in tmp_path.rglob("*") if file.is_file() and "cache" not in file.relative_to(tmp_path).parts[0]
    }
    assert {file.parent for file in files} <= {blobs, path}


def test_a_file_larger_than_the_hub_says_ends_at_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.sizes["model.safetensors"] = 1000
    with pytest.raises(HubError, match=r"model\.safetensors is larger than the 1000 bytes that the hub names"):
        pulled()
    assert not [file for file in (tmp_path / "hub").rglob("*") if file.is_file() and file.stat().st_size > 1000]


def test_a_redirect_into_a_private_network_is_refused(hub: FakeHub) -> None:
    with running_hub(REPOSITORIES) as other:
        hub.headers["model.safetensors"] = {
            "Location": f"{other.url}/owner/plain/resolve/{hub.commit}/model.safetensors"
        }
        with pytest.raises(HubError, match=r"redirects to 127\.0\.0\.1, which is in a private network"):
            pulled()
        assert other.requests == []


def test_a_file_that_was_damaged_in_the_cache_is_found(hub: FakeHub) -> None:
    path = pulled()
    blob = (path / "model.safetensors").resolve()
    blob.write_bytes(WEIGHTS[:-1] + b"?")
    with pytest.raises(HubError, match="has not the checksum"):
        pulled()
    assert (pulled() / "model.safetensors").read_bytes() == WEIGHTS


def test_a_record_of_files_that_are_gone_or_shorter_counts_for_nothing(hub: FakeHub) -> None:
    path = pulled()
    (path / "model.safetensors").resolve().write_bytes(WEIGHTS[:1000])
    assert find(pulled_records(), PLAIN) is None
    shutil.rmtree(path)
    assert pulled_models(pulled_records()) == []


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("owner/missing", None, "the hub has no such model, or it is private and HF_TOKEN is not set"),
        ("owner/plain", "v9", "the hub has no version 'v9' of it"),
        ("owner/quantized:Q5_K_M", None, "no GGUF file is meant by 'Q5_K_M'; the repository has a-Q4_K_M, a-Q8_0"),
        ("owner/plain:Q4_K_M", None, "the repository has no GGUF files"),
    ],
)
def test_what_the_hub_does_not_have_is_said(hub: FakeHub, name: str, revision: str | None, message: str) -> None:
    correct = hub_name(name)
    assert correct is not None
    with pytest.raises(HubError) as caught:
        pulled(correct, revision=revision)
    assert str(caught.value) == message
    with pytest.raises(CheckpointError, match="the download from Hugging Face failed"):
        locate_model(name, revision)
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached_is_said(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.url = "http://127.0.0.1:9"
    use_hub(hub, monkeypatch)
    with pytest.raises(CheckpointError, match="the hub cannot be reached"):
        locate_model("owner/plain")


def test_without_the_hub_what_another_program_downloaded_is_taken(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants, snapshot_download

    path = Path(snapshot_download("owner/plain", cache_dir=tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert locate_model("owner/plain") == path


def test_a_name_is_looked_up_path_first_then_cached_pulled_and_the_cache_of_the_hub(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import snapshot_download

    with pytest.raises(CheckpointError, match=r"^plain: no such directory, and no model of this name; .*looked at "):
        locate_model("plain")
    snapshot = Path(snapshot_download("owner/plain", cache_dir=tmp_path / "hub", ignore_patterns="*.md"))
    hub.requests.clear()
    assert locate_model("owner/plain") == snapshot  # what another program downloaded
    assert hub.requests == []
    path = pulled()
    assert locate_model("plain") == locate_model("owner/plain") == path
    made = tmp_path / "cache/models/plain"
    made.mkdir(parents=True)
    assert locate_model("plain") == made
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").mkdir()
    assert locate_model("plain") == tmp_path / "plain"


def test_a_part_of_a_model_that_another_program_downloaded_is_completed(hub: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    shards = {"model-1.safetensors": b"1", "model-2.safetensors": b"2", "model.safetensors.index.json": index}
    hub.files["owner/shards"] = {"config.json": b"{}", **shards}
    part = Path(snapshot_download("owner/shards", cache_dir=tmp_path / "hub", ignore_patterns="model-2*"))
    with pytest.raises(HubError, match=r"snapshots/a+ lacks model-2\.safetensors$"):
        snapshot_of_others(HubName("owner/shards"))
    with pytest.raises(CheckpointError, match=r"not on this machine: run `lmdeploy pull owner/shards`; looked at "):
        locate_model("owner/shards", may_download=False)
    assert locate_model("owner/shards") == part
    assert (part / "model-2.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch.gguf", "nosuch.gguf: no such file"),
        ("models/nosuch.GGUF", "models/nosuch.GGUF: no such file"),
        ("/nowhere", "/nowhere: no such directory"),
        ("./nowhere", "./nowhere: no such directory"),
        (
            "SmolLM2-135M-Instruct",
            "{cache}/models/SmolLM2-135M-Instruct: the default model is not there: run `make model`",
        ),
        (
            "thing",
            "thing: no such directory, and no model of this name; a repository of a hub is called owner/name; looked "
            "at {cache}/models (made), pulled models (owner/plain, owner/quantized:Q8_0), the hub's cache {hub} "
            "(owner/plain, owner/quantized)",
        ),
        ("several", "several: several pulled models have this name: a/several, b/several; name one of them"),
    ],
)
def test_a_name_of_nothing_is_refused_with_where_was_looked_and_what_is_there(
    hub: FakeHub, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "cache/models/made").mkdir(parents=True)
    correct = [PLAIN, QUANTIZED]
    if name == "several":
        hub.files |= {f"{owner}/several": hub.files["owner/plain"] for owner in "ab"}
        correct = [HubName("a/several"), HubName("b/several")]
    for file in correct:
        pulled(file)
    with pytest.raises(CheckpointError) as caught:
        locate_model(name)
    assert str(caught.value) == message.format(cache=tmp_path / "cache", hub=tmp_path / "hub")


def test_a_model_larger_than_the_disk_is_refused_before_a_byte_of_it_comes(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))  # type: ignore[attr-defined]
    with pytest.raises(HubError, match=r"0\.00 GB are missing of it, and .* has 0\.00 GB free"):
        pulled()
    assert hub.requests == []


def test_a_disk_that_fills_up_gets_its_space_back(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill(url: str, target: BinaryIO, **options: Any) -> None:
        target.write(WEIGHTS[:5000])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", fill)
        with pytest.raises(HubError, match="is full; what was begun is removed"):
            pulled()
    assert find(pulled_records(), PLAIN) is None
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]


def test_all_models_together_stay_within_their_bound(hub: FakeHub) -> None:
    pulled()
    size = sum(model.size for model in pulled_models(pulled_records()))
    with pytest.raises(HubError, match="remove one first"):
        pulled(QUANTIZED, max_bytes=size + 899)
    pulled(QUANTIZED, max_bytes=size + 900)
    pulled(max_bytes=size + 900)  # itself is not counted twice


def test_a_file_is_removed_with_the_last_model_that_has_it(hub: FakeHub, tmp_path: Path) -> None:
    four, eight = HubName("owner/quantized", "*Q4*.gguf"), QUANTIZED
    paths = [pulled(name) for name in (four, HubName("owner/quantized", "Q4_K_M"), eight)]
    assert paths[0] == paths[1] != paths[2]
    assert [model.which for model in remove(pulled_records(), four)] == ["*Q4*.gguf"]
    assert find(pulled_records(), four) is None
    assert paths[1].read_bytes() == b"4" * 500
    remove(pulled_records(), HubName("owner/quantized", "Q4_K_M"))
    assert not paths[1].exists()
    assert paths[2].read_bytes() == b"8" * 900
    assert len(list((tmp_path / "hub").rglob("blobs/*"))) == 1
    remove(pulled_records(), eight)
    assert not list((tmp_path / "hub").glob("models--*"))
    assert remove(pulled_records(), eight) == []


NO_NAMES = ["name", "a/b/c", "../etc", "a/..", "a/b--c", "/a/b", "a/b:", "a/b:../x", "a/b:/x", "a b/c", "a/b\n", "ä/b"]
NO_NAMES += ["a/" + "b" * 95, "http://a/b", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubName("owner/name")),
        ("hf.co/owner/name:Q4_K_M", HubName("owner/name", "Q4_K_M")),
        ("owner/name:latest", HubName("owner/name")),
        ("owner/name:sub/*.gguf", HubName("owner/name", "sub/*.gguf")),
        *((text, None) for text in NO_NAMES),
    ],
)
def test_names_that_are_understood(text: str, expected: HubName | None) -> None:
    assert hub_name(text) == expected


GGUF = [
    "a-Q4_K_M.gguf",
    "a-Q4_K_S.gguf",
    "mmproj-a-BF16.gguf",
    "mmproj-a-F16.gguf",
    *(f"big/a-BF16-0000{i}-of-00002.gguf" for i in (2, 1)),
    "a-IQ4_K_M_x.gguf",
]


@pytest.mark.parametrize(
    ("which", "main", "count"),
    [
        ("", "a-Q4_K_M.gguf", 1),
        ("q4_k_m", "a-Q4_K_M.gguf", 1),
        ("BF16", "big/a-BF16-00001-of-00002.gguf", 2),
        ("*Q4_K_S*", "a-Q4_K_S.gguf", 1),
        ("a-Q4_K_S.gguf", "a-Q4_K_S.gguf", 1),
    ],
)
def test_a_quantization_or_a_pattern_means_one_gguf_model(which: str, main: str, count: int) -> None:
    found, files = chosen_files([HubFile(name, 1, "") for name in GGUF], which)
    assert found == files[0].name == main
    towers = [] if "/" in main else ["mmproj-a-F16.gguf"]  # with the model in its folder, and one of them
    assert [file.name for file in files[count:]] == towers


@pytest.mark.parametrize(("which", "problem"), [("Q4_K", "no GGUF file is"), ("*Q4*", "several GGUF files are")])
def test_what_means_none_or_several_gguf_models_is_refused_with_those_there_are(which: str, problem: str) -> None:
    with pytest.raises(HubError, match=rf"^{problem} meant by .* the repository has .*big/a-BF16"):
        chosen_files([HubFile(name, 1, "") for name in GGUF], which)


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.json", "a/../../b.json", "a\\b.json", ""])
def test_a_hub_whose_file_names_lead_elsewhere_or_whose_sizes_are_none_is_refused(hub: FakeHub, name: str) -> None:
    if name:
        hub.files["owner/plain"][name] = b"{}"
    else:
        hub.sizes["model.safetensors"] = -1
    with pytest.raises(HubError, match="without size, checksum or a path of its own"):
        pulled()


def test_the_command_line_pulls_lists_and_removes(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "owner/quantized", "--hf-file", "*Q8*.gguf"]) == 0
    captured = capsys.readouterr()
    assert "serve it with: lmdeploy serve api_server owner/quantized:*Q8*.gguf" in captured.out
    assert "pulling a-Q8_0.gguf: 100%" in captured.err
    assert main(["list"]) == 0
    assert "owner/quantized:*Q8*.gguf  0.00 GB" in capsys.readouterr().out
    assert main(["rm", "owner/quantized"]) == 1
    assert "models that were: owner/quantized:*Q8*.gguf" in capsys.readouterr().err
    assert main(["rm", "owner/quantized:*Q8*.gguf"]) == 0
    assert main(["pull", "owner/missing"]) == 1
    assert "lmdeploy pull: owner/missing: the hub has no such model" in capsys.readouterr().err


def test_serve_says_what_is_not_there_and_pulls_it_when_asked(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "api_server", "owner/plain", "--server-port", "1"]) == 1
    assert "--pull downloads it from the hub now" in capsys.readouterr().err
    assert hub.requests == []
    args = argparse.Namespace(pull=True, hf_file="*Q8*")
    assert pulled_or_rejected("owner/quantized", args, {}) == "owner/quantized:*Q8*"
    hub.files.clear()
    args.pull = False
    assert pulled_or_rejected("owner/quantized", args, {}) == "owner/quantized:*Q8*"
    assert pulled_or_rejected("", args, {}) == ""
    args.pull = True
    with pytest.raises(HubError, match="owner/plain: the hub has no such model"):
        pulled_or_rejected("owner/plain", argparse.Namespace(pull=True, hf_file=""), {})
