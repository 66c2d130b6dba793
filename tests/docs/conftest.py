"""What the examples of documents run on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_gateway.proxy.settings import ProxySettings
from tests.docs.blocks import ROOT, blocks
from tests.e2e.conftest import gateway, triton_server
from tests.support.adapters import make_adapter
from tests.support.gguf_files import write_gguf
from tests.support.proxies import running_proxy
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_vision_models import make_tiny_llava

__all__ = ["folder", "gateway", "proxy", "triton_server"]

MODEL = "SmolLM2-135M-Instruct"
SEEING_MODEL = "llava-hf/llava-1.5-7b-hf"
OTHER_NAMES = ("internlm/internlm2_5-7b-chat", "codellama/CodeLlama-7b-hf", "base-model")
ADAPTERS = ("adapters/sql", "adapters/law", "owner/poetry-lora")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models under the names that the documents use; what is run in it finds them."""
    made = tmp_path_factory.mktemp("guides")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    tiny = make_tiny_llama(made / MODEL, max_position_embeddings=2048, **sizes)
    for name in OTHER_NAMES:
        shutil.copytree(tiny, made / name)
    for name in ("checkpoint", "llama", "olmo2"):
        shutil.copytree(tiny, made / "path" / "to" / name)
    for name in ADAPTERS:
        make_adapter(made / name, tiny)
    write_gguf(tiny, made / "some-model.Q4_K_M.gguf", "llama")
    (template,) = blocks(ROOT / "docs" / "guides" / "chat-templates.md", "json")
    (made / "mine.json").write_text(template, encoding="utf-8")
    talk = {"conversations": [{"from": "human", "value": "What is a lake?"}, {"from": "gpt", "value": "Water."}]}
    (made / "ShareGPT.json").write_text(json.dumps([talk] * 100), encoding="utf-8")
    (made / SEEING_MODEL).parent.mkdir()
    make_tiny_llava(made / SEEING_MODEL)
    return made


@pytest.fixture
def proxy() -> Iterator[str]:
    """URL of a proxy that knows no server yet."""
    with running_proxy(ProxySettings()) as url:
        yield url
