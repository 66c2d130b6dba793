"""Settings of one gateway, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.fields import field

DEFAULT_PORT = 23333
DEFAULT_TRITON_ADDRESS = "localhost:8001"
DEFAULT_HEARTBEAT_SECONDS = 30.0
DEFAULT_HEAD_SECONDS = 30.0
DEFAULT_BODY_SECONDS = 60.0
DEFAULT_WRITE_SECONDS = 60.0
DEFAULT_IDLE_SECONDS = 75.0  # longer than clients keep a connection: who closes first must not be us
_COUNT: dict[str, Any] = {"low": 1, "high": 2**63 - 1}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a gateway; those declared as fields are options of its commands."""

    triton_address: str = DEFAULT_TRITON_ADDRESS  # ``host:port`` of Triton's gRPC service
    triton_metrics_url: str | None = None  # where Triton's own metrics are; they are passed through by ``/metrics``
    model_name: str | None = None  # the id clients use; None: the name the engine reports
    engine_dir: Path | None = None  # the engine directory, for its table of token texts; None: texts are asked for
    chat_template: str = ""  # the model's, as asked for; empty: its own
    # The folder of a server with several models (`lmdeploy.serve.multi_model.registry`); it takes the place of
    # `model_name`, `engine_dir` and `chat_template`
    models_dir: Path | None = None
    repository_key: str = ""  # what such a server's model repository is opened with (`TritonServer.repository_key`)
    max_requests: int = field.integer(
        1024, "Maximum number of concurrent requests per process; further ones get status 429.", **_COUNT
    )
    max_logprobs: int = field.integer(
        131_072,
        "Maximum number of log probabilities of a response that is not streamed, n * max_tokens * (top_logprobs + 1); "
        "without max_tokens, the response ends there.",
        **_COUNT,
    )
    max_body_bytes: int = field.integer(
        8 << 20, "Maximum size of a request body; a longer one gets status 413.", **_COUNT
    )
    max_bodies_bytes: int = field.integer(
        256 << 20,
        "Maximum size of all request bodies over 128 KiB that are open at a time, per process, and half of it for one "
        "API key; further ones wait for 30 s, then get status 503.",
        **_COUNT,
    )
    api_keys: tuple[str, ...] = ()  # one of them is needed to use ``/v1``; empty: none is
    node_key: str | None = None  # the one of `api_keys` that a proxy shows, and then says whose requests they are
    admin_keys: tuple[str, ...] = ()  # one of them is needed to load and unload models and adapters; empty: nobody may
    control_key: str = ""  # what the engine lets adapters be listed and loaded with (`TritonServer.control_key`)
    cache_salt_by_key: bool = field.boolean(
        False, "Do not share cached prefixes across API keys, so that no caller can find out what others have sent."
    )
    qos_config_path: Path | None = None  # users, priorities and quotas (`openai_gateway.qos`)
    # Which web pages may call from a browser, and how; no origins: none may, and there are no CORS headers
    allow_origins: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = field.boolean(False, "Allow those pages to send cookies.")
    disable_fastapi_docs: bool = field.boolean(False, "Disable the API documentation at / and /openapi.json.")
    max_log_len: int = 0  # characters of a prompt that may be logged
    proxy_url: str | None = field.string(None, "URL of a `lmdeploy serve proxy` to register at.")  # as `public_url`
    proxy_key: str | None = None  # one of the proxy's ``--admin-keys``
    public_url: str = ""  # where the proxy reaches this server
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS  # between two registrations
    drain_seconds: float = field.number(30.0, "Time for running requests to finish at shutdown.")
    # Names of hosts that images are fetched from, ``*`` for any; None: clients bring their images along
    allowed_media_hosts: tuple[str, ...] | None = None
    allowed_media_folder: Path | None = None  # images may be named by files in it
    media_in_tool_results: str = field.string(
        "placeholder",
        "Images and documents in tool results that the model cannot read: placeholder puts a text in their place; "
        "refuse answers with status 400.",
        choices=("placeholder", "refuse"),
    )
    trace_endpoint: str = ""  # where spans of requests go (`openai_gateway.tracing`); empty: there are none
    reasoning_parser: str = "auto"  # how the model marks its reasoning (`lmdeploy.templates.thinking.PARSERS`)
    # How calls are written in responses (`lmdeploy.templates.tool_call_formats.PARSERS`)
    tool_call_parser: str = "auto"
    # Calls are also read that are not quite as their format has them (`openai_gateway.tools.near_misses`)
    tool_call_recovery: bool = True
    # Where sampling defaults come from (`lmdeploy.model_metadata.sampling_defaults`): ``auto``, ``none`` or a folder
    generation_config: str = "auto"
    ledger: Path | None = None  # a file for the requests that are open in the engine (`openai_gateway.process.ledger`)
    files_dir: Path | None = None  # where files and batches are kept (`openai_gateway.batches`); None: there are none
    # Where responses are kept that can be continued (`openai_gateway.stored_responses`); None: in memory
    responses_store: Path | None = None
    max_file_bytes: int = field.integer(200 << 20, "Maximum size of a file.", **_COUNT)  # as OpenAI's batches take
    max_key_bytes: int = field.integer(1 << 30, "Maximum total size of the files and results of an API key.", **_COUNT)
    max_key_files: int = field.integer(1000, "Maximum number of files, and of batches, per API key.", **_COUNT)
    batch_rows: int = field.integer(
        16, "Maximum number of concurrent batch requests while no interactive request waits.", **_COUNT
    )
    max_pull_bytes: int = field.integer(
        200 * 10**9, "Maximum total size of the models that /api/pull downloads.", **_COUNT
    )
