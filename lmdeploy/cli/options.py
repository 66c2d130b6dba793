"""Options that several serving commands share."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import Any

from lmdeploy.serve.ports import DEFAULT_TRITON_HOST, Ports
from openai_gateway.settings import (
    DEFAULT_BODY_SECONDS,
    DEFAULT_DRAIN_SECONDS,
    DEFAULT_HEAD_SECONDS,
    DEFAULT_MAX_REQUESTS,
    DEFAULT_WRITE_SECONDS,
)

MODEL_FORMATS = ("hf", "awq", "gptq", "fp8", "fbgemm_fp8", "compressed-tensors", "smooth_quant")
DEVICES = ("auto", "cpu", "cuda")
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
DEFAULT_WEBUI_PORT = 6006

TP_HELP = "devices one model is spread over"

# option -> type and help; an option that is not given leaves the default to TurbomindEngineConfig
_ENGINE_OPTIONS: dict[str, tuple[type, str]] = {
    "tp": (int, TP_HELP),
    "session_len": (int, "most tokens of a conversation, prompt and answer (default: what the model was made for)"),
    "max_batch_size": (int, "most sequences computed at a time"),
    "cache_max_entry_count": (float, "part of the free memory given to the KV cache, between 0 and 1"),
    "cache_block_seq_len": (int, "tokens in a block of the KV cache"),
    "rope_scaling_factor": (
        float,
        "factor of dynamic NTK beyond the trained length (default: as the model says)",
    ),
    "max_prefill_token_num": (int, "most prompt tokens computed in one step"),
}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what the engine can be told."""
    group = parser.add_argument_group("engine")
    for name, (kind, help_text) in _ENGINE_OPTIONS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=kind.__name__.upper(), help=help_text)
    group.add_argument("--backend", choices=("turbomind",), default="turbomind", help="default: %(default)s")
    group.add_argument("--dtype", choices=("auto", "float32", "float16", "bfloat16"), help="of the weights in memory")
    add_model_format(group)
    add_device(group)
    group.add_argument(
        "--weight-bits",
        type=int,
        choices=(4, 8),
        help="round the weights to so many bits while loading: faster, less exact",
    )
    group.add_argument(
        "--model-name",
        default="",
        help="name clients use; the Triton clients of LMDeploy up to 0.5.1 take it for the name of a chat template "
        "(default: the model directory's)",
    )
    group.add_argument("--chat-template", default="", help="a built-in template (see: lmdeploy list) or a JSON file")


def add_model_format(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add how the checkpoint's weights are stored."""
    parser.add_argument("--model-format", choices=MODEL_FORMATS, help="how the weights are stored (default: found out)")


def add_tp(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add how many devices the model runs on."""
    parser.add_argument("--tp", type=int, default=1, metavar="INT", help=f"{TP_HELP} (default: %(default)s)")


def add_device(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add what the model runs on."""
    parser.add_argument("--device", choices=DEVICES, help="default: a GPU if this build can use one, else the CPU")


def engine_config(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of ``TurbomindEngineConfig`` that were given."""
    given = {name: getattr(args, name) for name in (*_ENGINE_OPTIONS, "dtype", "model_format", "device", "weight_bits")}
    return {name: value for name, value in given.items() if value is not None}


def add_triton_options(parser: argparse.ArgumentParser) -> None:
    """Add where the tritonserver we start listens."""
    group = parser.add_argument_group("tritonserver")
    group.add_argument(
        "--triton-server-name",
        default=DEFAULT_TRITON_HOST,
        help="address it listens on (default: %(default)s, this machine only)",
    )
    # Servers that torchrun starts on one machine must not want the same ports.
    offset = 10 * int(os.environ.get("LOCAL_RANK", "0"))
    for name, default in asdict(Ports()).items():
        group.add_argument(
            f"--triton-{name}-port", type=port, default=default + offset, metavar="PORT", help="default: %(default)s"
        )


def add_server_options(parser: argparse.ArgumentParser, default_port: int) -> None:
    """Add where the command's own server listens, and how much it says."""
    parser.add_argument("--server-name", default="0.0.0.0", help="address to listen on (default: %(default)s)")
    parser.add_argument("--server-port", type=port, default=default_port, metavar="PORT", help="default: %(default)s")
    parser.add_argument("--log-level", default="WARNING", choices=LOG_LEVELS, help="default: %(default)s")


def add_gateway_options(parser: argparse.ArgumentParser) -> None:
    """Add what the HTTP server can be told (``lmdeploy.cli.gateway_settings`` reads it)."""
    group = parser.add_argument_group("HTTP server")
    group.add_argument("--workers", type=positive, default=1, metavar="INT", help="processes (default: %(default)s)")
    group.add_argument("--proxy-url", help="of a `lmdeploy serve proxy` to register at")
    group.add_argument("--proxy-key", metavar="KEY", help="one of that proxy's --admin-keys")
    group.add_argument("--qos-config-path", default="", metavar="FILE", help="users, priorities and quotas (JSON)")
    group.add_argument(
        "--max-requests",
        type=positive,
        default=DEFAULT_MAX_REQUESTS,
        metavar="INT",
        help="requests at a time in a process, more are refused with 429 (default: %(default)s)",
    )
    group.add_argument("--max-body-bytes", type=positive, metavar="INT", help="longest request body (default: 8 MiB)")
    group.add_argument(
        "--max-log-len", type=int, default=0, metavar="INT", help="characters of prompts in the log (default: none)"
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        default=DEFAULT_DRAIN_SECONDS,
        metavar="FLOAT",
        help="what open requests get when the server is asked to stop (default: %(default)s)",
    )
    group.add_argument("--disable-fastapi-docs", action="store_true", help="no documentation at / and /openapi.json")
    everything = {"origins": "may call", "methods": "are allowed", "headers": "are allowed"}
    for name, what in everything.items():
        group.add_argument(
            f"--allow-{name}",
            nargs="+",
            default=["*"],
            metavar="TEXT",
            help=f"{name} that {what}, for CORS (default: *)",
        )
    group.add_argument("--allow-credentials", action="store_true", help="allow credentials, for CORS")
    add_security_options(parser)


def add_security_options(parser: argparse.ArgumentParser) -> None:
    """Add who may call, and how."""
    group = parser.add_argument_group("security")
    add_api_keys(group)
    group.add_argument(
        "--ssl", action="store_true", help="serve HTTPS; SSL_KEYFILE and SSL_CERTFILE in the environment name the files"
    )
    add_patience_options(parser)


def add_api_keys(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the keys of those who may call."""
    parser.add_argument("--api-keys", nargs="*", default=[], metavar="KEY", help="keys, one of which is needed")


def add_patience_options(parser: argparse.ArgumentParser) -> None:
    """Add how long clients may take."""
    group = parser.add_argument_group("slow clients")
    for name, default, what in (
        ("head", DEFAULT_HEAD_SECONDS, "from connecting to the end of a request's head"),
        ("body", DEFAULT_BODY_SECONDS, "from there to the end of its body"),
        ("write", DEFAULT_WRITE_SECONDS, "to take what waits for it of an answer, before it is cut off"),
    ):
        group.add_argument(
            f"--{name}-timeout",
            type=seconds,
            default=default,
            metavar="SECONDS",
            help=f"what a client gets {what} (default: %(default)s)",
        )


def seconds(text: str) -> float:
    """Return a time above 0; an argparse type."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


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
