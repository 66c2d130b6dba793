"""docs/reference/cli.md: every command and option of ``lmdeploy``, from its parsers."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from lmdeploy.cli.main import make_parser

_PAGE = """\
# Command line

Every command and option of `lmdeploy`. Written by `make fields` from the parsers, which `--help` shows too.
Options take hyphens or underscores (`--session-len`, `--session_len`).

{commands}

# Shared options

{shared}
"""
_SETTINGS = "reference/settings.md"  # it has these options already, as settings
_OWN = ("positional arguments", "options")
_COMMON = "Common"
_FEW = 2  # commands that an option alike has a row in; one of more is described once
_DOCUMENT = re.compile(r"docs/([\w/-]+\.md)")
_MARKUP = re.compile(r"`[^`]*`|[|<>*\[\]]")


def command_line(_: str) -> str:
    """Return the page."""
    parsers = list(_commands(make_parser()))
    rows = Counter(row for parser in parsers for group in _groups(parser) for row in _options(parser, group))
    common = [row for row, count in rows.items() if count > _FEW]
    sections = {_COMMON: f"## {_COMMON}\n\n{_table(common)}"}  # and of groups that several commands have, by title
    pages = []
    for parser in parsers:
        options, others, links = list[str](), list[str](), list[str]()
        for group in _groups(parser):
            title = _title(group)
            if group.title in _OWN:
                lines = _lines(parser, group)
                options += [row for row in lines if row not in common]
                if names := [row.split("`")[1] for row in lines if row in common]:
                    links.append(f"[{_COMMON}](#{_COMMON.lower()}) (`{'`, `'.join(names)}`)")
            elif _is_shared(group, parsers):
                sections[title] = f"## {title}\n\n{_of_group(parser, group)}"
                links.append(f"[{title}](#{title.replace(' ', '-').lower()})")
            else:
                others.append(f"{title}:\n\n{_of_group(parser, group)}")
        parts = [f"## `{parser.prog}`", _prose(parser.description or ""), _table(options) if options else "", *others]
        parts += [f"Shared options: {', '.join(links)}."] if links else []
        pages.append("\n\n".join(part for part in parts if part))
    return _PAGE.format(commands="\n\n".join(pages), shared="\n\n".join(sections.values()))


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers that take arguments, those of a command after it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for command in action.choices.values():
            yield from _commands(command)


def _groups(parser: argparse.ArgumentParser) -> list[argparse._ArgumentGroup]:
    return [group for group in parser._action_groups if _arguments(group)]


def _arguments(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Return the arguments that `--help` shows, all but itself."""
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [one for one in group._group_actions if not isinstance(one, hidden) and one.help is not argparse.SUPPRESS]


def _is_shared(group: argparse._ArgumentGroup, parsers: list[argparse.ArgumentParser]) -> bool:
    """Return whether several commands have a group, and all of them the same."""
    alike = [_of_group(parser, one) for parser in parsers for one in _groups(parser) if one.title == group.title]
    return len(alike) > 1 and len(set(alike)) == 1


def _options(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> list[str]:
    """Return the rows of a command's options in no group of its own."""
    return [row for row in _lines(parser, group) if group.title in _OWN and row.startswith("| `-")]


def _title(group: argparse._ArgumentGroup) -> str:
    title = (group.title or "").partition(" (docs/")[0]
    return title[:1].upper() + title[1:]


def _of_group(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> str:
    page = _DOCUMENT.search(group.title or "")
    if page and page[1] == _SETTINGS:
        names = ", ".join(
            f"`{name}`" for action in _arguments(group) for name in action.option_strings if name.startswith("--")
        )
        return f"Described among the {_linked(page[0])}: {names}."
    return (f"See {_linked(page[0])}.\n\n" if page else "") + _table(_lines(parser, group))


def _table(lines: list[str]) -> str:
    return "\n".join(["| option | what it does |", "| --- | --- |", *lines])


def _lines(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> list[str]:
    formatter = parser._get_formatter()
    return [f"| {_spelling(action)} | {_prose(_help(action, formatter))} |" for action in _arguments(group)]


def _spelling(action: argparse.Action) -> str:
    """Return how an argument is written: each of its names, and its value."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    names = [f"`{name}`" for name in action.option_strings]
    if action.nargs == 0:
        return ", ".join(names)
    choices = action.choices and "|".join(str(choice) for choice in action.choices)
    metavar = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    value = metavar if len(metavar) < 80 else "NAME"
    return ", ".join(names) + f" `{value}{'...' if action.nargs in ('*', '+') else ''}`".replace("|", "\\|")


def _help(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    text = formatter._expand_help(action) if action.help else ""
    names = [str(choice) for choice in action.choices or ()]
    if sum(map(len, names)) >= 80:
        text += f"; one of {', '.join(names)}"
    return text


def _prose(text: str) -> str:
    """Return Markdown of a help text."""
    escaped = _MARKUP.sub(lambda match: match[0] if len(match[0]) > 1 else f"\\{match[0]}", text)
    return _DOCUMENT.sub(lambda match: _linked(match[0]), escaped)


def _linked(document: str) -> str:
    page = PurePosixPath(document).relative_to("docs")
    target = page.name if page.parts[0] == "reference" else f"../{page}"
    return f"[{page.stem.replace('-', ' ')}]({target})"
