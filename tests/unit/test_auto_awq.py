"""`lmdeploy lite auto_awq`: the checkpoint it writes, what it refuses, and that an interrupted run continues."""

import gzip
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AwqConfig

from lmdeploy.cli.main import main as run_cli
from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite import scaled_groups
from lmdeploy.lite.auto_awq import (
    FIXED_RATIOS,
    RATIOS,
    AwqSettings,
    InputMoments,
    auto_awq,
    output_error,
    scales_of,
    search_ratio,
)
from lmdeploy.lite.calibration import DEFAULT_TEXT, load_text, samples_of
from lmdeploy.lite.rounding import Grid, round_matrix
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.quantized_checkpoints import Scheme, decode_awq, decode_gptq, quantize
from tests.support.tiny_models import make_tiny

QUICK = {"w_group_size": 32, "calib_samples": 4, "calib_seqlen": 48}


def settings(**changes: Any) -> AwqSettings:
    return AwqSettings(**(QUICK | changes))


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "model", "LlamaForCausalLM", hidden_size=64)


VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}, {}),
    "scales searched": ("LlamaForCausalLM", {}, {"search_scale": True}),
    "symmetric": ("LlamaForCausalLM", {}, {"w_sym": True}),
    "whole rows": ("LlamaForCausalLM", {}, {"w_group_size": -1}),
    "all heads, biases": ("LlamaForCausalLM", {"num_key_value_heads": 4, "attention_bias": True}, {}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": False}, {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, {}),
    "mistral": ("MistralForCausalLM", {"head_dim": 24}, {}),
}


