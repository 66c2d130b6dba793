"""A field declared once is what every other place says of it."""

import dataclasses
import re
from pathlib import Path

import ollama
import pytest
from anthropic.types.beta import message_create_params as anthropic_messages
from google.protobuf import text_format
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2

from lmdeploy.fields import field
from lmdeploy.fields.field import Kind, fields_of
from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.serve.request import FIELDS, GenerateRequest
from openai_gateway.endpoints.ollama.options import HONOURED_OPTIONS, OPTIONS_WITHOUT_EFFECT
from tools.fields.__main__ import HEADERS, stale, tracked
from tools.fields.http import PAGE_FIELDS, fates
from tools.fields.pbtxt import tensors

ROOT = Path(__file__).resolve().parents[2]
IN_HEADERS = {"betas", "user_profile_id", "workspace_id"}  # of Anthropic's requests
DOCUMENTED = {  # by the packages of each API, else by its reference
    "OpenAI: `POST /v1/chat/completions`": {*chat_create_params.CompletionCreateParamsBase.__annotations__, "stream"},
    "OpenAI: `POST /v1/completions`": {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"},
    "OpenAI: `POST /v1/responses`": {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream"},
    "OpenAI: `POST /v1/embeddings`": {*embedding_create_params.EmbeddingCreateParams.__annotations__},
    "Anthropic: `POST /v1/messages`": {*anthropic_messages.MessageCreateParamsBase.__annotations__, "stream"}
    - IN_HEADERS,
    "Ollama: `POST /api/chat`": {*ollama._types.ChatRequest.model_fields},
    "Ollama: `POST /api/generate`": {*ollama._types.GenerateRequest.model_fields},
    "Ollama: `POST /api/embed`": {*ollama._types.EmbedRequest.model_fields},
    "Ollama: `POST /api/embeddings`": {*ollama._types.EmbeddingsRequest.model_fields},
    "TEI: `POST /embed`": {"inputs", "truncate", "truncation_direction", "prompt_name", "normalize", "dimensions"},
    "TEI: `POST /embed_all`, `/embed_sparse`": {"inputs", "truncate", "truncation_direction", "prompt_name"},
    "TEI: `POST /predict`": {"inputs", "truncate", "truncation_direction", "raw_scores"},
    "Cohere and TEI: `POST /v1/rerank`, `/v2/rerank`, `/rerank`": {
        *("model", "query", "documents", "top_n", "max_tokens_per_doc", "priority"),  # Cohere's second version
        *("rank_fields", "return_documents", "max_chunks_per_doc"),  # and its first one
        *("texts", "raw_scores", "return_text", "truncate", "truncation_direction"),
    },
}
CONFIGS = (GenerationConfig, TurbomindEngineConfig, PytorchEngineConfig)


def test_what_is_made_from_the_tables_is_as_they_say() -> None:
    assert stale(tracked(), write=False) == []


@pytest.mark.parametrize("name", tracked())
def test_lines_that_are_missing_are_written_again(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    forms = ('"top_p"', "`top_p`", "`--top-p`", '"tp"')
    damaged = "".join(line for line in written.splitlines(keepends=True) if not any(form in line for form in forms))
    assert damaged != written
    assert tracked()[name](damaged) == written


@pytest.mark.parametrize("title", PAGE_FIELDS)
def test_every_documented_field_of_a_request_is_honoured_refused_or_said_to_have_no_effect(title: str) -> None:
    assert DOCUMENTED[title] - fates(PAGE_FIELDS[title]).keys() == set()


def test_every_option_of_ollama_is_honoured_or_said_to_have_no_effect() -> None:
    assert {*ollama.Options.model_fields} - {*HONOURED_OPTIONS, *OPTIONS_WITHOUT_EFFECT} == set()


@pytest.mark.parametrize("title", PAGE_FIELDS)
def test_refused_fields_are_named(title: str) -> None:
    model = PAGE_FIELDS[title]
    for name in model.not_implemented:
        with pytest.raises(ValidationError, match=f"{name} is not supported by this server"):
            model.model_validate({name: {"any": "value"}})


@pytest.mark.parametrize("model", ["turbomind", "ensemble", "ensemble_vision"])
def test_every_tensor_of_the_table_is_an_optional_input(model: str) -> None:
    config = model_config_pb2.ModelConfig()
    text_format.Parse((ROOT / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8"), config)
    inputs = {tensor.name: tensor for tensor in config.input}
    for info in FIELDS.values():
        for name, data_type, dimension in tensors(info):
            tensor = inputs[name]
            assert (model_config_pb2.DataType.Name(tensor.data_type), list(tensor.dims)) == (
                data_type,
                [int(dimension)],
            )
            assert tensor.optional


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_has_a_row_with_a_sentence(config: type) -> None:
    table = {info.name: info for info in fields_of(config)}
    assert list(table) == [field.name for field in dataclasses.fields(config)]
    for info in table.values():
        assert info.description.endswith("."), info.name
        assert info.description in (config.__doc__ or ""), info.name


def test_a_bound_is_the_last_value_allowed() -> None:
    for info in fields_of(GenerationConfig):
        if info.kind is Kind.NUMBER and info.high is not None:
            GenerationConfig(**{info.name: info.high})
            with pytest.raises(ValueError, match=rf"^{info.name} must be "):
                GenerationConfig(**{info.name: info.high * 1.01})


def test_a_setting_without_effect_says_so(caplog: pytest.LogCaptureFixture) -> None:
    TurbomindEngineConfig()
    assert not caplog.records
    TurbomindEngineConfig(cache_chunk_size=4)
    assert "cache_chunk_size has no effect: the cache is sized at start" in caplog.text


def test_a_request_refuses_a_field_that_is_in_no_table() -> None:
    with pytest.raises(ValueError, match="a request has no field temprature; there are n, "):
        GenerateRequest(text_input="a", temprature=0)


READERS = {
    TurbomindEngineConfig: (
        "backend_cpp/engine/load_engine.cc",
        "backend_cpp/engine/resolve.cc",
        "lmdeploy/turbomind/engine.py",
    ),
    GenerationConfig: ("backend_cpp/engine", "lmdeploy/turbomind/engine.py", "lmdeploy/offline"),
}


@pytest.mark.parametrize("config", READERS)
def test_code_reads_every_field_that_has_an_effect(config: type) -> None:
    paths = [ROOT / path_name for path_name in READERS[config]]
    files = [path for path_name in paths for path in (path_name.rglob("*.*") if path_name.is_dir() else [path_name])]
    written = {ROOT / name for name in HEADERS}
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in (".cc", ".h", ".py") and path not in written
    )
    unread = [
        info.name
        for info in fields_of(config)
        if not info.no_effect and not re.search(rf"(\.|->|_\.|\"|\b){info.name}\b", sources)
    ]
    assert unread == []


def test_a_row_says_its_range_in_words() -> None:
    @dataclasses.dataclass
    class Table:
        share: float = field.number(0.5, "A share.", above=0, high=1)
        count: int = field.integer(1, "A count.", low=1)
        kind: str = field.string("a", "A kind.", choices=("a", "b"))

    assert [info.range_text for info in fields_of(Table)] == ["in (0, 1]", ">= 1", "one of a, b"]
