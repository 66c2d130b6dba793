"""gpt-oss: OpenAI's harmony format, in which a response has channels: ``analysis``, ``commentary`` and ``final``."""

from lmdeploy.templates import dates
from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.thinking import HARMONY
from lmdeploy.templates.tool_call_formats.catalogue import GPT_OSS
from lmdeploy.templates.tool_calling import ToolChatTemplate
from lmdeploy.templates.typescript import namespace_of

_ANSWER = "<|start|>assistant"
_RESULT = "<|channel|>commentary<|message|>"


class GptOssChatTemplate(ToolChatTemplate):
    """gpt-oss. The model chooses the channel, so a prompt ends before it.

    The ``developer`` has the system prompt of a conversation and its tools. What was thought of earlier responses
    is left out, but for that before calls whose results have not been answered yet.
    """

    calls = GPT_OSS

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the tags around reasoning."""
        return text in (HARMONY.begin, HARMONY.end)

    @property
    def generation_prompt(self) -> str:
        """The opening of the assistant's turn."""
        return _ANSWER

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        system, others = self._system(messages)
        return [{"role": "system", "content": system, "declared": namespace_of("functions", functions)}, *others]

    def _arranged(self, messages: list[Message]) -> list[Message]:
        system, others = self._system(messages)
        header: Message = {"role": "system", "content": _header(system, messages[0].get("declared", ""))}
        turns = [message for message in others if message["role"] != "system"]
        responses = [i for i, message in enumerate(turns) if message["role"] == "assistant" and not _calls(message)]
        last_response = max(responses, default=-1)
        kept = [{**message, "is_answered": i <= last_response} for i, message in enumerate(turns)]
        return [header, *_with_named_results(kept)]

    def _turn(self, message: Message) -> str:
        calls = _calls(message)
        if not calls:
            return super()._turn(message)
        thought = "" if message["is_answered"] else message["content"] or message.get("thinking") or ""
        return self._call_turn(thought, calls)

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        analysis = f"{_ANSWER}<|channel|>analysis<|message|>{content}<|end|>" if content else ""
        return analysis + GPT_OSS.write(calls)


def _calls(message: Message) -> list[Call]:
    return message.get("tool_calls") or []


def _header(system: str, tools: str) -> str:
    calls = "\nCalls to these tools must go to the commentary channel: 'functions'." if tools else ""
    developer = (f"# Instructions\n\n{system}\n\n" if system else "") + (f"# Tools\n\n{tools}" if tools else "")
    return (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        f"Knowledge cutoff: 2024-06\nCurrent date: {dates.today('%Y-%m-%d')}\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message."
        f"{calls}<|end|>" + (f"<|start|>developer<|message|>{developer}<|end|>" if developer else "")
    )


def _with_named_results(messages: list[Message]) -> list[Message]:
    """Return the messages with the name of the function in what it returned."""
    names: dict[str, str] = {}
    latest = ""
    named: list[Message] = []
    for message in messages:
        for call in _calls(message):
            latest = call["function"]["name"]
            names[call.get("id", "")] = latest
        if message["role"] == "tool":
            name = names.get(message.get("tool_call_id", "")) or message.get("name") or latest
            if not name:
                raise ValueError(
                    "a message with role tool must follow the call it answers, or report the function's name"
                )
            message = {**message, "content": f"functions.{name} to=assistant{_RESULT}{as_json(message['content'])}"}
        named.append(message)
    return named


builtin(
    "gpt-oss",
    {
        "user": "<|start|>user<|message|>",
        "eoh": "<|end|>",
        "assistant": f"{_ANSWER}<|channel|>final<|message|>",
        "eoa": "<|end|>",
        "tool": "<|start|>",
        "eotool": "<|end|>",
        "stop_words": ["<|return|>", "<|call|>"],
    },
    GptOssChatTemplate,
)
