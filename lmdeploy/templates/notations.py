"""How models write calls of tools: one description a notation. Templates write with them, the gateway reads by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmdeploy.templates.calls import Call, as_json


@dataclass(frozen=True, slots=True)
class MarkedObjects:
    """Each call is a JSON object between two marks.

    Attributes
    ----------
    opening, closing : str
        The marks.
    before, after : str
        What stands between the marks and the object as written; any white space is read.
    separator : str
        Between two calls as written.
    arguments : str
        Name of the object's member with the arguments; any of the usual names is read.
    other_openings : tuple of str
        Read like `opening`.
    """

    opening: str
    closing: str
    before: str = "\n"
    after: str = "\n"
    separator: str = "\n"
    arguments: str = "arguments"
    other_openings: tuple[str, ...] = ()

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        objects = (as_json(_named_object(call, self.arguments)) for call in calls)
        return self.separator.join(f"{self.opening}{self.before}{made}{self.after}{self.closing}" for made in objects)


@dataclass(frozen=True, slots=True)
class BareObjects:
    """Each call is a JSON object without marks.

    Attributes
    ----------
    separator : str
        Between two calls.
    arguments : str
        Name of the object's member with the arguments as written.
    """

    separator: str = "; "
    arguments: str = "parameters"

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        return self.separator.join(as_json(_named_object(call, self.arguments)) for call in calls)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The calls are a JSON list after a mark; each has an id."""

    opening: str

    def write(self, calls: Sequence[Call], gap: str) -> str:
        """Return the calls as the model writes them, with `gap` behind the mark."""
        made = [_named_object(call, "arguments") | {"id": call.get("id", "")} for call in calls]
        return f"{self.opening}{gap}{as_json(made)}"


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """Each call is the function's name and then its arguments, a JSON object.

    Attributes
    ----------
    opening : str
        The mark before the name.
    ending : str
        What ends the name.
    closing : str
        The mark after the arguments; empty: there is none.
    """

    opening: str
    ending: str
    closing: str = ""

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        functions = [call["function"] for call in calls]
        return "".join(
            f"{self.opening}{made['name']}{self.ending}{_as_text(made['arguments'])}{self.closing}"
            for made in functions
        )


QWEN = MarkedObjects("<tool_call>", "</tool_call>")
# For models whose templates have none of their own: the most widespread one.
GENERIC = QWEN
INTERNLM2 = MarkedObjects(
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    after="",
    separator="",
    arguments="parameters",
    other_openings=("<|action_start|> <|plugin|>",),
)
MISTRAL = ObjectList("[TOOL_CALLS]")
GLM4 = NamedArguments("<|assistant|>", "\n")
LLAMA31 = BareObjects()
# What Llama 3.1 may write besides: it is told of neither, but was trained on both.
LLAMA31_FUNCTION = NamedArguments("<function=", ">", "</function>")
LLAMA31_PYTHON_TAG = "<|python_tag|>"


def _named_object(call: Call, arguments: str) -> dict[str, Any]:
    return {"name": call["function"]["name"], arguments: call["function"]["arguments"]}


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else as_json(arguments)
