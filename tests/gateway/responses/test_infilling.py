"""``suffix``: models that fill in are asked in their own form."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lmdeploy.model import MODELS
from lmdeploy.templates.infilling import infilling_of
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, token_ids
from tests.support.gateways import openai_client, running_gateway
from tests.support.tiny_models import TOKENIZER_FILES

FIM_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
WHOLE = "<|fim_prefix|>def f({x}):<|fim_suffix|>    return y{0}<|fim_middle|>"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Iterator[tuple[FakeTriton, str]]:
    """A gateway in front of a model with the marks of Qwen2.5-Coder in its vocabulary."""
    directory = tmp_path_factory.mktemp("coder")
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes((default_model_dir / name).read_bytes())
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": 49152 + i, "content": content, **kind} for i, content in enumerate(FIM_TOKENS)]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "config.json").write_bytes((default_model_dir / "config.json").read_bytes())
    with FakeTriton(MODEL) as fake, running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        yield fake, url


def test_a_prompt_with_a_suffix_is_written_with_the_models_marks(coder: tuple[FakeTriton, str]) -> None:
    fake, url = coder
    fake.reset()
    request = {"model": MODEL, "prompt": "def f({x}):", "suffix": "    return y{0}"}
    with openai_client(url) as client:
        response = client.completions.create(**request, stop=["\n\n"])
    assert response.choices[0].text == "The capital of France is Paris."
    inputs = fake.requests[0].inputs
    assert (inputs["text_input"], inputs["stop_words"]) == (WHOLE, ["\n\n"])
    (rendered,) = httpx.post(f"{url}/v1/completions/render", json=request, trust_env=False).json()
    assert rendered["token_ids"] == token_ids(WHOLE)
    for wrong in ({"prompt": [1, 2]}, {"echo": True}):
        rejected = httpx.post(f"{url}/v1/completions", json=request | wrong, trust_env=False)
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "suffix")


def test_others_refuse_a_suffix_that_says_something(http: httpx.Client) -> None:
    rejected = http.post("/v1/completions", json={"model": MODEL, "prompt": "a", "suffix": "b"})
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "suffix")
    for nothing in ("", None):
        assert http.post("/v1/completions", json={"model": MODEL, "prompt": "a", "suffix": nothing}).status_code == 200


def test_a_template_says_how_before_the_vocabulary_does() -> None:
    codellama = infilling_of(MODELS.get("codellama")(), FIM_TOKENS)
    assert codellama.prompt("a", "b") == "<PRE> a <SUF>b <MID>"
    assert codellama.stop_words == ("<EOT>",)
    base = MODELS.get("base")()
    assert infilling_of(base, FIM_TOKENS[:2]) is None
    codestral = infilling_of(base, ("[PREFIX]", "[SUFFIX]"))
    assert codestral.prompt("{prefix}", "b") == "[SUFFIX]b[PREFIX]{prefix}"
