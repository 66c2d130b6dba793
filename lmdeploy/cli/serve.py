"""``lmdeploy serve``: an OpenAI API, a gateway or a proxy alone, replicas on Ray, a chat page, or a terminal chat."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from lmdeploy.cli import options, terminal
from lmdeploy.cli.key_options import add_key, add_keys
from lmdeploy.cli.parser import DeprecatedOption, RejectedOption, print_help_of
from lmdeploy.cli.pull import add_pull_options
from lmdeploy.extras import require
from lmdeploy.units import byte_count
from openai_gateway.proxy.settings import DEFAULT_PROXY_PORT, STRATEGIES
from openai_gateway.settings import DEFAULT_PORT, DEFAULT_TRITON_ADDRESS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser(
        "serve", help="Start a server, or a client of one.", description="Start a server, or a client of one."
    )
    parser.set_defaults(run=print_help_of(parser))
    below = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_api_server(below)
    _add_gateway(below)
    _add_gradio(below)
    _add_proxy(below)
    _add_ray(below)
    _add_api_client(below)
    _add_triton_client(below)


def _add_api_server(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "api_server",
        help="Start tritonserver with one or more models, and the OpenAI-compatible API.",
        description=("Start tritonserver with one or more models, and the OpenAI-compatible API. Ctrl-C stops both."),
    )
    _add_model(parser)
    parser.add_argument(
        "more_models",
        nargs="*",
        metavar="MODEL",
        help="Further models on the same tritonserver, each PATH or NAME=PATH (docs/guides/multi-model.md).",
    )
    parser.add_argument(
        "--models-file",
        default="",
        metavar="FILE",
        help=(
            "JSON, TOML or YAML file with name, path and engine settings of each model; administrators may "
            "load more at run time."
        ),
    )
    parser.add_argument(
        "--models-memory",
        type=options.argument(partial(byte_count, "it")),
        metavar="SIZE",
        help="Memory for the weights and caches of all models together, such as 8GB; models that were not used for "
        "longest leave it when others need it, and come back with their next request (docs/guides/multi-model.md).",
    )
    add_pull_options(parser)
    options.add_server_options(parser, DEFAULT_PORT)
    parser.add_argument("--webui", action="store_true", help="Also serve the chat page.")
    parser.add_argument(
        "--webui-port",
        type=options.port,
        default=options.DEFAULT_WEBUI_PORT,
        metavar="PORT",
        help="Port of the chat page (default: %(default)s).",
    )
    _add_generation_options(parser)
    options.add_triton_options(parser)
    parser.set_defaults(run=_run_of("api_server"))


def _add_gateway(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "gateway",
        help="Serve the OpenAI-compatible API for a running tritonserver.",
        description=(
            "Serve the OpenAI-compatible API for a tritonserver, which may also start later. Ctrl-C stops it."
        ),
    )
    parser.add_argument(
        "--triton-address",
        default=DEFAULT_TRITON_ADDRESS,
        metavar="HOST:PORT",
        help="Address of Triton's gRPC service (default: %(default)s).",
    )
    parser.add_argument(
        "--model-name", default="", help="Name of the model for clients (default: the name that Triton reports)."
    )
    parser.add_argument("--triton-metrics-url", metavar="URL", help="URL of Triton's metrics, which /metrics includes.")
    parser.add_argument(
        "--engine-dir",
        default="",
        metavar="DIR",
        help="The model's engine directory, which has its vocabulary and chat template.",
    )
    options.add_server_options(parser, DEFAULT_PORT)
    options.add_gateway_options(parser)
    parser.set_defaults(run=_run_of("gateway"))


def _add_proxy(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "proxy",
        help="Load-balance requests over several API servers.",
        description=(
            "Load-balance requests over several API servers, which register with --proxy-url or at /nodes/add. "
            "Ctrl-C stops it."
        ),
    )
    options.add_server_options(parser, DEFAULT_PROXY_PORT)
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default=STRATEGIES[1], help="Routing strategy (default: %(default)s)."
    )
    parser.add_argument(
        "--state-file", default="", metavar="FILE", help="File that keeps the list of nodes across restarts."
    )
    add_keys(
        parser,
        "admin-keys",
        "API keys of administrators, who may register and remove nodes (default: only this machine)",
    )
    add_key(parser, "node-key", "API key that the proxy sends to nodes")
    parser.add_argument(
        "--allow-private-nodes", action="store_true", help="Allow nodes with addresses of private networks."
    )
    options.add_security_options(parser)
    parser.set_defaults(run=_run_of("proxy"))


def _add_ray(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "ray",
        help="Serve replicas of a model on Ray Serve.",
        description=(
            "Serve replicas of a model on Ray Serve, on the cluster of --ray-address or RAY_ADDRESS "
            "(default: this machine). Each replica is an api_server process. Ctrl-C stops them."
        ),
    )
    _add_model(parser)
    group = parser.add_argument_group("Ray")
    options.add_numbers(
        group,
        ("--replicas", options.positive, 1, "INT", "Number of replicas."),
        (
            "--max-replicas",
            options.positive,
            None,
            "INT",
            "Maximum number of replicas (default: --replicas).",
        ),
        (
            "--waiting-per-replica",
            options.above_0,
            4.0,
            "FLOAT",
            "Waiting requests per replica that add one.",
        ),
        ("--cpus-per-replica", float, 1.0, "FLOAT", "CPUs that Ray reserves per replica."),
        ("--gpus-per-replica", float, 0.0, "FLOAT", "GPUs that Ray reserves per replica and makes visible to it."),
    )
    group.add_argument("--ray-address", default="", metavar="ADDRESS", help="Address of a Ray cluster, or auto.")
    options.add_server_options(parser, DEFAULT_PORT)
    actions = {action for action in parser._actions if action.dest != "log_format"}
    _add_generation_options(parser)
    add_pull_options(parser)
    of_the_command = {"drain_seconds", "api_keys"}
    of_replicas = [action for action in parser._actions if action not in actions and action.dest not in of_the_command]
    parser.set_defaults(run=_run_of("ray", extra="ray"), of_replicas=of_replicas)


def _add_api_client(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "api_client",
        help="Chat in the terminal with a running API server.",
        description=f"Chat in the terminal with a running API server: {terminal.HELP}.",
    )
    parser.add_argument("api_server_url", metavar="URL", help="URL of the API server.")
    add_key(parser, "api-key", "API key of the server, if it requires one")
    parser.add_argument("--session-id", type=int, default=1, metavar="INT", help="Session id (default: %(default)s).")
    parser.set_defaults(run=_run_of("api_client", extra=""))


def _add_gradio(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "gradio",
        help="Serve the chat page.",
        description=(
            "Serve the chat page for a running tritonserver, a server with OpenAI's API, or a model "
            "with its own tritonserver. Ctrl-C stops it."
        ),
    )
    parser.add_argument(
        "target",
        metavar="ADDRESS_OR_MODEL",
        help="HOST:PORT of Triton's gRPC service, http://... of an OpenAI-compatible API, or a model.",
    )
    add_pull_options(parser)
    options.add_server_options(parser, options.DEFAULT_WEBUI_PORT)
    options.add_api_keys(parser)
    add_key(parser, "api-key", "API key of the server, if the target is a URL")
    options.add_generation_config(parser)
    parser.add_argument(
        "--share",
        action=RejectedOption,
        nargs=0,
        reason="the page asks no host but its own; a tunnel such as `ssh -R` publishes it",
    )
    parser.add_argument(
        "--restful-api",
        action=DeprecatedOption,
        word="has no effect: the target's form is detected",
        help=argparse.SUPPRESS,
    )
    options.add_max_log_len(parser)
    options.add_engine_options(parser)
    options.add_model_options(parser)
    options.add_old_meta_instruction(parser)
    options.add_old_batch_size(parser, "--batch-size")
    options.add_triton_options(parser)
    parser.set_defaults(run=_run_of("gradio", extra="webui"))


def _add_triton_client(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "triton_client",
        help="Chat in the terminal with a model on a running tritonserver.",
        description=f"Chat in the terminal with a model on a running tritonserver: {terminal.HELP}.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="Address of Triton's gRPC service.")
    parser.add_argument("--session-id", type=int, default=None, metavar="N", help="Session id (default: random).")
    parser.add_argument("--stream-output", action="store_true", help="Has no effect: responses are always streamed.")
    parser.add_argument(
        "--cap", action=DeprecatedOption, word="has no effect: the server applies the chat template", metavar="TEXT"
    )
    terminal.add_sampling_options(parser)
    parser.set_defaults(run=_run_of("triton_client"))


def _add_generation_options(parser: argparse.ArgumentParser) -> None:
    """Add what a server of a model can be given, but for where it listens."""
    options.add_gateway_options(parser)
    parser.add_argument(
        "--split-special-tokens",
        action="store_true",
        help="Tokenize special tokens in user input as plain text; only the chat template produces special tokens.",
    )
    options.add_engine_options(parser)
    options.add_model_options(parser)
    options.add_old_meta_instruction(parser)
    options.add_old_batch_size(parser, "--instance-num")
    options.add_vision_options(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="MODEL",
        help=(
            "Hugging Face directory, GGUF file, converted workspace, or a hub's owner/name or "
            "owner/name:Q4_K_M (default: the default model)."
        ),
    )


def _run_of(module: str, extra: str = "serve") -> Callable[[argparse.Namespace], int]:
    """Return ``run`` of a module of this package, which is imported when it is called: some import much."""

    def run(args: argparse.Namespace) -> int:
        if extra:
            require(extra, f"`lmdeploy serve {module}`")
        status: int = import_module(f"lmdeploy.cli.{module}").run(args)
        return status

    return run
