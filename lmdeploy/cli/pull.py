"""``lmdeploy pull`` and ``lmdeploy rm``: download a model of a hub into the cache, and remove it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.hub import HubError
from lmdeploy.hub.names import HubName, hub_name

if TYPE_CHECKING:
    from lmdeploy.hub.pull import Progress

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_NAME_HELP = "owner/name, or owner/name:Q4_K_M for one GGUF file of a repository."


def add_parser(subparsers: Subparsers) -> None:
    """Add both subcommands to the command line."""
    parser = subparsers.add_parser(
        "pull",
        help="Download a model from a hub into the cache.",
        description=(
            "Download a model from a hub (Hugging Face, or HF_ENDPOINT) into the cache and verify it. "
            "An interrupted download resumes; a repeated one fetches only changed files."
        ),
    )
    parser.add_argument("model", metavar="NAME", help=_NAME_HELP)
    add_hf_file(parser)
    parser.add_argument("--revision", metavar="REVISION", help="Revision of the repository (default: the newest).")
    parser.add_argument("--download-dir", metavar="DIR", help="Download directory (default: the hub's cache, HF_HOME).")
    parser.set_defaults(run=_run_pull)
    parser = subparsers.add_parser(
        "rm",
        help="Remove a pulled model.",
        description=("Remove all revisions of a pulled model. Files that other models share are kept."),
    )
    parser.add_argument("model", metavar="NAME", help="Name of the model, as in `lmdeploy list`.")
    parser.set_defaults(run=_run_rm)


def add_hf_file(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add which of a repository's GGUF files is meant."""
    parser.add_argument(
        "--hf-file",
        default="",
        metavar="PATTERN",
        help="Pattern of the GGUF file to take from the repository, such as '*Q5_K_M*.gguf'.",
    )


def add_pull_options(parser: argparse.ArgumentParser) -> None:
    """Add what a command that serves does about a model that is on a hub."""
    parser.add_argument(
        "--pull", action="store_true", help="First download a model named owner/name, as `lmdeploy pull` does."
    )
    add_hf_file(parser)


def pulled_or_rejected(model: str, args: argparse.Namespace, settings: Mapping[str, Any]) -> str:
    """Return the path or name of a model to serve, downloaded first where `add_pull_options` asks for that.

    Raises `HubError` if it is on a hub only, and is not to be downloaded, or cannot be. ``model``: as users name it.
    ``settings``: of the engine, with ``revision`` and ``download_dir``.
    """
    path = Path(model).expanduser()
    name = None if not model or path.exists() or path.suffix.lower() == ".gguf" else hub_name(model, args.hf_file)
    if name is None:
        return model
    from lmdeploy.paths import describe_model_locations, named_model

    revision, download_dir = settings.get("revision"), settings.get("download_dir")
    is_there = named_model(str(name), revision, download_dir) is not None
    if is_there or os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return str(name)  # offline, the message says where was looked
    if not args.pull:
        locations = describe_model_locations(Path(download_dir) if download_dir else None)
        raise HubError(
            f"{name} is neither a directory nor a model on this machine; --pull downloads it from the hub now, and "
            f"`lmdeploy pull {name}` beforehand; looked at {locations}"
        )
    try:
        pull_with_progress(name, revision, download_dir)
    except HubError as error:
        raise HubError(f"{name}: {error}") from error
    return str(name)


def pull_with_progress(name: HubName, revision: str | None, download_dir: str | None) -> Path:
    """Download a model, and report on stderr how far it is.

    Raises `HubError` as `lmdeploy.hub.pull.pull`. Returns what is loaded: a folder, or a GGUF file.
    """
    from lmdeploy.hub.pull import pull
    from lmdeploy.paths import pulled_records

    hub_cache = Path(download_dir).expanduser() if download_dir else None
    return pull(pulled_records(), name, revision, hub_cache, report=_Lines()).path


def _run_pull(args: argparse.Namespace) -> int:
    name = hub_name(args.model, args.hf_file)
    try:
        if name is None:
            raise HubError(f"expected {_NAME_HELP}")
        path = pull_with_progress(name, args.revision, args.download_dir)
    except HubError as error:
        print(f"lmdeploy pull: {args.model}: {error}", file=sys.stderr)
        return 1
    print(f"{name} is in {path}; serve it with: lmdeploy serve api_server {name}")
    return 0


def _run_rm(args: argparse.Namespace) -> int:
    from lmdeploy.hub.pulled import pulled_models, remove
    from lmdeploy.paths import pulled_records

    name = hub_name(args.model)
    removed = remove(pulled_records(), name) if name is not None else []
    if not removed:
        there = ", ".join(str(model.name) for model in pulled_models(pulled_records())) or "none"
        print(f"lmdeploy rm: {args.model} was not pulled; models that were: {there}", file=sys.stderr)
        return 1
    print(f"removed {args.model} ({sum(model.size for model in removed) / 1e9:.2f} GB)")
    return 0


class _Lines:
    """Prints steps: on one line of a terminal for each file, else a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = 0.0
        self._file = ""

    def __call__(self, progress: Progress) -> None:
        """Print a step."""
        is_last = progress.completed == progress.total
        if not progress.file:
            self._print(progress.status, end="\n")
        elif is_last or progress.file != self._file or time.monotonic() >= self._next:
            share = progress.completed / max(progress.total, 1)
            shown = f"pulling {progress.file}: {share:.0%} of {progress.total / 1e9:.3f} GB"
            self._print(shown, end="\n" if is_last or not self._terminal else "")
            self._next = time.monotonic() + (0.2 if self._terminal else 10.0)
            self._file = progress.file

    def _print(self, text: str, end: str) -> None:
        print(f"\r\033[K{text}" if self._terminal else text, end=end, file=sys.stderr, flush=True)
