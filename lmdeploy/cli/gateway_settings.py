"""Gateway settings from the options of the HTTP server."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from lmdeploy.fields.field import fields_of
from lmdeploy.serve.ports import reachable_host
from openai_gateway.process.connection import ClientTimeouts
from openai_gateway.process.server import Listening
from openai_gateway.process.tls import tls_files
from openai_gateway.qos import Qos
from openai_gateway.settings import Settings


def gateway_settings(args: argparse.Namespace, base: Settings) -> Settings:
    """Return `base` with what the options of ``add_gateway_options`` and ``add_server_options`` say."""
    settings = replace(
        base,
        **{info.name: getattr(args, info.name) for info in fields_of(Settings)},
        reasoning_parser=args.reasoning_parser,
        tool_call_parser=args.tool_call_parser,
        tool_call_recovery=args.tool_call_recovery == "on",
        generation_config=args.generation_config,
        api_keys=(*args.api_keys, *([args.node_key] if args.node_key else [])),
        node_key=args.node_key,
        admin_keys=tuple(args.admin_keys),
        max_log_len=max(0, args.max_log_len),
        qos_config_path=Path(args.qos_config_path) if args.qos_config_path else None,
        trace_endpoint=args.trace_endpoint or "",
        allow_origins=tuple(args.allow_origins),
        allow_methods=tuple(args.allow_methods),
        allow_headers=tuple(args.allow_headers),
        proxy_key=args.proxy_key,
        allowed_media_hosts=tuple(args.allowed_media_domains) if args.allowed_media_domains else None,
        allowed_media_folder=Path(args.allowed_local_media_path) if args.allowed_local_media_path else None,
        files_dir=Path(args.files_dir).expanduser().absolute() if args.files_dir else None,
        responses_store=Path(args.responses_store).expanduser().absolute() if args.responses_store else None,
    )
    return replace(settings, public_url=f"{scheme(args)}://{args.server_name}:{args.server_port}")


def browsers_line(args: argparse.Namespace) -> str:
    """Return which web pages may call the API, for the user who starts it."""
    if args.allow_origins:
        return f"web pages may call from {', '.join(args.allow_origins)} (--allow-origins)"
    return "web pages of other origins may not call; --allow-origins names those that may (CORS)"


def listening(args: argparse.Namespace) -> Listening:
    """Return where and how to listen; raise `TlsError` if the files for HTTPS are unusable."""
    timeouts = ClientTimeouts(args.head_timeout, args.body_timeout, args.write_timeout, args.keep_alive_timeout)
    tls = tls_files() if args.ssl else None
    return Listening(args.server_name, args.server_port, args.log_level, tls, timeouts, args.log_format)


def check_qos(args: argparse.Namespace) -> None:
    """Read the policy file, if there is one, before anything is started; raise `QosConfigError` if it is unusable."""
    if args.qos_config_path:
        Qos.load(Path(args.qos_config_path), [*args.api_keys, *([args.node_key] if args.node_key else [])])


def scheme(args: argparse.Namespace) -> str:
    """Return ``http`` or ``https``."""
    return "https" if args.ssl else "http"


def base_url(args: argparse.Namespace) -> str:
    """Return the URL to show to a user of this machine."""
    return f"{scheme(args)}://{reachable_host(args.server_name)}:{args.server_port}"
