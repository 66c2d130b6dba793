"""Options that several serving commands share."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lmdeploy.checks import parser_name
from lmdeploy.cli.key_options import add_key, add_keys
from lmdeploy.cli.parser import DeprecatedOption, RejectedOption
from lmdeploy.errors import nearest_of
from lmdeploy.extras import MissingExtraError
from lmdeploy.fields.field import FieldInfo, Kind, fields_of
from lmdeploy.logs import FORMATS
from lmdeploy.messages import MODEL_FORMATS, TurbomindEngineConfig
from lmdeploy.model_metadata.sampling_defaults import AUTO, NONE, sampling_defaults
from lmdeploy.pytorch.settings import WorkerSettings, require_valid_settings
from lmdeploy.serve.ports import DEFAULT_TRITON_HOST, Ports
from lmdeploy.templates import thinking, tool_call_formats
from lmdeploy.turbomind.supported import reject_unknown_device
from lmdeploy.units import duration
from openai_gateway.settings import (
    DEFAULT_BODY_SECONDS,
    DEFAULT_HEAD_SECONDS,
    DEFAULT_IDLE_SECONDS,
    DEFAULT_WRITE_SECONDS,
    Settings,
)

LOG_LEVELS = ("CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET")
DEFAULT_WEBUI_PORT = 6006
_TYPES = {Kind.INTEGER: int, Kind.NUMBER: float, Kind.STRING: str}
Value = TypeVar("Value")
NO_REMOTE_CODE = "has no effect: checkpoint code is never executed"
SETTINGS = {field.name: field for field in (*fields_of(TurbomindEngineConfig), *fields_of(WorkerSettings))}


def add_engine_options(parser: argparse.ArgumentParser, names: Iterable[str] = tuple(SETTINGS)) -> None:
    """Add the engine settings, from their table, and LMDeploy's options that choose an engine.

    ``names``: the settings wanted; default: all.
    """
    group = parser.add_argument_group("engine (docs/reference/settings.md)")
    for name in names:
        add_setting(group, SETTINGS[name])
    group.add_argument(
        "--backend", choices=("turbomind", "pytorch"), default="turbomind",
        help=('Inference engine; models that turbomind does not support run on pytorch (default: ' '%(default)s).'),
    )  # fmt: skip


def add_fields(parser: argparse.ArgumentParser | argparse._ArgumentGroup, table: type, *names: str) -> None:
    """Add options for fields of a table; where one is not given, the value is the field's default."""
    for field in fields_of(table):
        if field.name in names:
            add_setting(parser, field, field.default)


def add_numbers(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *rows: tuple[str, Callable[[str], float], Any, str, str]
) -> None:
    """Add options that take a number: flag, argparse type, default, name of the value, help text."""
    for flag, kind, default, metavar, text in rows:
        help_text = text if default is None else f"{text.removesuffix('.')} (default: %(default)s)."
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=help_text)


def add_setting(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, field: FieldInfo, default: Any = None
) -> None:
    """Add one setting; ``default``: its value where the option is not given, None where the table's default holds."""
    flag = f"--{field.name.replace('_', '-')}"
    help_text = field.description + (f" No effect: {field.no_effect}." if field.no_effect else "")
    if field.default is not None and field.kind is not Kind.BOOLEAN:
        help_text = f"{help_text.removesuffix('.')} (default: {field.default})."
    help_text = help_text.replace("%", "%%")
    if field.kind is Kind.BOOLEAN:
        action: Any = argparse.BooleanOptionalAction if field.default else "store_true"
        parser.add_argument(flag, action=action, default=default, help=help_text)
    elif field.name == "device":
        parser.add_argument(flag, type=device, metavar="{auto,cpu,cuda}", help=help_text)
    elif field.name == "model_format":
        parser.add_argument(
            flag, type=_model_format, metavar="FORMAT", help=f"{help_text} One of {field.range_text[7:]}."
        )
    elif field.kind is Kind.NAMES:
        parser.add_argument(
            flag,
            nargs="*",
            action=_Names,
            metavar="NAME=PATH",
            help=f"{help_text} A path without a name is named default.",
        )
    elif field.kind is Kind.JSON:
        kinds = "|".join((*field.choices, "JSON"))
        parser.add_argument(flag, type=partial(_json_object, words=field.choices), metavar=kinds, help=help_text)
    else:
        kind = _TYPES[field.kind]
        choices = [choice for choice in field.choices if choice is not None] or None
        metavar = None if choices else kind.__name__.upper()
        read = kind if choices else _valid(field)
        parser.add_argument(flag, type=read, choices=choices, metavar=metavar, default=default, help=help_text)


