"""The readers of every notation that `lmdeploy.templates.notations` describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lmdeploy.templates import notations
from openai_gateway.tools.events import Body
from openai_gateway.tools.json_call import JsonCall
from openai_gateway.tools.python_call import PythonCall
from openai_gateway.tools.python_tag import PythonTag
from openai_gateway.tools.readers import HeadedCall, ListedCall, MarkedCall, NamedCall


@dataclass(frozen=True, slots=True)
class Opening:
    """What a mark opens.

    Attributes
    ----------
    body : callable
        Makes a reader for what is behind the mark.
    group_end : str
        What may stand behind the last of several calls, and belongs to no text.
    """

    body: Callable[[], Body]
    group_end: str = ""


@dataclass(slots=True)
class Readers:
    """What makes readers for calls.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    parser : str
        One of `lmdeploy.templates.notations.PARSERS`.

    Attributes
    ----------
    openings : dict
        By the mark before a call.
    """

    names: frozenset[str]
    parser: str = "auto"
    openings: dict[str, Opening] = field(init=False)
    _bare: set[type] = field(init=False)

    def __post_init__(self) -> None:
        described = notations.notations_of(self.parser)
        self._bare = {type(notation) for notation in described}
        self.openings = {}
        for (
            notation
        ) in described:  # Granite and Phi-4 open lists alike: the later knows what the earlier does, and more
            self.openings |= self._openings(notation)

    def bare(self, text: str) -> Body | None:
        """Return a reader for what may be the beginning of a call without a mark; None: it is none."""
        if text.startswith("{") and notations.BareObjects in self._bare:
            return JsonCall(self.names)
        if text.startswith("[") and notations.PythonList in self._bare:
            return self._python_list()
        if notations.GLM4.opening in self.openings and self._may_begin_named(text):
            return self.openings[notations.GLM4.opening].body()
        return None

    def _may_begin_named(self, text: str) -> bool:
        """Return whether `text` may begin a call of GLM-4's without its mark, which the prompt ends with."""
        heads = (name + notations.GLM4.ending for name in self.names)
        return any(head.startswith(text) or text.startswith(head) for head in heads)

    def _openings(self, notation: notations.Notation) -> dict[str, Opening]:
        match notation:
            case notations.MarkedObjects():
                made = Opening(partial(MarkedCall, notation.closing))
                return dict.fromkeys((notation.opening, *notation.other_openings), made)
            case notations.ObjectList():
                made = Opening(partial(ListedCall, "[", JsonCall), notation.closing)
                return dict.fromkeys((notation.opening, *notation.other_openings), made)
            case notations.PythonList():
                return {notation.opening: Opening(self._python_list, notation.closing)}
            case notations.NamedArguments():
                names = None if notation.closing else self.names
                return {notation.opening: Opening(partial(NamedCall, notation.ending, notation.closing, names))}
            case notations.HeadedArguments():
                made = Opening(partial(HeadedCall, notation.pattern, notation.closings), notation.after)
                return dict.fromkeys(notation.openings, made)
            case notations.EnvironmentCode():
                return {notation.opening: Opening(partial(PythonTag, self.names))}
            case notations.BareObjects():
                return {}

    def _python_list(self) -> Body:
        return ListedCall("[", partial(PythonCall, self.names))
