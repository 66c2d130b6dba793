"""``lmdeploy serve api_server``: tritonserver, the gateway and, on demand, the chat page as one.

tritonserver starts first, with next to nothing imported; the gateway is imported while it loads the model, and the
chat page starts when both serve.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from lmdeploy.cli.chat_page import ChatPage
from lmdeploy.cli.triton import ServedModel, served_model, stop_on_sigterm
from lmdeploy.extras import require
from lmdeploy.logs import configure
from lmdeploy.model_metadata.sampling_defaults import AUTO, NONE, sampling_defaults
from lmdeploy.paths import tokenizer_dir
from lmdeploy.serve.heap import pause_collection
from lmdeploy.serve.ports import reachable_host, require_free


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    pause_collection()
    configure(args.log_level, args.log_format)
    if args.webui:
        require("webui", "--webui")
    stop_on_sigterm()
    require_free(args.server_name, args.server_port, "the OpenAI API (--server-port)")
    if args.webui:
        require_free(args.server_name, args.webui_port, "the chat page (--webui-port)")
    if args.ssl or args.qos_config_path:  # what is wrong with them is reported before a model is converted
        from lmdeploy.cli.gateway_settings import check_qos, listening

        listening(args)
        check_qos(args)
    with _served(args) as served:
        _serve(args, served)
    return 0


def _served(args: argparse.Namespace) -> AbstractContextManager[ServedModel]:
    if args.more_models or args.models_file or args.models_memory:
        from lmdeploy.cli.multi_model import served_models

        return served_models(args)
    from lmdeploy.serve.multi_model.requested import split_argument

    name, path = split_argument(args.model)
    if name and args.model_name:
        raise ValueError(f"the model is called {name} and {args.model_name}; give --model-name or NAME=PATH")
    args.model_name = name or args.model_name
    return served_model(path, args)


def _serve(args: argparse.Namespace, served: ServedModel) -> None:
    from lmdeploy.cli.served_gateway import base_url, browsers_line, serve

    url = f"http://{reachable_host(args.server_name)}:{args.webui_port}/"
    # The API separates reasoning and calls. But a certificate may be for another name than the one the page would use,
    # and with the key that the page would show, its readers would have the adapters of that key.
    uses_grpc = served.models_dir is None and bool(args.ssl or args.api_keys or args.node_key)
    page = ChatPage(
        served.server.grpc_address if uses_grpc else base_url(args),
        served.server.control_key,
        args.server_name,
        args.webui_port,
        args.api_keys,
        on_ready=lambda: print(f"chat page   {url}", flush=True),
        generation_config=_of_page(args.generation_config, served) if uses_grpc else AUTO,
    )

    def on_ready() -> None:
        if args.webui:
            page.start()
        _print_urls(base_url(args), browsers_line(args), url if args.webui else "", served)

    try:
        serve(args, served, on_ready)
    except SystemExit:
        if page.failure:
            raise RuntimeError(page.failure) from None
        raise
    finally:
        page.stop()


def _of_page(generation_config: str, served: ServedModel) -> str:
    """Return where a page that asks Triton takes sampling defaults from: Triton does not report them."""
    if generation_config != AUTO or served.engine_dir is None:
        return generation_config
    return str(tokenizer_dir(served.engine_dir)) if sampling_defaults(AUTO, served.engine_dir) else NONE


def _print_urls(api_url: str, browsers: str, page_url: str, served: ServedModel) -> None:
    server = served.server
    lines = [
        f"serving {served.name}",
        f"  OpenAI API  {api_url}/v1   (documentation: {api_url}/)",
        f"              {browsers}",
    ]
    if page_url:
        lines.append(f"  chat page   {page_url} is starting")
    lines += [
        f"  Triton      gRPC {server.grpc_address}, HTTP {server.http_address}, metrics {server.metrics_url}",
        f"  its log     {served.log_file}",
        "Ctrl-C stops everything.",
    ]
    print("\n".join(lines), flush=True)
