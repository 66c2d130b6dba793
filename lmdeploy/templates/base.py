"""The chat template interface, the template made of plain strings, and the registry of templates by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from lmdeploy.templates.conversation import Message, read_messages

Capability = Literal["completion", "infilling", "chat", "python"]


class ChatTemplate(ABC):
    """From a conversation to a prompt.

    Attributes
    ----------
    stop_words
        Strings that end the model's turn, beside its end-of-sequence tokens.
    add_bos
        Whether the tokenizer puts its own bos before the prompt (``Tokenizer.encode(prompt, add_bos=...)``): not when
        the template writes everything itself.
    """

    stop_words: list[str]
    add_bos: bool = True

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the prompt of a conversation.

        Parameters
        ----------
        messages
            OpenAI messages, see :func:`lmdeploy.templates.conversation.read_messages`.
        tools
            OpenAI tool descriptions.
        add_generation_prompt
            End with the opening of the assistant's turn.

        Raises
        ------
        ValueError
            If the conversation is malformed, or the template has no place for something in it.
        """
        return self._render(read_messages(messages), tools or None, add_generation_prompt)

    @abstractmethod
    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        """Return the prompt of a conversation whose contents are plain strings."""


class BaseChatTemplate(ChatTemplate):
    """A template of plain strings around each turn.

    ``{system}{meta_instruction}{eosys}{user}...{eoh}{assistant}...{eoa}{separator}{user}...``

    Parameters
    ----------
    system, eosys, meta_instruction
        Around the system prompt, and the one used when the conversation brings none; None: then there is none.
    user, eoh
        Around what the user says.
    assistant, eoa
        Around what the assistant says.
    tool, eotool
        Around a tool's answer; None: the template has no such turn.
    separator
        After the assistant's turn.
    capability
        ``chat``, or ``completion``: contents are written as they are.
    stop_words
        Strings that end the assistant's turn.
    """

    def __init__(
        self,
        system: str = "",
        meta_instruction: str | None = None,
        eosys: str = "",
        user: str = "",
        eoh: str = "",
        assistant: str = "",
        eoa: str = "",
        separator: str = "",
        tool: str | None = None,
        eotool: str | None = None,
        capability: Capability = "chat",
        stop_words: Sequence[str] | None = None,
    ) -> None:
        if capability not in {"chat", "completion"}:
            raise ValueError(f"capability must be 'chat' or 'completion', got {capability!r}")
        self.system = system
        self.meta_instruction = meta_instruction
        self.eosys = eosys
        self.user = user
        self.eoh = eoh
        self.assistant = assistant
        self.eoa = eoa
        self.separator = separator
        self.tool = tool
        self.eotool = eotool
        self.capability = capability
        self.stop_words = list(stop_words or [])

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        if tools:
            raise ValueError("tools are not supported by this chat template")
        if self.capability == "completion":
            return "".join(message["content"] for message in messages)
        if messages[0]["role"] != "system" and self.meta_instruction is not None:
            messages = [{"role": "system", "content": self.meta_instruction}, *messages]
        prompt = "".join(self.turn(message["role"], message["content"]) for message in messages)
        return prompt + self.generation_prompt if add_generation_prompt else prompt

    @property
    def generation_prompt(self) -> str:
        """The opening of the assistant's turn."""
        return self.assistant

    def turn(self, role: str, content: str) -> str:
        """Return one turn with what stands around it."""
        if role == "tool":
            if self.tool is None:
                raise ValueError("messages with role tool are not supported by this chat template")
            return f"{self.tool}{content}{self.eotool or ''}"
        before, after = {
            "system": (self.system, self.eosys),
            "user": (self.user, self.eoh),
            "assistant": (self.assistant, self.eoa + self.separator),
        }[role]
        return f"{before}{content}{after}"


TemplateFactory = Callable[..., ChatTemplate]
_Registered = TypeVar("_Registered", bound=TemplateFactory)


class Registry:
    """Chat templates by name. A template is a class, or a function, that takes ``BaseChatTemplate``'s arguments."""

    def __init__(self) -> None:
        self._factories: dict[str, TemplateFactory] = {}

    def register_module(self, name: str | Sequence[str]) -> Callable[[_Registered], _Registered]:
        """Return a decorator that registers a template under one or several names; the last one registered wins."""

        def register(factory: _Registered) -> _Registered:
            for one in [name] if isinstance(name, str) else name:
                self._factories[one] = factory
            return factory

        return register

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        return sorted(self._factories)

    def __contains__(self, name: object) -> bool:
        return name in self._factories

    def get(self, name: str) -> TemplateFactory:
        """Return the template registered as ``name``.

        Raises
        ------
        ValueError
            If there is none; lists the known names.
        """
        if name not in self._factories:
            raise ValueError(f"chat template {name!r} is unknown; known: {', '.join(self.names())}")
        return self._factories[name]


MODELS = Registry()
