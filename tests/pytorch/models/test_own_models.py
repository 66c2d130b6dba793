"""Models of users: the manual's Llama runs, classes are found, and what cannot work is refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy import PytorchEngineConfig
from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.pytorch.check_env import check_model
from lmdeploy.pytorch.config import ModelConfig
from lmdeploy.pytorch.configurations import AutoModelConfigBuilder
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.models.module_map import MODULE_MAP
from lmdeploy.pytorch.models.patch import model_class_for, read_module_map
from lmdeploy.pytorch.models.patched_model import PatchedModel
from lmdeploy.pytorch.settings import engine_settings
from lmdeploy.pytorch.step_context import StepContext
from tests.pytorch.models.stepping import ReferenceCache, run_chunks
from tests.pytorch.models.test_families import CHUNKS, PROMPTS, TOLERANCE, expected_logits
from tests.support.tiny_models import make_tiny

MANUAL = Path(__file__).parents[2] / "data/own_llama/module_map.py"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM", vocab_size=1000, tie_word_embeddings=False)


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((llama / file).read_bytes())
    return tmp_path


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders that a test defines are gone after it."""
    monkeypatch.setattr(AutoModelConfigBuilder, "_builders", list(AutoModelConfigBuilder._builders))


def change_config(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


# ---- the manual's example ----


def test_the_manuals_llama_gives_the_logits_of_transformers(llama: Path) -> None:
    model = PatchedModel(llama, kernels=kernels(1), custom_module_map=str(MANUAL))
    assert type(model._model).__module__ == "own_llama"
    for native, reference in zip(run_chunks(model, PROMPTS, CHUNKS), expected_logits(llama), strict=True):
        assert (native - reference).abs().max() < TOLERANCE * reference.abs().max()


def whole_step(tokens: list[int], **fields: Any) -> StepContext:
    """Return a step of one sequence from its beginning."""
    cache = ReferenceCache()
    cache.step = StepContext.of_sequences(torch.tensor(tokens), [len(tokens)], cache, **fields)
    return cache.step


def test_only_rows_whose_logits_are_asked_for_reach_the_head(llama: Path) -> None:
    for custom in (None, str(MANUAL)):
        model = PatchedModel(llama, custom_module_map=custom)
        whole, _ = model.forward(whole_step(PROMPTS[0]))
        logits, hidden = model.forward(whole_step(PROMPTS[0], logits_indices=torch.tensor([7, 44])))
        assert logits == pytest.approx(whole[[7, 44]], abs=1e-5)
        assert hidden.shape == (2, 32)


def test_rows_with_embeddings_of_their_own_are_read_as_those(llama: Path) -> None:
    model = PatchedModel(llama)
    tokens, other = PROMPTS[0][:12], PROMPTS[1][:12]
    mixed = [*tokens[:3], *other[3:5], *tokens[5:]]
    rows = torch.zeros(1, 12, dtype=torch.bool)
    rows[0, 3:5] = True
    embeddings = load_file(llama / "model.safetensors")["model.embed_tokens.weight"][other[3:5]]
    step = whole_step(tokens, input_embeddings=embeddings, input_embedding_indexing=rows)
    assert torch.equal(model.forward(step)[0], model.forward(whole_step(mixed))[0])
    assert not torch.equal(model.forward(whole_step(tokens))[0], model.forward(whole_step(mixed))[0])


# ---- which class runs a model ----


class OfMine(torch.nn.Module):
    def forward(self) -> None: ...

    def prepare_inputs_for_generation(self) -> None: ...

    def load_weights(self) -> None: ...


class Unfinished(torch.nn.Module):
    def forward(self) -> None: ...


def config_of(architecture: str) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(architectures=[architecture])


@pytest.mark.parametrize("given", [OfMine, f"{__name__}.OfMine"])
def test_a_class_of_the_users_comes_before_ours(given: Any) -> None:
    found = model_class_for(config_of("LlamaForCausalLM"), {"LlamaForCausalLM": given})
    assert found is not None
    assert found.__name__ == "OfMine"
    native = model_class_for(config_of("LlamaForCausalLM"))
    assert native is not None
    assert native.__module__ == "lmdeploy.pytorch.models.llama"
    assert model_class_for(config_of("NobodyKnows")) is None


def test_a_map_may_be_json_and_names_of_ours() -> None:
    name = MODULE_MAP["Qwen2ForCausalLM"]
    assert read_module_map(json.dumps({"Mine": name}))["Mine"].__name__ == "Qwen2ForCausalLM"
    assert read_module_map(None) == read_module_map("") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MODULE_MAP = {\n", r"map\.py, line 1: '\{' was never closed"),
        ("import nothing_like_it\n", "map.py cannot be run: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("MODULES = {}\n", "must have a dict MODULE_MAP of architecture to class, got None"),
        ("MODULE_MAP = {'A': 'nowhere.Llama'}\n", "names 'nowhere.Llama', which cannot be imported"),
        ("MODULE_MAP = {'A': 'json.loads'}\n", "names 'json.loads', which is no class"),
    ],
)
def test_a_file_that_names_no_classes_is_refused_with_the_reason(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "map.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_module_map(str(path))


def test_what_is_no_file_and_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.py is no file"):
        read_module_map(tmp_path / "absent.py")
    with pytest.raises(ValueError, match="neither a file nor a JSON object"):
        read_module_map('{"A": ')


def test_classes_go_to_workers_by_name_and_files_by_their_whole_path() -> None:
    as_json = '{"A": "b.C"}'
    for given, text in ((None, ""), ("a.py", str(Path.cwd() / "a.py")), ({"A": "b.C"}, as_json), (as_json, as_json)):
        settings = engine_settings(PytorchEngineConfig(custom_module_map=given))
        assert settings["custom_module_map"] == text
    for wrong in ({"A": OfMine}, [OfMine]):
        with pytest.raises(ValueError, match="to a class's full name, got"):
            engine_settings(PytorchEngineConfig(custom_module_map=wrong))


def test_a_class_without_the_needed_methods_is_refused() -> None:
    with pytest.raises(
        ValueError, match="Unfinished, which runs A, has no prepare_inputs_for_generation, load_weights"
    ):
        model_class_for(config_of("A"), {"A": Unfinished})


# ---- configurations ----


def test_a_builder_of_the_users_reads_a_configuration_under_other_names(builders: None, copied: Path) -> None:
    change_config(copied, model_type="mine", architectures=["LlamaForCausalLM"], width=48)

    class MineModelConfigBuilder(AutoModelConfigBuilder):
        @classmethod
        def condition(cls, hf_config: Any) -> bool:
            return bool(hf_config.model_type == "mine")

        @classmethod
        def build(cls, hf_config: Any, model_path: str | None = None) -> ModelConfig:
            return ModelConfig(hf_config.width, 2, 4, 2, 1, 2, head_dim=12, vocab_size=1000)

    config = check_model(copied)
    assert (config.hidden_size, config.k_head_dim, config.v_head_dim) == (48, 12, 12)
    assert config.hf_config.width == 48


def test_a_builder_that_fails_is_named(builders: None, copied: Path) -> None:
    class BrokenModelConfigBuilder(AutoModelConfigBuilder):
        @classmethod
        def condition(cls, hf_config: Any) -> bool:
            return True

        @classmethod
        def build(cls, hf_config: Any, model_path: str | None = None) -> ModelConfig:
            return hf_config.no_such_field

    with pytest.raises(
        CheckpointError, match=r"BrokenModelConfigBuilder cannot read the configuration: .*no_such_field"
    ):
        check_model(copied)


def test_sizes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ModelConfig\.num_layers must be a whole number >= 1, got 0"):
        ModelConfig(32, 0, 4, 2, None, None, head_dim=8, vocab_size=10)
    with pytest.raises(ValueError, match="must be a multiple of num_key_value_heads, got 4 and 3"):
        ModelConfig(32, 2, 4, 3, None, None, head_dim=8, vocab_size=10)


def test_check_model_says_what_the_engine_would_work_with(llama: Path, copied: Path) -> None:
    config = check_model(llama)
    assert (config.num_layers, config.num_key_value_heads, config.head_dim, config.vocab_size) == (2, 2, 8, 1000)
    with pytest.raises(ValueError, match="dtype must be one of auto, float32"):
        check_model(llama, dtype="int3")
    change_config(copied, quantization_config={"quant_method": "hqq"})
    with pytest.raises(UnsupportedModelError, match="weights of method 'hqq' are not supported"):
        check_model(copied)
    change_config(copied, architectures=["Unheard"], model_type="unheard", quantization_config=None)
    with pytest.raises(UnsupportedModelError, match="has a class for Unheard; name one in custom_module_map"):
        check_model(copied)


# ---- checkpoints that do not fit ----


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"),
            r"model\.layers\.1\.self_attn\.qkv_proj\.weight is not in the checkpoint",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.extra.weight": torch.zeros(1)}),
            r"tensor model\.layers\.0\.extra\.weight would go to parameter",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}),
            r"model\.norm\.weight: the checkpoint has \[31\] where the model has \[32\]",
        ),
    ],
    ids=["missing", "unknown", "another shape"],
)
def test_a_tensor_that_does_not_fit_is_named(copied: Path, change: Callable[[Any], object], reason: str) -> None:
    tensors = load_file(copied / "model.safetensors")
    change(tensors)
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        PatchedModel(copied)


