"""Jinja chat template of a checkpoint, rendered as ``transformers`` does, without importing it."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lmdeploy.limited_process import LimitedProcess, ProcessLimitError
from lmdeploy.templates import dates
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.call_ids import with_fitting_ids
from lmdeploy.templates.calls import parsed_arguments
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.tool_call_formats import (
    TOOL_CALL_FORMATS,
    HeadedArguments,
    ToolCallFormat,
    format_of_template,
)
from lmdeploy.templates.turns import in_turns

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_WRITTEN = 64 << 20  # bytes, by a template that is not trusted
_PROBE = "a text that no template writes by itself"
_REASONING_PROBE = "another one"
_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
# Names of a message's reasoning; templates read the first, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Errors of rendering.
TEMPLATE_ERRORS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


class JinjaChatTemplate(ChatTemplate):
    """The tokenizer's own template. It writes bos itself, where the model wants one."""

    add_bos = False

    def __init__(
        self,
        # The template; or several by name, of which ``tool_use`` is for tools and ``default`` for everything else
        template: str | Mapping[str, str],
        # Role to text, such as ``bos_token``; templates read them as variables
        special_tokens: Mapping[str, str] | None = None,
        # The model's tokens that end a response, one of which the template may write after the assistant's turn
        end_of_sequence: Sequence[str] = (),
    ) -> None:
        self._templates = {"default": template} if isinstance(template, str) else dict(template)
        self._special_tokens = dict(special_tokens or {})
        self.stop_words = []
        self._end_of_sequence = tuple(end_of_sequence)
        self._options: dict[str, Any] = {}

    def require_valid(self) -> None:
        """Raise ``ValueError`` if a template cannot be read."""
        for template in self._templates.values():
            if isinstance(template, UntrustedTemplate):
                _limited(template, None)
            else:
                require_compiled(template)

    @property
    def end_of_turn(self) -> Sequence[str]:
        """The model's tokens that end a response, and what else stops it."""
        return (*self._end_of_sequence, *self.stop_words)

    def closings(self) -> tuple[list[str], str]:
        """Return the template's text after a message of the assistant, and between its reasoning and content.

        The first are after the last message, and after one that another follows: what is in one alone opens a turn.
        Nothing where it refuses such messages.
        """
        message = {"role": "assistant", "content": _PROBE, "reasoning_content": _REASONING_PROBE}
        turns = [{"role": "user", "content": "-"}, message]
        try:
            written = [self.render(turns, add_generation_prompt=False) for turns in (turns, [*turns, turns[0]])]
        except ProcessLimitError:
            raise
        except ValueError:
            return [], ""
        before = written[0].partition(_PROBE)[0]
        return [text.partition(_PROBE)[2] for text in written], before.partition(_REASONING_PROBE)[2]

    def with_options(self, options: Mapping[str, Any]) -> "Self":
        """Return the template with variables of the caller's."""
        if taken := [name for name in options if name in _OWN_VARIABLES or name in self._special_tokens]:
            raise ValueError(f"chat_template_kwargs must not set {', '.join(taken)}")
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    def mentions(self, text: str) -> bool:
        """Return whether it is in a template."""
        return any(text in template for template in self._templates.values())

    def lists_tools(self) -> bool:
        """Return whether the template for tools writes them."""
        template = self._template_for([])
        return "tools" in template and not _leaves_out_tools(template)

    def writes_calls(self) -> bool:
        """Return whether the usual template reads anything of tools."""
        return "tool" in self._template_for(None)

    @property
    def native_format(self) -> HeadedArguments | None:
        """DeepSeek's, whose templates write calls and list no tools."""
        name = format_of_template(self.mentions)
        form = TOOL_CALL_FORMATS[name].formats[0] if name in ("deepseek_v3", "deepseek_v31") else None
        return form if isinstance(form, HeadedArguments) else None

    @property
    def tool_call_format(self) -> ToolCallFormat | None:
        """How the model writes calls, by what the template says."""
        name = format_of_template(self.mentions) if self.lists_tools() else None
        return super().tool_call_format if name is None else TOOL_CALL_FORMATS[name].formats[0]

    def takes_environment(self) -> bool:
        """Return whether the template writes messages of that role."""
        return _takes_environment(self._template_for(None))

    def takes_system_prompts(self) -> bool:
        """Return whether the template writes a system prompt; some refuse them, or leave them out."""
        return _takes_system(self._template_for(None))

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        template = self._template_for(tools)
        rejection: Exception | None = None
        messages = with_fitting_ids(messages, template)
        if _has_later_system(messages) and not _takes_later_system(template):
            messages = in_turns(messages)
        for given in self._forms(messages):
            try:
                return self._written(template, given, tools, add_generation_prompt)
            except ProcessLimitError:
                raise
            except TEMPLATE_ERRORS as error:
                rejection = rejection or error
        raise ValueError(f"messages are refused by the model's chat template: {rejection}") from rejection

    def _forms(self, messages: list[Message]) -> Iterator[list[Message]]:
        """Yield the ways to show a conversation to a template, until it refuses none."""
        yield parsed_arguments(messages)
        yield messages  # arguments as JSON text, which DeepSeek's templates read
        turns = in_turns(messages, takes_system=self.takes_system_prompts())
        if turns != messages:
            yield parsed_arguments(turns)
        results = in_turns(turns, joins_results=True)
        if results != turns:
            yield parsed_arguments(results)

    def _written(
        self, template: str, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool
    ) -> str:
        shown = [_as_templates_read(message) for message in messages]
        if _wants_parts(template):
            shown = [_in_parts(message) for message in shown]
        given = {"messages": shown, "tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt}
        return _rendered(template, {**self._special_tokens, **self._options, **given})

    def _template_for(self, tools: list[dict[str, Any]] | None) -> str:
        names = ("tool_use", "default") if tools is not None else ("default",)
        template = next((self._templates[name] for name in names if name in self._templates), None)
        if template is None:
            raise ValueError(f"this model's chat templates have no default, only {', '.join(sorted(self._templates))}")
        return template


def _as_templates_read(message: Message) -> Message:
    """Return a message without keys that hold nothing, and with its reasoning under every name templates know."""
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[name] for name in _REASONING if name in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


@lru_cache(maxsize=16)
def _wants_parts(template: str) -> bool:
    """Return whether a template writes contents that are lists of parts, as those of vision models, and no others."""
    text, parts = ({"role": "user", "content": content} for content in (_PROBE, [{"type": "text", "text": _PROBE}]))
    return not _writes_probe(template, [text]) and bool(_writes_probe(template, [parts]))


@lru_cache(maxsize=16)
def _takes_system(template: str) -> bool:
    turns = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "-"}]
    return bool(_writes_probe(template, [_in_parts(turn) for turn in turns] if _wants_parts(template) else turns))