def _valid(field: FieldInfo) -> Callable[[str], Any]:
    """Return the argparse type of a field."""

    def read(text: str) -> Any:
        value = _TYPES[field.kind](text)
        if problem := replace(field, name="it").problem(value):
            raise argparse.ArgumentTypeError(problem)
        return value

    read.__name__ = _TYPES[field.kind].__name__  # for argparse's own error
    return read


class _Names(argparse.Action):
    """Paths by name; or one path alone, which is called ``default``."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Keep them as a dict."""
        names: dict[str, str] = {}
        for text in values:
            name, equals, path = text.partition("=")
            if not equals and len(values) == 1:
                name, path = "default", text
            if not name or not path:
                parser.error(f"{option}: expected NAME=PATH, or one path alone, got {text}")
            if name in names:
                parser.error(f"{option}: two are called {name}")
            names[name] = path
        setattr(namespace, self.dest, names or None)


def _json_object(text: str, words: Sequence[str]) -> dict[str, Any] | str:
    """Return a JSON object or one of some words; an argparse type."""
    if text in words:
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def argument(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return an argparse type that reports a function's errors in their own words."""

    def reported(text: str) -> Value:
        try:
            return read(text)
        except (ValueError, MissingExtraError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reported


@argument
def device(text: str) -> str:
    """Return a device there is; an argparse type."""
    try:
        reject_unknown_device("it", text)
    except ValueError as error:
        raise ValueError(f"{error}; see docs/internals/new-device.md") from None
    return text


@argument
def _model_format(text: str) -> str:
    """Return the layout of a checkpoint; an argparse type."""
    name = {"llama": "meta_llama"}.get(text, text)
    if name not in MODEL_FORMATS:
        formats = ", ".join(name for name in MODEL_FORMATS if name)
        raise ValueError(f"must be one of {formats}, got {text}")
    return name


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the model's name and chat template."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model-name", default="", help="Name of the model for clients (default: the name of the model's directory)."
    )
    group.add_argument(
        "--chat-template", default="", help="Name of a built-in chat template (see: lmdeploy list), or JSON file."
    )
    add_old_capability(group)
    group.add_argument(
        "--trust-remote-code", nargs=0, action=DeprecatedOption, word=NO_REMOTE_CODE, help=argparse.SUPPRESS
    )


def add_model_path(parser: argparse.ArgumentParser) -> None:
    """Add the model, of a command that loads it itself."""
    help_text = "Hugging Face directory or repository, GGUF file, or converted workspace (default: the default model)."
    parser.add_argument("model_path", nargs="?", default="", metavar="MODEL", help=help_text)


def add_old_capability(group: argparse._ArgumentGroup) -> None:
    """Add the removed option ``--cap``."""
    reason = "LMDeploy 0.6 removed it; write {} into the JSON file of --chat-template (docs/guides/chat-templates.md)"
    group.add_argument(
        "--cap", action=RejectedOption, neutral=("chat",), reason=reason.format("`capability`"), metavar="chat"
    )


def add_old_meta_instruction(parser: argparse.ArgumentParser) -> None:
    """Add the removed option ``--meta-instruction``."""
    reason = "LMDeploy 0.6 removed it; write `meta_instruction` into the JSON file of --chat-template"
    parser.add_argument("--meta-instruction", action=RejectedOption, reason=reason, metavar="TEXT")


