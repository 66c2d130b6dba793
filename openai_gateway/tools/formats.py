"""Tool-call readers of every format in `lmdeploy.templates.tool_call_formats`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lmdeploy.templates import tool_call_formats as formats
from openai_gateway.tools.events import NAME, Body
from openai_gateway.tools.json_call import JsonCall
from openai_gateway.tools.near_misses import NothingButObjects, OtherFormat, PythonObjects
from openai_gateway.tools.python_call import EnvironmentCall, PythonCall
from openai_gateway.tools.quoted_call import QuotedCall
from openai_gateway.tools.readers import FirstThatFits, GroupedCall, HeadedCall, NamedCall
from openai_gateway.tools.tagged_call import TaggedCall

Schemas = Mapping[str, Mapping[str, Any]]


def is_tag(tag: str) -> bool:
    """Return whether a tag is one that stands for nothing else, such as ``<tool_call>``."""
    return tag[:1] in ("<", "[")


class AnyFunction(dict[str, Mapping[str, Any]]):
    """The schemas of functions; one of any other proper name is in it as well, without a schema."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and NAME.fullmatch(name) is not None

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return {}


@dataclass(slots=True)
class Opening:
    """Readers that a tag opens."""

    # Each makes a reader for what may follow the tag; formats share some
    bodies: list[Callable[[], Body]] = field(default_factory=list)
    # Text that may follow the last of several calls and is not shown
    group_ends: list[str] = field(default_factory=list)

    def body(self) -> Body:
        """Return a new reader."""
        return _one_of(self.bodies)


class Readers:
    """Factory of readers for calls.

    ``parser``: one of `lmdeploy.templates.tool_call_formats.PARSERS`.
    """

    def __init__(self, functions: Schemas, parser: str = "auto", *, recovers: bool = False) -> None:
        self._functions = functions  # the schemas of the arguments, by the names of the functions the model may call
        self._any = AnyFunction(functions)
        self._described = formats.tool_call_formats_of(parser)
        # Calls are also read that are not quite as one of its formats has them
        self._recovers = recovers and parser != "none"
        self.openings: dict[str, Opening] = {}  # by the tag before a call
        for described in self._described:
            self._add(described, self._any)
        if self._recovers:
            for described in formats.tool_call_formats_of("auto"):
                if described not in self._described:
                    self._add(described, self._functions, is_other=True)

    def _add(self, described: formats.ToolCallFormat, functions: Schemas, *, is_other: bool = False) -> None:
        for tag, body, group_ends in self._openings(described, functions):
            if is_other and not is_tag(tag):
                continue
            opening = self.openings.setdefault(tag, Opening())
            opening.bodies.append(partial(_other_format, body) if is_other else body)
            opening.group_ends += (end for end in group_ends if end and end not in opening.group_ends)

    def bare(self, text: str, *, is_first: bool = False) -> Body | None:
        """Return a reader for what may be the beginning of a call without a tag; None: it is none.

        ``is_first``: nothing is before it in the response.
        """
        bodies = list[Callable[[], Body]]()
        for described in self._described:
            match described:
                case formats.BareObjects() if text.startswith("{"):
                    bodies.append(partial(JsonCall, self._functions, is_bare=True))
                case formats.ObjectList(is_bare=True) if text.startswith("["):
                    bodies.append(partial(_object_list, self._functions, is_bare=True))
                case formats.PythonList(is_marked=False) if text.startswith("["):
                    bodies.append(partial(_python_list, self._functions))
                case formats.NamedArguments(closing="") if self._may_begin_named(text, described.ending):
                    bodies.append(partial(NamedCall, described.ending, "", self._functions))
        if self._recovers and is_first and (text[0] in "{[" or "```".startswith(text[:3])):
            bodies.append(partial(NothingButObjects, self._functions))
        return _one_of(bodies) if bodies else None

    def _may_begin_named(self, text: str, ending: str) -> bool:
        """Return whether `text` may begin a call without its tag, which the prompt ends with."""
        heads = (name + ending for name in self._functions)
        return any(head.startswith(text) or text.startswith(head) for head in heads)

    def _openings(
        self, described: formats.ToolCallFormat, functions: Schemas
    ) -> Iterator[tuple[str, Callable[[], Body], Sequence[str]]]:
        """Yield the tags of a format, with what makes a reader, and what may end a group of calls."""
        match described:
            case formats.MarkedObjects():
                for tag in (described.opening, *described.other_openings):
                    yield tag, partial(GroupedCall, partial(JsonCall, functions), described.closing), ()
                    if self._recovers:
                        yield tag, partial(PythonObjects, described.closing, functions), ()
            case formats.ObjectList():
                for tag in (described.opening, *described.other_openings):
                    known = functions if is_tag(tag) else self._functions
                    yield tag, partial(_object_list, known), (described.closing,)
            case formats.PythonList():
                yield described.opening, partial(_python_list, functions), (described.closing,)
                if described.is_marked:  # as SGLang's parser for LFM2: the list may be JSON
                    yield described.opening, partial(_object_list, functions), (described.closing,)
                    if self._recovers:
                        yield described.opening, partial(PythonObjects, described.closing, functions), ()
            case formats.PythonLines():
                lines = partial(GroupedCall, partial(PythonCall, functions), described.closing, separator="")
                yield described.opening, lines, ()
            case formats.NamedArguments():
                yield described.opening, partial(NamedCall, described.ending, described.closing, functions), ()
            case formats.HeadedArguments():
                for tag in described.openings:
                    known = functions if is_tag(tag) else self._functions
                    body = partial(HeadedCall, described.pattern, described.closings, known)
                    yield tag, body, (described.after, *described.other_afters)
            case formats.TaggedArguments():
                for tag in described.openings:
                    yield tag, partial(TaggedCall, described, tag, functions), (described.section[1].strip(),)
            case formats.QuotedArguments():
                yield described.opening, partial(QuotedCall, described, functions), ()
            case formats.EnvironmentCode():
                yield described.opening, partial(JsonCall, self._functions), ()
                yield described.opening, partial(EnvironmentCall, self._functions), ()
            case formats.BareObjects():
                return


def _other_format(body: Callable[[], Body]) -> Body:
    return OtherFormat(body())


def _python_list(functions: Schemas) -> Body:
    return GroupedCall(partial(PythonCall, functions), "]", "[", ",")


def _object_list(functions: Schemas, *, is_bare: bool = False) -> Body:
    return GroupedCall(partial(JsonCall, functions, is_bare=is_bare), "]", "[", ",")


def _one_of(bodies: Sequence[Callable[[], Body]]) -> Body:
    return bodies[0]() if len(bodies) == 1 else FirstThatFits([body() for body in bodies])
