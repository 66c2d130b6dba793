"""Old Triton clients get the name of a template that all of them know and that writes what the model reads."""

import pytest

from lmdeploy.model import MODELS
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.older_clients import KNOWN_TO_ALL, older_client_template
from tests.support.published_templates import INDEX

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
