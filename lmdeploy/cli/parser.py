"""The parser of the command line: both spellings of an option; and mistakes, each reported in a sentence."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_OUR_PACKAGES = {"lmdeploy", "openai_gateway", "tools"}
_HTTP_CLIENTS = {"aiohttp", "httpx", "openai"}


class Parser(argparse.ArgumentParser):
    """Takes ``--session_len`` for ``--session-len``, and names the option that an unknown one is nearest to."""

    _innermost: argparse.ArgumentParser | None = None
    takes_anything = False  # of a command that is not there: only --help is understood

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is known; called for each subcommand's parser in turn, the innermost last."""
        Parser._innermost = self
        given = sys.argv[1:] if args is None else args
        if self.takes_anything and not {"-h", "--help"} & set(given):
            given = []
        return super().parse_known_args([_with_hyphens(text) for text in given], namespace)

    @property
    def innermost(self) -> argparse.ArgumentParser:
        """The parser of the subcommand that was parsed."""
        return Parser._innermost or self

    def parse_everything(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse, or end the process with a sentence that says what is wrong."""
        parsed, unknown = self.parse_known_args(args)
        if unknown:
            parser = self.innermost
            parser.error("; ".join(_unknown(text, list(parser._option_string_actions)) for text in unknown))
        namespace: argparse.Namespace = parsed
        return namespace


def exit_status(prog: str, run: Callable[[], int | None]) -> int:
    """Run a command or a tool; what the user can mend is a line on stderr, and exit status 1.

    A traceback is left for bugs; with ``python -X dev`` everything has one. ``prog``: begins the line. ``run``: returns
    the exit status, or nothing for 0.
    """
    try:
        status = run() or 0
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; at exit, Python would complain of what is not written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # behind the terminal's ^C
        return 130  # as shells report SIGINT
    except Exception as error:
        if sys.flags.dev_mode or not _can_be_mended(error):
            raise
        print(f"{prog}: {_sentence(error)}", file=sys.stderr)
        return 1
    return status


def _can_be_mended(error: Exception) -> bool:
    """Return whether an error is about input, files or servers; others are bugs."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, (ValueError, OSError, RuntimeError)) or package in _OUR_PACKAGES | _HTTP_CLIENTS


def _sentence(error: Exception) -> str:
    """Return the text of an error; that of an HTTP client does not name the server, or goes on for lines."""
    if type(error).__module__.partition(".")[0] not in _HTTP_CLIENTS:
        return str(error)
    text = str(error).partition("\n")[0] or type(error).__name__
    url = str(getattr(getattr(error, "_request", None) or getattr(error, "request", None), "url", ""))
    return text if url in text else f"{url}: {text}; is the server running?"


class RejectedOption(argparse.Action):
    """An option of LMDeploy that is not supported: refused with the reason, except for its neutral values."""

    def __init__(
        self, *args: Any, reason: str, neutral: tuple[Any, ...] = (), help: str | None = None, **more: Any
    ) -> None:
        more["help"] = help or f"refused: {reason}"
        super().__init__(*args, **more)
        self.reason, self.neutral = reason, neutral

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Refuse, or keep a value that asks for nothing beyond what there is."""
        if values not in self.neutral:
            reject(parser, option or self.dest, self.reason)
        setattr(namespace, self.dest, values)


class DeprecatedOption(argparse.Action):
    """An option of LMDeploy that is accepted with a warning: it has no effect, or another name."""

    def __init__(self, *args: Any, word: str, becomes: str | None = None, help: str | None = None, **more: Any) -> None:
        more["help"] = help or word
        super().__init__(*args, **more)
        self.word, self.becomes = word, becomes

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Print the warning; store the value, under the option's new name if it has one."""
        print(f"{parser.prog}: {option} {self.word}", file=sys.stderr)
        setattr(namespace, self.becomes or self.dest, values)


def print_help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Return the action of a command that needs a subcommand and got none."""

    def run(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return run


def reject(parser: argparse.ArgumentParser, option: str, reason: str) -> NoReturn:
    """End the process: an option is not available."""
    parser.error(f"{option} is refused: {reason}")


def _with_hyphens(text: str) -> str:
    if not text.startswith("--"):
        return text
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown(text: str, options: list[str]) -> str:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected {text!r}"
    nearest = difflib.get_close_matches(name, options, n=1)
    return f"there is no option {name}" + (f"; did you mean {nearest[0]}?" if nearest else "; see --help")
