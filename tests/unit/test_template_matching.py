"""Which template a model's name suggests, and which name of a template old Triton clients get."""

from pathlib import Path
from typing import Any

import pytest

from lmdeploy.model import MODELS, BaseChatTemplate, best_match_model, chat_template_for
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.older_clients import KNOWN_TO_ALL, older_client_template
from tests.support.published_templates import INDEX

USER = {"role": "user", "content": "Hi"}
# Hub names of released models; where LMDeploy's documents or tests name a template, it is theirs.
NAMES = {
    "internlm/internlm-chat-7b": "internlm",
    "internlm/internlm2-1_8b": "base",
    "internlm/internlm2-chat-20b": "internlm2",
    "internlm/internlm2_5-7b-chat": "internlm2",
    "internlm/internlm2-math-7b": "internlm2",
    "internlm/internlm3-8b-instruct": "internlm3",
    "internlm/internlm-xcomposer2-4khd-7b": "internlm-xcomposer2",
    "internlm/internlm-xcomposer2d5-7b": "internlm-xcomposer2d5",
    "OpenGVLab/InternVL-Chat-V1-1": "internvl-zh",
    "OpenGVLab/InternVL-Chat-V1-2-Plus": "internvl-zh-hermes2",
    "OpenGVLab/InternVL-Chat-V1-5": "internvl-internlm2",
    "OpenGVLab/Mini-InternVL-Chat-2B-V1-5": "internvl-internlm2",
    "OpenGVLab/Mini-InternVL-Chat-4B-V1-5": "internvl-phi3",
    "OpenGVLab/InternVL2-8B": "internvl2-internlm2",
    "OpenGVLab/InternVL2-4B": "internvl2-phi3",
    "OpenGVLab/InternVL2_5-8B": "internvl2_5",
    "OpenGVLab/Mono-InternVL-2B": "internvl2-internlm2",
    "AI4Chem/ChemVLM-8B": "internvl-internlm2",
    "Qwen/Qwen-7B-Chat": "qwen",
    "Qwen/Qwen1.5-14B-Chat": "qwen",
    "Qwen/Qwen2-57B-A14B-Instruct": "qwen",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2d5",
    "Qwen/Qwen3-8B": "qwen3",
    "codellama/CodeLlama-7b-hf": "codellama",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama",
    "meta-llama/Llama-2-7b-chat-hf": "llama2",
    "meta-llama/Llama-2-7b-hf": "base",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama3",
    "meta-llama/Meta-Llama-3-8B": "base",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama3_1",
    "meta-llama/Llama-3.2-1B-Instruct": "llama3_2",
    "meta-llama/Llama-3.2-11B-Vision-Instruct": "llama3_2",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3_1",
    "NousResearch/Hermes-2-Pro-Llama-3-8B": "base",
    "upstage/SOLAR-0-70b-16bit": "solar",
    "THUDM/chatglm2-6b": "chatglm",
    "THUDM/chatglm3-6b": "chatglm3",
    "THUDM/glm-4-9b-chat": "glm4",
    "THUDM/glm-4v-9b": "glm4",
    "THUDM/codegeex4-all-9b": "codegeex4",
    "THUDM/cogvlm-chat-hf": "cogvlm",
    "THUDM/cogvlm2-llama3-chat-19B": "cogvlm2",
    "01-ai/Yi-6B-200k": "yi",
    "01-ai/Yi-34B-Chat": "yi",
    "01-ai/Yi-VL-6B": "yi-vl",
    "lmsys/vicuna-13b-v1.5": "vicuna",
    "WizardLM/WizardLM-70B-V1.0": "wizardlm",
    "liuhaotian/llava-v1.5-7b": "llava-v1",
    "llava-hf/llava-1.5-7b-hf": "llava-v1",
    "liuhaotian/llava-v1.6-vicuna-7b": "llava-v1",
    "liuhaotian/llava-v1.6-mistral-7b": "mistral",
    "liuhaotian/llava-v1.6-34b": "llava-chatml",
    "YanweiLi/MGM-7B": "mini-gemini-vicuna",
    "deepseek-ai/deepseek-coder-6.7b-instruct": "deepseek-coder",
    "deepseek-ai/deepseek-vl-7b-chat": "deepseek-vl",
    "deepseek-ai/deepseek-moe-16b-chat": "deepseek",
    "deepseek-ai/deepseek-llm-67b-chat": "deepseek",
    "deepseek-ai/DeepSeek-V2-Lite-Chat": "deepseek",
    "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": "deepseek",
    "deepseek-ai/DeepSeek-V2.5": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "deepseek-v3",
    "mistralai/Mistral-7B-v0.1": "base",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-v3",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mistral-v3",
    "google/gemma-2-9b-it": "gemma",
    "microsoft/Phi-3-mini-128k-instruct": "phi-3",
    "microsoft/Phi-3.5-mini-instruct": "phi-3",
    "tiiuae/falcon-7b": "falcon",
    "databricks/dbrx-instruct": "dbrx",
    "baichuan-inc/Baichuan2-7B-Chat": "baichuan2",
    "baichuan-inc/Baichuan2-7B-Base": "base",
    "baichuan-inc/Baichuan-13B-Chat": "baichuan",
    "bigcode/starcoder2-7b": "starcoder2",
    "openbmb/MiniCPM3-4B": "minicpm3",
    "openbmb/MiniCPM-V-2_6": "minicpmv-2d6",
    "openbmb/MiniCPM-Llama3-V-2_5": "llama3",
    "openbmb/UltraCM-13b": "ultracm",
    "openbmb/UltraLM-13b": "ultralm",
    "allenai/Molmo-7B-D-0924": "molmo",
    "stepfun-ai/GOT-OCR-2.0-hf": "got-ocr2",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2",
    "HuggingFaceTB/SmolLM3-3B": "base",
    "facebook/opt-125m": "base",
    "workspace": "base",
}