@lru_cache(maxsize=16)
def _takes_environment(template: str) -> bool:
    turns = [{"role": "user", "content": "-"}, {"role": "environment", "content": _PROBE}]
    return bool(_writes_probe(template, turns))


def _has_later_system(messages: list[Message]) -> bool:
    return any(message["role"] == "system" for message in messages[1:])


@lru_cache(maxsize=16)
def _takes_later_system(template: str) -> bool:
    """Return whether a template writes system prompts within a conversation, each in its place."""
    conversation = [
        ("user", "-"),
        ("assistant", "-"),
        ("user", "before"),
        ("system", _PROBE),
        ("assistant", "-"),
        ("user", "-"),
    ]
    turns = [{"role": role, "content": content} for role, content in conversation]
    shown = [_in_parts(turn) for turn in turns] if _wants_parts(template) else turns
    before, probe, _ = (_written_with_probe(template, shown) or "").partition(_PROBE)
    return bool(probe) and "before" in before


@lru_cache(maxsize=16)
def _leaves_out_tools(template: str) -> bool:
    turn = {"role": "user", "content": "-"}
    function = {"name": "f", "description": _PROBE, "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    return _writes_probe(template, [_in_parts(turn) if _wants_parts(template) else turn], tools) is False


def _writes_probe(template: str, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> bool | None:
    """Return whether a template writes the probe; None: it refuses the messages."""
    written = _written_with_probe(template, messages, tools)
    return None if written is None else _PROBE in written


def _written_with_probe(
    template: str, messages: list[Message], tools: list[dict[str, Any]] | None = None
) -> str | None:
    try:
        return _rendered(template, {"messages": messages, "tools": tools, "add_generation_prompt": True})
    except ProcessLimitError:
        raise
    except Exception:  # whatever a template does with what it was not made for
        return None


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


class UntrustedTemplate(str):
    """A template of somebody whom the operator may not know: it is compiled and rendered in a process with limits."""

    __slots__ = ()


_process = LimitedProcess(
    "lmdeploy.templates.rendering", "rendering the chat template", cpu_seconds=2.0, memory_bytes=1 << 30
)


def _rendered(template: str, variables: dict[str, Any]) -> str:
    if isinstance(template, UntrustedTemplate):
        return _limited(template, variables)
    return render(template, variables)


def _limited(template: UntrustedTemplate, variables: dict[str, Any] | None) -> str:
    """Render a template in the process with limits; without variables it is only compiled."""
    content = json.dumps({"template": template, "variables": variables}).encode()
    _, written, _ = _process.request({}, content, max_bytes=_MAX_WRITTEN)
    return written.decode(errors="surrogatepass")


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a template.

    Raises whatever the template raises; with one of `TEMPLATE_ERRORS` the template rejects its variables.
    """
    return _compiled(template).render(variables)


def require_compiled(template: str) -> None:
    """Raise ``ValueError`` if a template cannot be read."""
    try:
        _compiled(template)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: dates.today(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


class _Generation(Extension):
    """``{% generation %}``, which marks the assistant's text for training; what it encloses is written as it is."""

    tags = {"generation"}  # noqa: RUF012 (so Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dict:
    """``dict`` for templates: makes dictionaries, and leads to nothing else of Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace`` for templates: its attributes are no way into Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's: `self` may be an attribute's name
        first, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _reject_private(name)
        Namespace.__init__(first, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _reject_private(name)
        super().__setitem__(name, value)


def _reject_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"an attribute of a namespace must not begin with _, got {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON text with every character as it is; Jinja's own filter writes some for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
