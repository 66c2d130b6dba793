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
    """The calls are a JSON list after a mark.

    Attributes
    ----------
    opening : str
        The mark.
    closing : str
        Behind the list; empty: nothing.
    name, arguments, identity : str
        Names of an object's members with the function, its arguments and the call's id, as written; empty: calls have
        no ids. Any of the usual names is read.
    indent : int, optional
        Of the list as written.
    other_openings : tuple of str
        Read like `opening`.
    """

    opening: str
    closing: str = ""
    name: str = "name"
    arguments: str = "arguments"
    identity: str = ""
    indent: int | None = None
    other_openings: tuple[str, ...] = ()

    def write(self, calls: Sequence[Call], gap: str = "") -> str:
        """Return the calls as the model writes them, with `gap` behind the mark."""
        return f"{self.opening}{gap}{as_json([self._object(call) for call in calls], self.indent)}{self.closing}"

    def _object(self, call: Call) -> dict[str, Any]:
        made = _named_object(call, self.arguments, self.name)
        return made | {self.identity: call.get("id", "")} if self.identity else made


@dataclass(frozen=True, slots=True)
class PythonList:
    """The calls are a Python list of calls with keywords: ``[add(a=1, b=2), today()]``.

    Attributes
    ----------
    opening, closing : str
        Marks that may stand around the list.
    """

    opening: str
    closing: str

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them, without the marks."""
        return f"[{', '.join(_in_python(call['function']) for call in calls)}]"


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


@dataclass(frozen=True, slots=True)
class HeadedArguments:
    """Each call is a head that holds the function's name, and then its arguments, a JSON object.

    Attributes
    ----------
    head : str
        As written, with ``{name}``.
    closing : str
        The mark after the arguments as written.
    openings : tuple of str
        The marks that heads begin with.
    pattern : str
        Regular expression of what stands between one of them and the arguments; its group ``name`` is the name.
    closings : tuple of str
        Each may end a call.
    before, separator, after : str
        Around all calls, and between two, as written.
    """

    head: str
    closing: str
    openings: tuple[str, ...]
    pattern: str
    closings: tuple[str, ...]
    before: str = ""
    separator: str = ""
    after: str = ""

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them; nothing where there are none."""
        if not calls:
            return ""
        functions = [call["function"] for call in calls]
        written = (
            f"{self.head.format(name=made['name'])}{_as_text(made['arguments'])}{self.closing}" for made in functions
        )
        return f"{self.before}{self.separator.join(written)}{self.after}"


@dataclass(frozen=True, slots=True)
class EnvironmentCode:
    """What stands behind the mark is for the environment to run; it is only read."""

    opening: str


Notation = MarkedObjects | BareObjects | ObjectList | PythonList | NamedArguments | HeadedArguments | EnvironmentCode

_NAME = r"(?P<name>[A-Za-z0-9_.-]{1,128})"

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
MISTRAL = ObjectList("[TOOL_CALLS]", identity="id")
GRANITE = ObjectList("<|tool_call|>")
# As its model card has it, and as Phi-4-mini also answers.
PHI4 = ObjectList("<|tool_call|>", "<|/tool_call|>", other_openings=("functools",))
# Command R and R+; and Command R7B and A, whose marks are tokens.
COMMAND_R = ObjectList("Action: ```json", "```", name="tool_name", arguments="parameters", indent=4)
COMMAND_R7B = ObjectList(
    "<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters", identity="tool_call_id"
)
GLM4 = NamedArguments("<|assistant|>", "\n")
LLAMA31 = BareObjects()
# What Llama 3.1 may write besides: it is told of neither, but was trained on both.
LLAMA31_FUNCTION = NamedArguments("<function=", ">", "</function>")
LLAMA31_PYTHON_TAG = EnvironmentCode("<|python_tag|>")
# Llama 3.2 where its prompt says so, and Llama 4, which has the marks.
PYTHONIC = PythonList("<|python_start|>", "<|python_end|>")
# V3 and R1 fence the arguments; V3.1 leaves the kind of call and the fence out.
DEEPSEEK_V3 = HeadedArguments(
    head="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    closing="\n```<｜tool▁call▁end｜>",
    openings=("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>"),
    pattern=rf"\s*(?:function<｜tool▁sep｜>{_NAME}\s*```json|{_NAME.replace('name', 'bare')}<｜tool▁sep｜>)\s*",
    closings=("```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"),
    before="<｜tool▁calls▁begin｜>",
    separator="\n",
    after="<｜tool▁calls▁end｜>",
)
# Of the header's parts the model may write the recipient first, or the channel. Prompts end with the role.
_HARMONY_CHANNELS = ("<|channel|>commentary", "<|channel|>analysis")
GPT_OSS = HeadedArguments(
    head="<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>",
    closing="<|call|>",
    openings=(
        "<|start|>assistant to=functions.",
        *(f"<|start|>assistant{channel} to=functions." for channel in _HARMONY_CHANNELS),
        *(f"{channel} to=functions." for channel in _HARMONY_CHANNELS),
        "to=functions.",
    ),
    pattern=rf"{_NAME}\s*(?:<\|channel\|>(?:commentary|analysis)\s*)?(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*",
    closings=("<|call|>", "<|end|>"),
)

NOTATIONS: dict[str, tuple[Notation, ...]] = {
    "command-r": (COMMAND_R, COMMAND_R7B),
    "deepseek-v3": (DEEPSEEK_V3,),
    "glm4": (GLM4,),
    "gpt-oss": (GPT_OSS,),
    "granite": (GRANITE, QWEN),  # the latter from 4.0 on
    "hermes": (QWEN,),
    "internlm": (INTERNLM2,),
    "llama3": (LLAMA31, LLAMA31_FUNCTION, LLAMA31_PYTHON_TAG),
    "mistral": (MISTRAL,),
    "phi-4": (PHI4,),
    "pythonic": (PYTHONIC,),
    "qwen": (QWEN,),
}
PARSERS = ("auto", "none", *NOTATIONS)
"""What ``--tool-call-parser`` may be."""


def notations_of(name: str) -> tuple[Notation, ...]:
    """Return what calls are looked for in; ``auto``: all, which their marks tell apart; ``none``: nothing."""
    if name == "auto":
        return tuple(dict.fromkeys(notation for several in NOTATIONS.values() for notation in several))
    return NOTATIONS.get(name, ())


def _named_object(call: Call, arguments: str, name: str = "name") -> dict[str, Any]:
    return {name: call["function"]["name"], arguments: call["function"]["arguments"]}


def _in_python(function: dict[str, Any]) -> str:
    return f"{function['name']}({', '.join(f'{name}={value!r}' for name, value in function['arguments'].items())})"


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else as_json(arguments)