@pytest.mark.alike(max_cases=4)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_checkpoint_is_the_model_but_for_the_rounding(name: str, tmp_path: Path) -> None:
    architecture, overrides, changes = VARIANTS[name]
    sizes = {"hidden_size": 64, "initializer_range": 0.05, "vocab_size": 49152}
    directory = make_tiny(tmp_path / "model", architecture, **(sizes | overrides))
    options = settings(**changes)
    auto_awq(directory, tmp_path / "awq", options)
    assert resolve(tmp_path / "awq").spec.num_layers == 2

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = Tokenizer(str(directory)).encode("It was the best of times, it was the worst of times")
    exact = logits(model, ids)
    decoded = decode_awq(tmp_path / "awq", options.w_group_size)
    missing, unknown = model.load_state_dict({key: value.float() for key, value in decoded.items()}, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unknown
    # Norms and weights are not the old ones, but together they are the old function. Rounding to 4 bits costs some 0.1.
    assert distance(logits(model, ids), exact) < 0.25


def test_config_and_tokenizer_are_those_of_an_awq_checkpoint(source: Path, tmp_path: Path) -> None:
    auto_awq(source, tmp_path / "awq", settings(w_sym=True))
    config = json.loads((tmp_path / "awq" / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": 32,
        "zero_point": False,
        "modules_to_not_convert": None,
    }
    assert AwqConfig.from_dict(config["quantization_config"]).format == "gemm"  # `transformers` reads it
    assert config["dtype"] == "float16"
    assert (tmp_path / "awq" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    index = json.loads((tmp_path / "awq" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == sorted(p.name for p in (tmp_path / "awq").glob("*.safetensors"))
    assert not (tmp_path / "awq" / ".auto_awq").exists()


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_an_interrupted_run_continues_and_ends_the_same(source: Path, tmp_path: Path) -> None:
    auto_awq(source, tmp_path / "whole", settings())

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        auto_awq(source, tmp_path / "parts", settings(), progress=interrupt)
    assert not (tmp_path / "parts" / "config.json").exists()
    first = tmp_path / "parts" / ".auto_awq" / "model-00001-of-00003.safetensors"
    made = first.stat().st_mtime_ns
    with pytest.raises(FileExistsError, match=r"differs in w_group_size: .* or delete"):
        auto_awq(source, tmp_path / "parts", settings(w_group_size=16))
    # As if it had been interrupted while the finished files moved, too.
    first.rename(tmp_path / "parts" / first.name)
    auto_awq(source, tmp_path / "parts", settings(batch_size=2))
    assert (tmp_path / "parts" / first.name).stat().st_mtime_ns == made
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    with pytest.raises(FileExistsError, match="holds a model already"):
        auto_awq(source, tmp_path / "parts", settings())


def test_rounding_is_that_of_the_tests_own_encoder() -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 64)
    native = round_matrix(weight, Grid(4, 16, is_symmetric=False)).numbers()
    torch.testing.assert_close(native, quantize(weight, Scheme(group_size=16)).dequantized(), rtol=0, atol=2e-3)


def test_symmetric_codes_are_within_half_a_step() -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 64)
    rounded = round_matrix(weight, Grid(4, 16, is_symmetric=True))
    assert (rounded.zeros == 8).all()
    step = rounded.scales.float().repeat_interleave(16, dim=1)
    assert ((rounded.numbers() - weight).abs() <= 0.51 * step).all()


def test_the_error_of_outputs_follows_from_the_inputs_moments() -> None:
    torch.manual_seed(0)
    x, change = torch.randn(100, 16), torch.randn(8, 16)
    moments = InputMoments.empty(16, torch.device("cpu"))
    for part in (x[:30], x[30:]):
        moments.add(part)
    torch.testing.assert_close(output_error(change, moments), (x @ change.T).square().sum(-1).mean())
    torch.testing.assert_close(moments.magnitude, x.abs().mean(0))


def test_a_search_takes_the_ratio_whose_outputs_change_least() -> None:
    torch.manual_seed(3)
    # Few inputs carry nearly all: the best ratio is neither of the two that are tried without a search.
    x = torch.randn(400, 64) * torch.where(torch.arange(64) % 16 == 0, 60.0, 1.0)
    weight, grid = torch.randn(32, 64), Grid(4, 32, False)
    moments = InputMoments.empty(64, torch.device("cpu"), 32)
    moments.add(x)

    def cost(ratio: float) -> float:
        scales = scales_of(moments, ratio, lambda values: values)
        rounded = round_matrix(weight * scales, grid).numbers() / scales
        groups = (x[:, g : g + 32] @ (rounded - weight)[:, g : g + 32].T for g in (0, 32))
        return float(sum(part.square().sum() for part in groups))

    found = search_ratio([weight], moments, grid, RATIOS)
    assert cost(found) == pytest.approx(min(map(cost, RATIOS)), rel=1e-3)
    assert cost(found) < min(map(cost, FIXED_RATIOS))


def test_models_of_another_structure_are_refused_by_name(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "PersimmonForCausalLM")
    with pytest.raises(UnsupportedModelError, match="PersimmonForCausalLM is not supported: no family describes it"):
        auto_awq(directory, tmp_path / "awq", settings())
    assert not (tmp_path / "awq" / "config.json").exists()


def test_a_model_that_is_code_is_refused_and_the_code_not_run(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM")
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "own.py").write_text("raise RuntimeError('code of a checkpoint was run')")
    with pytest.raises(UnsupportedModelError, match=r"OwnForCausalLM is not supported: .* own code is never run"):
        auto_awq(directory, tmp_path / "awq", settings())


def test_layers_that_are_another_function_than_their_groups_say_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = scaled_groups.Producer

    def shifted(name: str, source: Any = None, offset: float = 0.0) -> scaled_groups.Producer:
        return producer(name, source, offset + 1.0)  # as if norms added one to their weights

    monkeypatch.setattr(scaled_groups, "Producer", shifted)
    with pytest.raises(UnsupportedModelError, match="dividing its norms and weights changes what layer 0 computes"):
        auto_awq(source, tmp_path / "awq", settings())


def test_without_a_group_size_the_largest_that_fits_is_taken(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "model", "LlamaForCausalLM", hidden_size=96, intermediate_size=192)
    auto_awq(source, tmp_path / "awq", settings(w_group_size=None))
    config = json.loads((tmp_path / "awq" / "config.json").read_text())
    assert config["quantization_config"]["group_size"] == 32


def test_codes_of_8_bits_are_those_of_gptqs_format(source: Path, tmp_path: Path) -> None:
    auto_awq(source, tmp_path / "awq", settings(w_bits=8))
    quantization = json.loads((tmp_path / "awq" / "config.json").read_text())["quantization_config"]
    assert (quantization["quant_method"], quantization["bits"]) == ("gptq", 8)
    assert quantization["checkpoint_format"] == "gptq_v2"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = Tokenizer(str(source)).encode("It was the best of times, it was the worst of times")
    exact = logits(model, ids)
    decoded = decode_gptq(tmp_path / "awq", 8)
    model.load_state_dict({key: value.float() for key, value in decoded.items()}, strict=False)
    assert distance(logits(model, ids), exact) < 0.05


def test_a_group_size_that_does_not_fit_is_refused_with_those_that_do(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"q_proj.weight has 64 inputs, .* 128; these would do: -1, 64, 32, 16, 8"):
        auto_awq(source, tmp_path / "awq", settings(w_group_size=128))


def test_a_quantized_model_is_refused(source: Path, tmp_path: Path) -> None:
    auto_awq(source, tmp_path / "awq", settings())
    with pytest.raises(CheckpointError, match="is quantized already"):
        auto_awq(tmp_path / "awq", tmp_path / "again", settings())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w_bits": 3}, "w_bits must be one of 4, 8"),
        ({"w_group_size": 12}, "w_group_size must be -1 or a multiple of 8, got 12"),
        ({"w_group_size": 0}, "w_group_size must be"),
        ({"calib_samples": 0}, "calib_samples must be >= 1"),
    ],
)
def test_bad_settings_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        settings(**changes)


def test_numbers_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "LlamaForCausalLM")
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][0, 0] = 1e6
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"embed_tokens.weight has numbers .* too large for float16; use --dtype"):
        auto_awq(directory, tmp_path / "awq", settings())


