"""The chat template interface: from a conversation to a prompt."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.templates.conversation import Message, read_messages, read_tools
from lmdeploy.templates.generic_tools import description, in_generic_format, with_description
from lmdeploy.templates.tool_call_formats import GENERIC, HeadedArguments, ToolCallFormat

if TYPE_CHECKING:
    from typing_extensions import Self

_LAST_ANSWER = "<the response the engine holds>"
_GOES_ON = "<the response continues here>"


def _marked(message: Message) -> Message:
    """Return a message whose content is to be continued, with a tag where."""
    content = message.get("content")
    if message["role"] != "assistant" or message.get("tool_calls") or not isinstance(content, str) or not content:
        raise ValueError("the last message must be the assistant's, with content and without calls, to be continued")
    return {**message, "content": content + _GOES_ON}


class ChatTemplate(ABC):
    """From a conversation to a prompt.

    Attributes
    ----------
    stop_words
        Strings that end the model's turn, alongside its end-of-sequence tokens.
    add_bos
        Whether the tokenizer puts its own bos before the prompt (``Tokenizer.encode(prompt, add_bos=...)``): not when
        the template writes everything itself.
    """

    stop_words: list[str]
    add_bos: bool = True

    @property
    def end_of_turn(self) -> Sequence[str]:
        """Texts that may close the assistant's turn and that the model itself generates."""
        return ()

    def with_options(self, options: Mapping[str, Any]) -> "Self":
        """Return the template with ``chat_template_kwargs``: variables it may read. Names it does not know do nothing.

        Raises
        ------
        ValueError
            A name is that of something else the template reads.
        """
        return self

    def mentions(self, text: str) -> bool:
        """Return whether the template knows of a text that its model writes."""
        return False

    def lists_tools(self) -> bool:
        """Return whether the template has a place for tools; else they are described in words."""
        return False

    def writes_calls(self) -> bool:
        """Return whether it has one for calls and what they return, even where no tools are given."""
        return self.lists_tools()

    @property
    def native_format(self) -> HeadedArguments | None:
        """How calls are asked to be written where there is a place for them but none for tools; None: generically."""
        return None

    @property
    def tool_call_format(self) -> ToolCallFormat | None:
        """How the model writes calls; None: it is not known."""
        return None if self.lists_tools() else self.native_format or GENERIC

    def takes_environment(self) -> bool:
        """Return whether it writes InternLM's role ``environment``; else such a message is a tool's response."""
        return False

    def takes_system_prompts(self) -> bool:
        """Return whether it writes system prompts."""
        return True

    @property
    def default_system_prompt(self) -> str:
        """The system prompt of conversations that bring none, where it is known."""
        return ""

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt of a conversation.

        Parameters
        ----------
        messages
            OpenAI messages, see :func:`lmdeploy.templates.conversation.read_messages`.
        tools
            OpenAI tool descriptions. Where the template has no place for them the system prompt has them, and
            calls and results are written in a format that many models know (``generic_tools``).
        add_generation_prompt
            End with the opening of the assistant's turn.
        continue_final_message
            End with the last message's content, which is the beginning of a response: nothing closes it, and no other
            turn is opened.

        Raises
        ------
        ValueError
            If the conversation is malformed, or the template has no place for something in it.
        """
        read = read_messages(messages)
        if continue_final_message:
            read[-1] = _marked(read[-1])
            rendered = self._render(*self._with_tools_declared(read, read_tools(tools)), False)
            begun, found, _ = rendered.rpartition(_GOES_ON)
            if not found:
                raise ValueError("the last message cannot be continued: the chat template leaves its content out")
            return begun
        return self._render(*self._with_tools_declared(read, read_tools(tools)), add_generation_prompt)

    def render_continuation(self, messages: list[Message], is_turn_closed: bool = True, prior_rounds: int = 1) -> str:
        """Return the prompt after the assistant's last turn, for an engine that holds the conversation up to there.

        Parameters
        ----------
        messages
            The new messages alone.
        is_turn_closed
            Whether the engine holds the end of that turn, as it does when the model ended it; not when the response was
            cut off.
        prior_rounds
            How many rounds of user and assistant the engine holds, for formats that number them.

        Raises
        ------
        ValueError
            As ``render``.
        """
        beginning = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}] * (prior_rounds - 1)
        beginning += [{"role": "user", "content": "-"}, {"role": "assistant", "content": _LAST_ANSWER}]
        following, _ = self._with_tools_declared(read_messages(messages), None)
        whole = self._render([*beginning, *following], None, True)
        continuation = whole.partition(_LAST_ANSWER)[2]
        end = max((end for end in self.end_of_turn if continuation.startswith(end)), key=len, default="")
        return continuation.removeprefix(end) if is_turn_closed else continuation

    def get_prompt(self, prompt: str, sequence_start: bool = True) -> str:
        """Return the prompt of a user's text, as LMDeploy's own templates do; else of one in a later turn."""
        messages = [{"role": "user", "content": prompt}]
        # Not what a class may have made of these, which may call this.
        return (
            ChatTemplate.render(self, messages) if sequence_start else ChatTemplate.render_continuation(self, messages)
        )

    def messages2prompt(
        self,
        messages: str | list[Message],
        sequence_start: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """Return the prompt of a conversation, as LMDeploy's own templates do: an assistant's last message goes on.

        Parameters
        ----------
        messages
            As ``render``; a text is the user's.
        sequence_start
            False: the messages follow a conversation, whose last turn the assistant had.
        tools
            As ``render``.
        options
            As ``with_options``.
        """
        if isinstance(messages, str):
            return self.get_prompt(messages, sequence_start)
        template = self.with_options(options) if options else self
        if not sequence_start:
            return ChatTemplate.render_continuation(template, messages)
        continues = bool(messages) and messages[-1]["role"] == "assistant" and bool(messages[-1].get("content"))
        return ChatTemplate.render(template, messages, tools, continue_final_message=continues)

    def _with_tools_declared(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[Message], list[dict[str, Any]] | None]:
        """Return messages and tools as this template can write them."""
        if any(message["role"] == "environment" for message in messages) and not self.takes_environment():
            messages = [{**m, "role": "tool"} if m["role"] == "environment" else m for m in messages]
        has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if self.lists_tools() if tools else (not has_calls or self.writes_calls()):
            return messages, tools
        native = self.native_format if tools else None
        shown = messages if native else in_generic_format(messages)
        if tools:
            tool_prompt = description(tools, native or GENERIC)
            shown = with_description(shown, tool_prompt, self.default_system_prompt, self.takes_system_prompts())
        return shown, None

    @abstractmethod
    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        """Return the prompt of a conversation whose contents are plain strings."""