def add_max_log_len(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--max-log-len``."""
    parser.add_argument(
        "--max-log-len",
        type=int,
        default=0,
        metavar="INT",
        help="Maximum number of prompt characters in the log (default: none).",
    )


def add_old_batch_size(parser: argparse.ArgumentParser, flag: str) -> None:
    """Add a deprecated name of ``--max-batch-size``."""
    word = "is deprecated; use --max-batch-size"
    parser.add_argument(
        flag, type=int, action=DeprecatedOption, becomes="max_batch_size", word=word, help=argparse.SUPPRESS
    )


def add_vision_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of vision-language models."""
    parser.add_argument(
        "--vision-max-batch-size",
        type=int,
        default=1,
        action=DeprecatedOption,
        word="has no effect: images are encoded one at a time, so that no response depends on other requests",
        metavar="INT",
    )


def engine_config(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the engine that were given: options, which win, and ``LMDEPLOY_ENGINE_CONFIG``.

    Raises `ValueError` if the variable holds something else than settings, or a value is out of range.
    """
    variable = "LMDEPLOY_ENGINE_CONFIG"
    try:
        from_environment = json.loads(os.environ.get(variable) or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"{variable} must hold JSON: {error}") from None
    if not isinstance(from_environment, dict):
        raise ValueError(f"{variable} must hold a JSON object, got {os.environ[variable]}")
    for name in from_environment.keys() - SETTINGS.keys():
        raise ValueError(f"{variable}: the engine has no setting {name}{nearest_of(name, SETTINGS)}")
    given = {name: getattr(args, name, None) for name in SETTINGS}
    config = from_environment | {name: value for name, value in given.items() if value is not None}
    require_valid_settings(config)
    return config


def given_options(actions: Iterable[argparse.Action], args: argparse.Namespace) -> dict[str, Any]:
    """Return those options that were given another value than their default, by name without hyphens in front."""
    given: dict[str, Any] = {}
    for action in actions:
        flag = next((name for name in action.option_strings if name.startswith("--")), None)
        value = getattr(args, action.dest, None)
        if flag is not None and value != action.default:
            given[flag.removeprefix("--")] = value
    return given


def add_triton_options(parser: argparse.ArgumentParser) -> None:
    """Add address and ports of tritonserver."""
    group = parser.add_argument_group("tritonserver")
    group.add_argument(
        "--triton-server-name",
        default=DEFAULT_TRITON_HOST,
        help="Address that tritonserver listens on (default: %(default)s, this machine only).",
    )
    group.add_argument(
        "--idle-timeout",
        type=argument(partial(duration, "it")),
        metavar="DURATION",
        help="Time after its last request, such as 300 or 5m, after which a model leaves memory; the next request "
        "loads it again (default: it stays).",
    )
    # Servers that torchrun starts on one machine must not want the same ports.
    offset = 10 * int(os.environ.get("LOCAL_RANK", "0"))
    for name, default in asdict(Ports()).items():
        group.add_argument(
            f"--triton-{name}-port",
            type=port,
            default=default + offset,
            metavar="PORT",
            help=f"tritonserver's {name} port (default: %(default)s).",
        )


def add_server_options(parser: argparse.ArgumentParser, default_port: int) -> None:
    """Add address, port and logging of the command's own server."""
    parser.add_argument("--server-name", default="0.0.0.0", help="Address to listen on (default: %(default)s).")
    parser.add_argument(
        "--server-port",
        type=port,
        default=default_port,
        metavar="PORT",
        help="Port to listen on (default: %(default)s).",
    )
    parser.add_argument("--log-level", default="ERROR", choices=LOG_LEVELS, help="Log level (default: %(default)s).")
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default=FORMATS[0],
        help="Log format; json: one object per line (default: %(default)s).",
    )


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the HTTP server, which ``lmdeploy.cli.gateway_settings`` reads."""
    group = parser.add_argument_group("HTTP server")
    group.add_argument(
        "--workers", type=positive, default=1, metavar="INT", help="Number of gateway processes (default: %(default)s)."
    )
    add_fields(group, Settings, "proxy_url")
    add_key(group, "proxy-key", "One of that proxy's --admin-keys")
    add_key(
        group,
        "node-key",
        "A proxy's --node-key: an API key with which the proxy says whose requests they are, so that its callers share "
        "no responses, sessions and quotas",
    )
    group.add_argument(
        "--qos-config-path", default="", metavar="FILE", help="JSON file with users, priorities and quotas."
    )
    add_fields(group, Settings, "max_requests", "max_logprobs", "max_body_bytes", "max_bodies_bytes", "max_pull_bytes")
    add_fields(group, Settings, "cache_salt_by_key", "drain_seconds", "disable_fastapi_docs")
    add_max_log_len(group)
    add_output_parsers(group)
    add_generation_config(group)
    add_keys(
        group,
        "admin-keys",
        "API keys of administrators, who may load and unload LoRA adapters and models, and pull models",
    )
    group.add_argument(
        "--trace-endpoint",
        type=trace_endpoint,
        metavar="URL",
        help="Export request spans to http://HOST:4318 (OTLP) or file:PATH.",
    )
    group.add_argument(
        "--allow-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help=(
            "Origins of web pages that may call the API from a browser (CORS), as http://HOST:PORT; * "
            "for any (default: none)."
        ),
    )
    for name in ("methods", "headers"):
        group.add_argument(
            f"--allow-{name}",
            nargs="+",
            default=["*"],
            metavar="TEXT",
            help=f"{name.capitalize()} that those pages may use (default: any).",
        )
    add_fields(group, Settings, "allow_credentials")
    add_media_options(group)
    add_files_options(parser)
    parser.add_argument(
        "--responses-store",
        default="",
        metavar="DIR",
        help=(
            "Directory in which /v1/responses stores responses, across restarts and for all workers "
            "(default: in the memory of each worker)."
        ),
    )
    add_security_options(parser)


def add_output_parsers(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the reasoning and tool-call parsers."""
    parser.add_argument(
        "--reasoning-parser",
        type=_name_among(thinking.PARSERS),
        choices=thinking.PARSERS,
        default="auto",
        help=(
            "Format of the model's reasoning, which chat responses return as reasoning_content; auto: "
            "detected from the chat template (default: %(default)s)."
        ),
    )
    parser.add_argument(
        "--tool-call-parser",
        type=_name_among(tool_call_formats.PARSERS),
        choices=tool_call_formats.PARSERS,
        default="auto",
        help=(
            "Format of the model's tool calls; auto: any of these, detected by delimiters; none: calls "
            "stay text (default: %(default)s)."
        ),
    )
    parser.add_argument(
        "--tool-call-recovery",
        choices=("on", "off"),
        default="on",
        help=(
            "on: tool calls are also read that are not quite in the model's format, where function and arguments are "
            "beyond doubt; off: they stay text (default: %(default)s)."
        ),
    )


def add_generation_config(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add where the sampling parameters of requests that do not set them come from."""
    parser.add_argument(
        "--generation-config",
        type=_generation_config,
        default=AUTO,
        metavar="{auto,none,DIR}",
        help=(
            "Sampling defaults; auto: the checkpoint's generation_config.json; none: the server's "
            "defaults; or a directory with such a file (default: %(default)s)."
        ),
    )


@argument
def _generation_config(text: str) -> str:
    """Return a source of sampling defaults that can be used; an argparse type."""
    sampling_defaults(text, None)
    return text if text in (AUTO, NONE) else str(Path(text).expanduser().resolve())


def add_media_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the allowed sources of images."""
    parser.add_argument(
        "--allowed-media-domains",
        nargs="+",
        metavar="HOST",
        help="Hosts from which image URLs may be fetched; * for any (default: none; data URLs are always accepted).",
    )
    parser.add_argument(
        "--allowed-local-media-path",
        default="",
        metavar="DIR",
        help="Directory whose files requests may use as images.",
    )
    add_fields(parser, Settings, "media_in_tool_results")


def add_files_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of files and batches."""
    group = parser.add_argument_group("files and batches (docs/guides/batches.md)")
    group.add_argument(
        "--files-dir",
        default="",
        metavar="DIR",
        help="Directory for uploaded files and batches, kept across restarts (default: disabled).",
    )
    add_fields(group, Settings, "max_file_bytes", "max_key_bytes", "max_key_files", "batch_rows")


def add_security_options(parser: argparse.ArgumentParser) -> None:
    """Add API keys, TLS and client timeouts."""
    group = parser.add_argument_group("security")
    add_api_keys(group)
    group.add_argument(
        "--ssl",
        action="store_true",
        help="Serve HTTPS with the files named by the environment variables SSL_KEYFILE and SSL_CERTFILE.",
    )
    group = parser.add_argument_group("client timeouts")
    add_numbers(
        group,
        ("--head-timeout", above_0, DEFAULT_HEAD_SECONDS, "SECONDS", "Time from connecting to the end of the headers."),
        ("--body-timeout", above_0, DEFAULT_BODY_SECONDS, "SECONDS", "Time from there to the end of the body."),
        ("--write-timeout", above_0, DEFAULT_WRITE_SECONDS, "SECONDS", "Time for a client to read buffered data."),
        ("--keep-alive-timeout", above_0, DEFAULT_IDLE_SECONDS, "SECONDS", "Time of a connection without a request."),
    )


def add_api_keys(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add ``--api-keys``."""
    add_keys(parser, "api-keys", "API keys; clients must send one of them")


@argument
def trace_endpoint(text: str) -> str:
    """Return where spans go; an argparse type."""
    from openai_gateway.tracing.endpoints import checked_endpoint

    return checked_endpoint(text)


def above_0(text: str) -> float:
    """Return a number above 0; an argparse type."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def _name_among(choices: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for names in `choices`, with words joined by any separator; ``choices`` rejects others."""

    def read(text: str) -> str:
        try:
            return parser_name("it", text, choices)
        except ValueError:
            return text

    return read


def positive(text: str) -> int:
    """Return a number above 0; an argparse type."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def port(text: str) -> int:
    """Return a TCP port number; an argparse type."""
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"a port must be in 1..65535, got {number}")
    return number
