"""Settings of one gateway, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 23333
DEFAULT_TRITON_ADDRESS = "localhost:8001"
DEFAULT_MAX_REQUESTS = 1024
DEFAULT_MAX_LOGPROBS = 131_072
DEFAULT_BODIES_BYTES = 256 * 1024 * 1024
DEFAULT_DRAIN_SECONDS = 30.0
DEFAULT_HEARTBEAT_SECONDS = 30.0
DEFAULT_HEAD_SECONDS = 30.0
DEFAULT_BODY_SECONDS = 60.0
DEFAULT_WRITE_SECONDS = 60.0
DEFAULT_FILE_BYTES = 200 * 1024 * 1024  # as OpenAI's batches take
DEFAULT_KEY_BYTES = 1024 * 1024 * 1024
DEFAULT_KEY_FILES = 1000
DEFAULT_BATCH_ROWS = 16
DEFAULT_PULL_BYTES = 200 * 10**9
DEFAULT_IDLE_SECONDS = 75.0  # longer than clients keep a connection: who closes first must not be us


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a gateway."""

    triton_address: str = DEFAULT_TRITON_ADDRESS  # ``host:port`` of Triton's gRPC service
    triton_metrics_url: str | None = None  # where Triton's own metrics are; they are passed through by ``/metrics``
    model_name: str | None = None  # the id clients use; None: the name the engine reports
    engine_dir: Path | None = None  # the engine directory, for its table of token texts; None: texts are asked for
    chat_template: str = ""  # the model's, as asked for; empty: its own
    # The folder of a server with several models (`lmdeploy.serve.multi_model.registry`); it takes the place of
    # `model_name`, `engine_dir` and `chat_template`
    models_dir: Path | None = None
    repository_key: str = ""  # what such a server's model repository is opened with (`TritonServer.repository_key`)
    max_body_bytes: int = 8 * 1024 * 1024  # a longer request body is refused with 413
    # Of all long request bodies at a time, and half of it of one API key; those beyond wait, then are refused with 503
    max_bodies_bytes: int = DEFAULT_BODIES_BYTES
    max_requests: int = DEFAULT_MAX_REQUESTS  # requests beyond this many at a time are refused with 429
    # Log probabilities of a response that is collected: ``n * max_tokens * (top_logprobs + 1)``
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    api_keys: tuple[str, ...] = ()  # one of them is needed to use ``/v1``; empty: none is
    node_key: str | None = None  # the one of `api_keys` that a proxy shows, and then says whose requests they are
    admin_keys: tuple[str, ...] = ()  # one of them is needed to load and unload models and adapters; empty: nobody may
    control_key: str = ""  # what the engine lets adapters be listed and loaded with (`TritonServer.control_key`)
    salts_by_key: bool = False  # callers with different API keys share no cached prompts
    qos_config_path: Path | None = None  # users, priorities and quotas (`openai_gateway.qos`)
    # Which web pages may call from a browser, and how; no origins: none may, and there are no CORS headers
    allow_origins: tuple[str, ...] = ()
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False  # whether browsers may send cookies
    disable_docs: bool = False  # do not serve ``/`` and ``/openapi.json``
    max_log_len: int = 0  # characters of a prompt that may be logged
    proxy_url: str | None = None  # a ``lmdeploy serve proxy`` to register at, as `public_url`
    proxy_key: str | None = None  # one of the proxy's ``--admin-keys``
    public_url: str = ""  # where the proxy reaches this server
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS  # between two registrations
    drain_seconds: float = DEFAULT_DRAIN_SECONDS  # what open requests get when the server is asked to stop
    # Names of hosts that images are fetched from, ``*`` for any; None: clients bring their images along
    allowed_media_hosts: tuple[str, ...] | None = None
    allowed_media_folder: Path | None = None  # images may be named by files in it
    # Handling of media in tool results that a model cannot read (`openai_gateway.media`): a ``placeholder``, or
    # ``refuse``
    media_in_tool_results: str = "placeholder"
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
    # Of a file; of all files and results of an API key; files, and batches, of an API key
    max_file_bytes: int = DEFAULT_FILE_BYTES
    max_key_bytes: int = DEFAULT_KEY_BYTES
    max_key_files: int = DEFAULT_KEY_FILES
    batch_rows: int = DEFAULT_BATCH_ROWS  # requests of batches that are asked at a time, while no client asks
    max_pull_bytes: int = DEFAULT_PULL_BYTES  # of all models in the cache that were pulled, after ``/api/pull``
