"""DeepSeek: chat (LLM, MoE, V2), VL, Coder, V2.5 and later."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import BaseChatTemplate, Layout
from lmdeploy.templates.tool_call_formats.catalogue import DEEPSEEK_V3, DEEPSEEK_V4
from lmdeploy.templates.tool_call_formats.headed import HeadedArguments
from lmdeploy.templates.tool_calling import ToolChatTemplate

if TYPE_CHECKING:
    from typing_extensions import Self

_END = "<｜end▁of▁sentence｜>"
_REASONING = ("<think>", "</think>")


class DeepSeekV3ChatTemplate(BaseChatTemplate):
    """DeepSeek V2.5, V3 and R1: responses are written without their reasoning.

    Calls and what tools returned have their own tags, from which the response continues without another opening. The
    published template has no place for tools.
    """

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the tags around reasoning."""
        return text in _REASONING

    def writes_calls(self) -> bool:
        """Return that it does."""
        return self.capability == "chat"

    @property
    def native_format(self) -> HeadedArguments | None:
        """How it writes calls."""
        return DEEPSEEK_V3 if self.capability == "chat" else None

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        prompt = super()._render(messages, tools, add_generation_prompt)
        goes_on = add_generation_prompt and messages[-1]["role"] == "tool"
        return prompt.removesuffix(self.generation_prompt) if goes_on else prompt

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged: list[Message] = []
        for message in super()._arranged(messages):
            follows_tool = bool(arranged) and arranged[-1]["role"] == "tool"
            if message["role"] == "tool":
                output = f"<｜tool▁output▁begin｜>{message['content']}<｜tool▁output▁end｜>"
                outputs = arranged.pop()["content"] if follows_tool else ""
                message = {"role": "tool", "content": outputs + output}
            elif message["role"] == "assistant":
                response = message["content"].rpartition("</think>")[2]
                message = {**message, "content": response, "goes_on": follows_tool}
            arranged.append(message)
        return arranged

    def _turn(self, message: Message) -> str:
        if message["role"] == "tool":
            return f"<｜tool▁outputs▁begin｜>{message['content']}<｜tool▁outputs▁end｜>"
        if message["role"] != "assistant":
            return super()._turn(message)
        opening = "" if message["goes_on"] else self.assistant
        return f"{opening}{message['content']}{DEEPSEEK_V3.write(message.get('tool_calls') or ())}{self.eoa}"


_V4_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{tools}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


class DeepSeekV4ChatTemplate(ToolChatTemplate):
    """DeepSeek-V4, whose encoding is published as code; as there, it thinks only if asked to.

    Responses begin with what ends their reasoning. With ``thinking`` or ``enable_thinking`` the model reasons first;
    earlier responses are then written with their reasoning where there are tools. What tools return is the user's.
    """

    calls = DEEPSEEK_V4
    add_bos = False
    _thinks = False

    def with_options(self, options: Mapping[str, Any]) -> "Self":
        """Return the template with or without reasoning."""
        other = copy.copy(self)
        other._thinks = bool(options.get("thinking", options.get("enable_thinking", False)))
        return other

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the tags around reasoning."""
        return text in _REASONING

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        if self._thinks and (tools or any(message["role"] == "tool" for message in messages)):
            messages = [{**message, "is_whole": True} for message in messages]
        prompt = super()._render(messages, tools, add_generation_prompt)
        if self.capability != "chat":
            return prompt
        opening = _REASONING[not self._thinks] if add_generation_prompt else ""
        return f"<｜begin▁of▁sentence｜>{prompt}{opening}"

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        system, others = self._system(messages)
        listed = _V4_TOOLS.format(tools="\n".join(map(as_json, functions)))
        return [{"role": "system", "content": "\n\n".join(filter(None, [system, listed]))}, *others]

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged: list[Message] = []
        for message in super()._arranged(messages):
            if message["role"] == "tool":
                message = {"role": "user", "content": f"<tool_result>{message['content']}</tool_result>"}
            if message["role"] == "user" and arranged and arranged[-1]["role"] == "user":
                message = {"role": "user", "content": f"{arranged.pop()['content']}\n\n{message['content']}"}
            arranged.append(message)
        return arranged

    def _turn(self, message: Message) -> str:
        if message["role"] != "assistant":
            return super()._turn(message)
        reasoning, _, content = message["content"].rpartition(_REASONING[1])
        calls = message.get("tool_calls")
        turn = self._call_turn(content, calls) if calls else self._answer(content)
        if not message.get("is_whole"):
            return turn
        reasoning = message.get("reasoning_content") or reasoning.removeprefix(_REASONING[0])
        return f"{self.assistant}{_REASONING[0]}{reasoning}{turn.removeprefix(self.assistant)}"

    def _answer(self, text: str) -> str:
        return super()._answer(_REASONING[1] + text)

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        return self._answer(f"{content}\n\n{DEEPSEEK_V4.write(calls)}")


_DEEPSEEK: dict[str, Any] = {
    "eosys": "\n\n",
    "user": "User: ",
    "eoh": "\n\n",
    "assistant": "Assistant: ",
    "eoa": _END,
    "stop_words": [_END],
    "layout": Layout(model_writes_space=True),
}

builtin("deepseek", _DEEPSEEK)
builtin(
    "deepseek-vl",
    _DEEPSEEK,
    meta_instruction="You are a helpful language and vision assistant. You are able to understand the visual content "
    "that the user provides, and assist the user with a variety of tasks using natural language.",
)
_TAGGED = {"user": "<｜User｜>", "assistant": "<｜Assistant｜>", "eoa": _END, "stop_words": [_END]}
builtin("deepseek-v3", _TAGGED, DeepSeekV3ChatTemplate)
builtin("deepseek-v4", _TAGGED, DeepSeekV4ChatTemplate)
builtin(
    "deepseek-coder",
    {
        "meta_instruction": "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
        "Deepseek Company, and you only answer questions related to computer science. For politically sensitive "
        "questions, security and privacy issues, and other non-computer science questions, you will refuse to answer\n",
        "user": "### Instruction:\n",
        "eoh": "\n",
        "assistant": "### Response:\n",
        "eoa": "\n<|EOT|>",
        "separator": "\n",
        "stop_words": ["<|EOT|>"],
        "layout": Layout(infilling="<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>"),
    },
)
