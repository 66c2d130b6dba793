"""InternLM of all generations, and the text part of vision models built on it."""

from typing import Any

from lmdeploy.templates.calls import Call, Tool, as_json
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.chatml import CHATML, TIGHT_CHATML
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout
from lmdeploy.templates.tool_call_formats.catalogue import INTERNLM2
from lmdeploy.templates.tool_calling import ToolChatTemplate


class InternLM2ChatTemplate(ToolChatTemplate):
    """InternLM2 and later: tools stand in a second system turn, what they return in turns of ``environment``."""

    calls = INTERNLM2

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.meta_instruction or ""}, *messages]
        return [messages[0], {"role": "system", "name": "plugin", "content": as_json(functions)}, *messages[1:]]

    def _turn(self, message: Message) -> str:
        """Return one message with what is around it, and whom it is of or for."""
        turn = super()._turn(message)
        opening = {"system": self.system, "tool": self.tool}.get(message["role"])
        if not opening or message.get("name") not in ("plugin", "interpreter"):
            return turn
        return f"{opening.strip()} name=<|{message['name']}|>\n{turn.removeprefix(opening)}"

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        return self._answer(content + INTERNLM2.write(calls))


_INTERNLM_SYSTEM = (
    "You are an AI assistant whose name is InternLM (书生·浦语).\n"
    "- InternLM (书生·浦语) is a conversational language model that is developed by Shanghai AI Laboratory "
    "(上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n"
    "- InternLM (书生·浦语) can understand and communicate fluently in the language chosen by the user such as "
    "English and 中文."
)
_XCOMPOSER_SYSTEM = (
    "You are an AI assistant whose name is InternLM-XComposer (浦语·灵笔).\n"
    "- InternLM-XComposer (浦语·灵笔) is a multi-modality conversational language model that is developed by "
    "Shanghai AI Laboratory (上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n"
    "- InternLM-XComposer (浦语·灵笔) can understand and communicate fluently in the language chosen by the user such "
    "as English and 中文.\n"
    "- InternLM-XComposer (浦语·灵笔) is capable of comprehending and articulating responses effectively based on the "
    "provided image."
)
INTERNVL2_SYSTEM = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
)
_INTERNVL2_5_SYSTEM = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_INTERNLM2: dict[str, Any] = CHATML | {
    "meta_instruction": _INTERNLM_SYSTEM,
    "tool": "<|im_start|>environment\n",
    "eotool": "<|im_end|>\n",
    "stop_words": ["<|im_end|>", "<|action_end|>"],
}

builtin(
    "internlm",
    {
        "system": "<|System|>:",
        "meta_instruction": _INTERNLM_SYSTEM + "\n",
        "eosys": "\n",
        "user": "<|User|>:",
        "eoh": "\n",
        "assistant": "<|Bot|>:",
        "eoa": "<eoa>",
        "separator": "\n",
        "stop_words": ["<eoa>"],
    },
)
builtin("internlm2", _INTERNLM2, InternLM2ChatTemplate)
builtin("internlm3", _INTERNLM2, InternLM2ChatTemplate)
for _name in ("internlm-xcomposer2", "internlm-xcomposer2d5"):
    builtin(
        _name,
        {
            "system": "[UNUSED_TOKEN_146]system\n",
            "meta_instruction": _XCOMPOSER_SYSTEM,
            "eosys": "[UNUSED_TOKEN_145]\n",
            "user": "[UNUSED_TOKEN_146]user\n",
            "eoh": "[UNUSED_TOKEN_145]\n",
            "assistant": "[UNUSED_TOKEN_146]assistant\n",
            "eoa": "[UNUSED_TOKEN_145]",
            "separator": "\n",
            "stop_words": ["[UNUSED_TOKEN_145]"],
        },
    )
builtin(
    "internvl-internlm2",
    _INTERNLM2,
    InternLM2ChatTemplate,
    meta_instruction="You are an AI assistant whose name is InternLM (书生·浦语).",
)
builtin(
    "internvl2-internlm2",
    TIGHT_CHATML,
    meta_instruction=INTERNVL2_SYSTEM,
    stop_words=["<|im_start|>", "<|im_end|>"],
)
builtin("internvl2_5", CHATML, meta_instruction=_INTERNVL2_5_SYSTEM)
builtin("internvl-zh-hermes2", TIGHT_CHATML, meta_instruction="Answer the questions.")
builtin(
    "internvl-zh",
    {
        "user": "<human>: ",
        "eoh": " ",
        "assistant": "<bot>: ",
        "eoa": "</s>",
        "stop_words": ["</s>"],
        "layout": Layout(model_writes_space=True),
    },
)
