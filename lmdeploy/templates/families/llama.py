"""Llama 2, 3, 3.1, 3.2 and Code Llama."""

from dataclasses import replace
from typing import Any

from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout
from lmdeploy.templates.tool_call_formats.catalogue import LLAMA31
from lmdeploy.templates.tool_calling import ToolChatTemplate


class Llama31ChatTemplate(ToolChatTemplate):
    """Llama 3.1 and 3.2: tools stand in the first message of the user, what they return in turns of ``ipython``.

    A system turn is always there, and has dates. The published template allows any date; this is its default, as a
    date that changes would change the beginning of every prompt.
    """

    calls = LLAMA31

    _DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged = super()._arranged(messages)
        if arranged[0]["role"] != "system":
            arranged = [{"role": "system", "content": ""}, *arranged]
        environment = "Environment: ipython\n" if arranged[0].get("has_tools") else ""
        system = {**arranged[0], "content": environment + self._DATES + arranged[0]["content"]}
        return [system, *arranged[1:]]

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        listed = "".join(f"{as_json({'type': 'function', 'function': function}, 4)}\n\n" for function in functions)
        instructions = (
            "Given the following functions, please respond with a JSON for a function call with its proper arguments "
            'that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": '
            f"dictionary of argument name and its value}}.Do not use variables.\n\n{listed}"
        )
        system, others = self._system(messages)
        if not others or others[0]["role"] != "user":
            raise ValueError("messages must begin with a user message, after the system message, when there are tools")
        first = {**others[0], "content": instructions + others[0]["content"].strip()}
        return [{"role": "system", "content": system, "has_tools": True}, first, *others[1:]]

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        return self._answer(content + LLAMA31.write(calls))


_LLAMA2: dict[str, Any] = {
    "system": "<<SYS>>\n",
    "eosys": "\n<</SYS>>\n\n",
    "user": "<s>[INST] ",
    "eoh": " [/INST]",
    "assistant": " ",
    "eoa": " </s>",
    "stop_words": ["</s>"],
}
_LLAMA3: dict[str, Any] = {
    "system": "<|start_header_id|>system<|end_header_id|>\n\n",
    "eosys": "<|eot_id|>",
    "user": "<|start_header_id|>user<|end_header_id|>\n\n",
    "eoh": "<|eot_id|>",
    "assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "eoa": "<|eot_id|>",
    "stop_words": ["<|eot_id|>", "<|end_of_text|>"],
    "layout": Layout(strips=True),
}
_LLAMA31: dict[str, Any] = _LLAMA3 | {
    "tool": "<|start_header_id|>ipython<|end_header_id|>\n\n",
    "eotool": "<|eot_id|>",
    "stop_words": ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
}
_LLAMA2_LAYOUT = Layout(system_in_first_user_turn=True, strips=True, model_writes_space=True)
_INFILLING = replace(_LLAMA2_LAYOUT, infilling="<PRE> {prefix} <SUF>{suffix} <MID>", infilling_stop_words=("<EOT>",))

builtin("llama2", _LLAMA2, layout=_LLAMA2_LAYOUT)
builtin("codellama", _LLAMA2, layout=_INFILLING)
builtin("llama3", _LLAMA3)
builtin("llama3_1", _LLAMA31, Llama31ChatTemplate)
builtin("llama3_2", _LLAMA31, Llama31ChatTemplate)
