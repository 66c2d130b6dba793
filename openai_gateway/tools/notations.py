"""The readers of every notation that `lmdeploy.templates.notations` describes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lmdeploy.templates import notations
from openai_gateway.tools.events import Body
from openai_gateway.tools.python_tag import PythonTag
from openai_gateway.tools.readers import ListedCall, MarkedCall, NamedCall


def readers(names: frozenset[str]) -> dict[str, Callable[[], Body]]:
    """Return what makes a reader for the call behind each mark.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    """
    made: dict[str, Callable[[], Body]] = {}
    for marked in (notations.QWEN, notations.INTERNLM2):
        made |= dict.fromkeys((marked.opening, *marked.other_openings), partial(MarkedCall, marked.closing))
    function = notations.LLAMA31_FUNCTION
    return made | {
        notations.LLAMA31_PYTHON_TAG: partial(PythonTag, names),
        function.opening: partial(NamedCall, function.ending, function.closing),
        notations.MISTRAL.opening: partial(ListedCall, "["),
        notations.GLM4.opening: partial(NamedCall, notations.GLM4.ending, names=names),
    }


def may_begin_named(text: str, names: frozenset[str]) -> bool:
    """Return whether `text` may begin a call of GLM-4's without its mark, which the prompt ends with."""
    heads = (name + notations.GLM4.ending for name in names)
    return any(head.startswith(text) or text.startswith(head) for head in heads)