# ---- calibration text ----


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "first\n\nsecond"),
        ("a.json", '["first", {"text": "second", "id": 2}]'),
        ("a.jsonl", '"first"\n\n{"text": "second"}\n'),
    ],
)
def test_texts_are_read_from_files(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert load_text(str(tmp_path / name)) == "first\n\nsecond"


BAD_FILES = {
    "missing.txt": (
        None,
        "is neither a file, a folder nor one of ptb, wikitext2, c4, pileval; without it the built-in text",
    ),
    "empty.txt": (b" \n", "holds no text"),
    "binary.txt": (b"\xff\xfe\xfa", "can't decode"),
    "object.json": (b"{}", "must hold a list of texts, got dict"),
    "numbers.jsonl": (b'"a"\n{"id": 1}', "entry 2 must be a string"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_texts_are_refused_with_the_default(name: str, tmp_path: Path) -> None:
    content, reason = BAD_FILES[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"--calib-dataset .*{name}: .*{reason}"):
        load_text(str(tmp_path / name))


def test_data_sets_are_loaded_where_their_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def load_dataset(**arguments: Any) -> list[dict[str, str]]:
        requested.append(arguments)
        return [{"sentence": "first"}, {"sentence": "second"}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert load_text("ptb") == "first\n\nsecond"
    assert requested == [{"path": "ptb_text_only", "name": "penn_treebank", "split": "train"}]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"c4: needs the package `datasets`, which is not installed; give a text file"):
        load_text("c4")


def test_samples_are_neighbouring_pieces_of_the_text(default_model_dir: Path) -> None:
    tokenizer = Tokenizer(str(default_model_dir))
    text = gzip.decompress(DEFAULT_TEXT.read_bytes()).decode()
    samples = samples_of(text, tokenizer, 3, 100)
    assert [len(sample) for sample in samples] == [100] * 3
    assert text.startswith(tokenizer.decode([token for sample in samples for token in sample]))
    rest = samples_of("word " * 210, tokenizer, 8, 100)
    assert [len(sample) for sample in rest] == [100, 100]  # what is left of the text is too short to say much


# ---- the command ----


def test_the_command_writes_a_checkpoint(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--w-group-size", "32", "--calib-samples", "2", "--calib-seqlen", "32", "--device", "cpu"]
    assert run_cli(["lite", "auto_awq", str(source), "--work-dir", str(tmp_path / "awq"), *arguments]) == 0
    assert f"wrote {tmp_path / 'awq'}" in capsys.readouterr().out
    assert (tmp_path / "awq" / "config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--w-group-size", "12"], "w_group_size must be -1 or a multiple of 8, got 12"),
        (["--calib-dataset", "nowhere"], "nowhere: is neither a file, a folder nor one of ptb"),
        (["--revision", "x", "--w-group-size", "48"], "no multiple of w_group_size 48"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    arguments: list[str], reason: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lite", "auto_awq", str(source), "--work-dir", str(tmp_path / "awq"), "--device", "cpu", *arguments]
    assert run_cli(command) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("lmdeploy lite auto_awq: ")
    assert reason in error


@pytest.mark.parametrize("method", ["auto_awq", "smooth_quant"])
def test_the_command_searches_where_it_is_asked_to(
    method: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[Any] = []

    def record(model_dir: Path, work_dir: Path, settings: Any, **_: Any) -> Path:
        requested.append(settings)
        return work_dir

    monkeypatch.setattr(f"lmdeploy.lite.{method}.{method}", record)
    for options in ([], ["--search-scale"]):
        assert run_cli(["lite", method, str(source), "--work-dir", str(tmp_path / "out"), *options]) == 0
    assert [settings.search_scale for settings in requested] == [False, True]


@pytest.mark.parametrize("method", ["auto_awq", "auto_gptq", "smooth_quant", "calibrate"])
@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (0, "has no *.safetensors file: download the weights too, or name the folder that holds them"),
        (90_000, "model.safetensors is truncated: "),
        (50, "model.safetensors is truncated: "),
    ],
    ids=["no weights", "half a file", "half a header"],
)
def test_missing_and_broken_weights_are_named_with_what_to_do(
    kept: int, reason: str, method: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(shutil.copytree(source, tmp_path / "broken"))
    content = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").unlink()
    if kept:
        assert kept < len(content)
        (broken / "model.safetensors").write_bytes(content[:kept])
    assert run_cli(["lite", method, str(broken), "--work-dir", str(tmp_path / "out"), "--device", "cpu"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"lmdeploy lite {method}: {broken}: ")
    assert reason in error
    assert not kept or error.endswith("download it again")
    assert not (tmp_path / "out" / "config.json").exists()
