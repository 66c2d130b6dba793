"""What the examples of documents run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_gateway.proxy.settings import ProxySettings
from tests.e2e.conftest import gateway, triton_server
from tests.support.proxies import running_proxy
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_vision_models import make_tiny_llava

__all__ = ["folder", "gateway", "proxy", "triton_server"]

MODEL = "SmolLM2-135M-Instruct"
SEEING_MODEL = "llava-hf/llava-1.5-7b-hf"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models under the names that the guides use; commands run in it find them."""
    made = tmp_path_factory.mktemp("guides")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    make_tiny_llama(made / MODEL, max_position_embeddings=2048, **sizes)
    (made / SEEING_MODEL).parent.mkdir()
    make_tiny_llava(made / SEEING_MODEL)
    return made


@pytest.fixture
def proxy() -> Iterator[str]:
    """URL of a proxy that knows no server yet."""
    with running_proxy(ProxySettings()) as url:
        yield url
