"""Built-in templates of the models that were trained to call tools, with tools and calls written as in their training.

Sources: the chat formats that the authors of InternLM2, Llama 3.1 and Qwen2.5 published.
"""

import functools
import json
from abc import abstractmethod
from typing import Any

from lmdeploy.templates.base import MODELS, BaseChatTemplate
from lmdeploy.templates.builtin import INTERNLM2, LLAMA3, QWEN
from lmdeploy.templates.conversation import Message

Tool = dict[str, Any]


def parsed_arguments(messages: list[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as objects, as templates read them, not as JSON text."""
    return [
        {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


class ToolChatTemplate(BaseChatTemplate):
    """A template of plain strings that also writes tools, calls and what they return."""

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        messages = [self._plain(message) for message in self._merged(parsed_arguments(messages))]
        if tools:
            messages = self._with_tools(messages, [tool.get("function", tool) for tool in tools])
        return super()._render(messages, None, add_generation_prompt)

    def _plain(self, message: Message) -> Message:
        """Return a message whose calls are part of its text."""
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        content = message["content"]
        return {**message, "content": self._calls(content, calls) if calls else content}

    def _merged(self, messages: list[Message]) -> list[Message]:
        """Return messages with those merged that make one turn."""
        return messages

    def _system(self, messages: list[Message]) -> tuple[str, list[Message]]:
        """Return the system prompt, and the other messages."""
        if messages[0]["role"] == "system":
            return messages[0]["content"], messages[1:]
        return self.meta_instruction or "", messages

    @abstractmethod
    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        """Return the conversation with what the model may call."""

    @abstractmethod
    def _calls(self, content: str, calls: list[dict[str, Any]]) -> str:
        """Return the text of an answer that made calls."""


class Qwen25ChatTemplate(ToolChatTemplate):
    """Qwen2.5."""

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        system, others = self._system(messages)
        listed = "\n".join(_json({"type": "function", "function": function}) for function in functions)
        text = (
            f"{system}\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}'
            "\n</tool_call>"
        )
        return [{"role": "system", "content": text}, *others]

    def _calls(self, content: str, calls: list[dict[str, Any]]) -> str:
        written = [
            f"<tool_call>\n{_json({'name': call['name'], 'arguments': call['arguments']})}\n</tool_call>"
            for call in calls
        ]
        return "\n".join(filter(None, [content, *written]))

    def _merged(self, messages: list[Message]) -> list[Message]:
        merged: list[Message] = []
        for message in messages:
            if message["role"] != "tool":
                merged.append(message)
                continue
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if merged and merged[-1].get("is_response"):
                merged[-1]["content"] += f"\n{text}"
            else:
                merged.append({"role": "user", "content": text, "is_response": True})
        return merged


class InternLM2ChatTemplate(ToolChatTemplate):
    """InternLM2 and 2.5."""

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        system, others = self._system(messages)
        listed = f"{self.eosys}<|im_start|>system name=<|plugin|>\n{_json(functions)}"
        return [{"role": "system", "content": system + listed}, *others]

    def _calls(self, content: str, calls: list[dict[str, Any]]) -> str:
        objects = (_json({"name": call["name"], "parameters": call["arguments"]}) for call in calls)
        return content + "".join(f"<|action_start|><|plugin|>\n{call}<|action_end|>" for call in objects)


class Llama31ChatTemplate(ToolChatTemplate):
    """Llama 3.1: tools stand in the first message of the user, what they return in turns of the role ``ipython``."""

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        listed = "\n\n".join(
            json.dumps({"type": "function", "function": function}, indent=4, ensure_ascii=False)
            for function in functions
        )
        asked = (
            "Given the following functions, please respond with a JSON for a function call with its proper arguments "
            'that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": '
            f"dictionary of argument name and its value}}. Do not use variables.\n\n{listed}\n\n"
        )
        system, others = self._system(messages)
        if not others or others[0]["role"] != "user":
            raise ValueError("messages must begin with a user message, after the system message, when there are tools")
        first = {**others[0], "content": asked + others[0]["content"]}
        told = f"Environment: ipython\n\n{system}" if system else "Environment: ipython"
        return [{"role": "system", "content": told}, first, *others[1:]]

    def _calls(self, content: str, calls: list[dict[str, Any]]) -> str:
        written = (_json({"name": call["name"], "parameters": call["arguments"]}) for call in calls)
        return content + "; ".join(written)


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call  # the model's own words, which were no JSON
    return {**call, "function": {**function, "arguments": arguments}}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_QWEN25 = QWEN | {"meta_instruction": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}
MODELS.register_module("internlm2")(functools.partial(InternLM2ChatTemplate, **INTERNLM2))
MODELS.register_module("llama3_1")(functools.partial(Llama31ChatTemplate, **LLAMA3))
MODELS.register_module("qwen2d5")(functools.partial(Qwen25ChatTemplate, **_QWEN25))