def test_a_models_name_finds_its_template() -> None:
    for path, template in NAMES.items():
        owner, _, name = path.rpartition("/")
        cached = f"/hub/models--{owner or 'owner'}--{name}/snapshots/12ab"
        for there in (path, f"/models/{name}", f"{path}-w4", f"{name}-4bit", f"~/{name.upper()}/", cached):
            assert best_match_model(there) == template, there


def test_an_alias_is_another_name_of_a_builtin_template() -> None:
    for alias, name in MODELS.aliases.items():
        assert alias not in MODELS.names()
        assert alias in MODELS
        assert MODELS.get(alias) is MODELS.get(name)
        assert chat_template_for("", alias).render([USER]) == chat_template_for("", name).render([USER]), alias


@pytest.mark.parametrize(
    ("name", "template"),
    [("internlm2_5-7b-chat", "internlm2"), ("Qwen2-7B-Instruct", "qwen"), ("vicuna-13b", "vicuna"), ("opt", "base")],
)
def test_without_its_own_template_a_model_gets_the_one_its_name_suggests(
    default_model_dir: Path, tmp_path: Path, name: str, template: str
) -> None:
    directory = tmp_path / name
    directory.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (directory / file).symlink_to(default_model_dir / file)
    assert chat_template_for(str(directory)).render([USER]) == MODELS.get(template)().render([USER])


@pytest.fixture
def isolated_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODELS, "_factories", dict(MODELS._factories))


@pytest.mark.usefixtures("isolated_registry")
def test_a_registered_class_may_match_models_by_their_path() -> None:
    @MODELS.register_module(name="mine")
    class Mine(BaseChatTemplate):
        """Matches what is in a folder of mine."""

        @classmethod
        def match(cls, model_path: str) -> str | None:
            """Return the template's name if the model is mine."""
            return "mine" if "/mine/" in model_path else None

    assert best_match_model("/mine/Qwen2-7B-Instruct") == "mine"
    assert best_match_model("/yours/Qwen2-7B-Instruct") == "qwen"


@pytest.mark.usefixtures("isolated_registry")
def test_a_template_registered_under_an_alias_goes_before_it() -> None:
    @MODELS.register_module(name="qwen2")
    class Mine(BaseChatTemplate):
        """Writes what it is given."""

    assert isinstance(chat_template_for("", "qwen2"), Mine)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("qwen25", "did you mean .*qwen2d5"),
        ("InternLM2", "did you mean internlm2"),
        ("lama3.1", "did you mean .*llama3_1"),
        ("zzz", "lmdeploy list prints all"),
    ],
)
def test_an_unknown_name_is_answered_with_those_like_it(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"chat template {name!r} is unknown; {hint}"):
        chat_template_for("", name)


def test_lmdeploy_list_prints_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    from lmdeploy.cli.main import main

    assert main(["list"]) == 0
    printed: list[Any] = capsys.readouterr().out.split("\n")
    assert set(MODELS.names()) <= set(printed)
    assert {f"{alias} = {name}" for alias, name in MODELS.aliases.items()} <= set(printed)


def test_the_documentation_lists_every_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "chat-templates.md").read_text(encoding="utf-8")
    assert [name for name in [*MODELS.names(), *MODELS.aliases] if f"`{name}`" not in page] == []


# The names of every release 0.2.0 to 0.5.1, without `codellama`, for which they end a message otherwise.
IN_EVERY_RELEASE = {
    "base", "llama", "puyu", "solar", "baichuan-7b", "baichuan2-7b", "llama2", "llama-2", "llama-2-chat",
    "internlm-20b", "vicuna", "wizardlm", "ultralm", "ultracm", "internlm-chat", "internlm-chat-7b",
    "internlm-chat-7b-8k", "internlm-chat-20b", "internlm2-chat-7b", "internlm2-chat-20b", "internlm2-7b",
    "internlm2-20b", "qwen-7b", "qwen-14b", "yi", "yi-chat", "yi-34b", "yi-200k",
}  # fmt: skip


def test_only_names_that_every_release_knows_are_given() -> None:
    assert set(KNOWN_TO_ALL) <= IN_EVERY_RELEASE


@pytest.mark.parametrize("name", KNOWN_TO_ALL)
def test_a_model_of_a_known_family_gets_that_familys_template(name: str) -> None:
    chosen = MODELS.get(older_client_template(MODELS.get(name)()))
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "Y"}]
    assert chosen().render(turns) == MODELS.get(name)().render(turns)


@pytest.mark.parametrize(
    ("published", "names"),
    [
        ("qwen2d5", {"qwen-7b"}),
        ("chatml", {"yi", "qwen-7b", "internlm2-chat-7b"}),
        ("internlm2", {"internlm2-chat-7b", "yi"}),
        ("llama2", {"llama2"}),
        ("mistral", {"llama2"}),
    ],
)
def test_a_template_that_a_checkpoint_brings_along_is_compared_by_what_it_writes(
    published: str, names: set[str]
) -> None:
    source = INDEX[published]["template"]
    template = JinjaChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert older_client_template(template) in names


def test_a_template_that_writes_nothing_useful_still_gets_a_name() -> None:
    assert older_client_template(JinjaChatTemplate("{{ raise_exception('never') }}")) in KNOWN_TO_ALL