def test_weights_are_read_from_the_files_that_are_the_models(llama: Path, tmp_path: Path) -> None:
    expected, _ = PatchedModel(llama).forward(whole_step(PROMPTS[1]))
    tensors = load_file(llama / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, tmp_path / file)
    save_file({"tok_embeddings.weight": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert torch.equal(PatchedModel(tmp_path).forward(whole_step(PROMPTS[1]))[0], expected)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    assert torch.equal(PatchedModel(tmp_path).forward(whole_step(PROMPTS[1]))[0], expected)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is broken"):
        PatchedModel(tmp_path)


def test_a_checkpoint_that_is_no_safetensors_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is no safetensors file"):
        PatchedModel(copied)
    (copied / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors file"):
        PatchedModel(copied)


def test_a_model_that_fails_at_its_first_tokens_is_refused_with_its_words(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken_map.py"
    path.write_text(
        "from lmdeploy.pytorch.models.llama import LlamaForCausalLM\n"
        "class Broken(LlamaForCausalLM):\n"
        "    def forward(self, **_):\n"
        "        raise ZeroDivisionError('of my own')\n"
        "MODULE_MAP = {'LlamaForCausalLM': Broken}\n"
    )
    with pytest.raises(UnsupportedModelError, match="Broken fails: ZeroDivisionError: of my own"):
        PatchedModel(llama, custom_module_map=str(path))
