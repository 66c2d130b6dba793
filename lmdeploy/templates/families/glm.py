"""ChatGLM 2 and 3, GLM-4 and CodeGeeX4. Their tokenizers begin every prompt with ``[gMASK]`` and ``sop``."""

from dataclasses import replace
from typing import Any

from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import BaseChatTemplate, Layout
from lmdeploy.templates.tool_call_formats.catalogue import GLM4
from lmdeploy.templates.tool_calling import ToolChatTemplate


class ChatGLM2ChatTemplate(BaseChatTemplate):
    """ChatGLM2: rounds are numbered."""

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged = [dict(message) for message in super()._arranged(messages)]
        questions = [message for message in arranged if message["role"] == "user"]
        for number, message in enumerate(questions, 1):
            message["round"] = number
        return arranged

    def _turn(self, message: Message) -> str:
        turn = super()._turn(message)
        return f"[Round {message['round']}]\n\n{turn}" if "round" in message else turn


class GLM4ChatTemplate(ToolChatTemplate):
    """GLM-4: tools stand in a system turn of their own, a call in a response that begins with the function's name."""

    calls = GLM4

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        listed = "".join(
            f"\n\n## {function['name']}\n\n{as_json(function, 4)}\n在调用上述函数时，请使用 Json 格式表示调用的参数。"
            for function in functions
        )
        system = (
            "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱AI训练的语言模型 GLM-4 模型开发的，"
            f"你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具{listed}"
        )
        return [{"role": "system", "content": system}, *messages]

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        opening = f"{self.generation_prompt}\n{content}" if content else ""
        return opening + replace(GLM4, opening=self.generation_prompt).write(calls)


_GLM4: dict[str, Any] = {
    "system": "<|system|>\n",
    "user": "<|user|>\n",
    "assistant": "<|assistant|>\n",
    "tool": "<|observation|>\n",
    "stop_words": ["<|user|>", "<|endoftext|>", "<|observation|>"],
    "layout": Layout(model_writes_space=True),
}

builtin(
    "chatglm",
    {"eosys": "\n\n", "user": "问：", "eoh": "\n\n", "assistant": "答：", "separator": "\n\n"},
    ChatGLM2ChatTemplate,
)
builtin(
    "chatglm3",
    {
        "system": "<|system|>\n ",
        "user": "<|user|>\n ",
        "assistant": "<|assistant|>\n ",
        "tool": "<|observation|>\n ",
        "stop_words": ["<|user|>", "<|observation|>"],
        "layout": Layout(model_writes_space=True),
    },
)
builtin("glm4", _GLM4, GLM4ChatTemplate)
builtin(
    "codegeex4",
    _GLM4,
    tool=None,
    meta_instruction="你是一位智能编程助手，你叫CodeGeeX。你会为用户回答关于编程、代码、计算机方面的任何问题，"
    "并提供格式规范、可以执行、准确安全的代码，并在必要时提供详细的解释。",
    layout=Layout(
        model_writes_space=True,
        infilling="<|user|>\n<|code_suffix|>{suffix}<|code_prefix|>{prefix}<|code_middle|><|assistant|>\n",
    ),
)
