"""SmolLM3: ChatML with a header that has dates, and a mode that lets it think or not."""

from lmdeploy.templates import dates
from lmdeploy.templates.calls import Call, Tool
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.chatml import CHATML
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.tool_call_formats.catalogue import QWEN
from lmdeploy.templates.tool_calling import ToolChatTemplate

_NAME = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
_THINKING = (
    f"{_NAME} Your role as an assistant involves thoroughly exploring questions through a systematic thinking process "
    "before providing the final precise and accurate solutions. This requires engaging in a comprehensive cycle of "
    "analysis, summarizing, exploration, reassessment, reflection, backtracking, and iteration to develop "
    "well-considered thinking process. Please structure your response into two main sections: Thought and Solution "
    "using the specified format: <think> Thought section </think> Solution section. In the Thought section, detail "
    "your reasoning process in steps. Each step should include detailed considerations such as analysing questions, "
    "summarizing relevant findings, brainstorming new ideas, verifying the accuracy of the current steps, refining any "
    "errors, and revisiting previous steps. In the Solution section, based on various attempts, explorations, and "
    "reflections from the Thought section, systematically present the final solution that you deem correct. The "
    "Solution section should be logical, accurate, and concise and detail necessary steps needed to reach the "
    "conclusion."
)
_NO_THOUGHT = "<think>\n\n</think>\n"
_NO_THINK, _THINK, _OVERRIDE = "/no_think", "/think", "/system_override"


class SmolLM3ChatTemplate(ToolChatTemplate):
    """SmolLM3. A system prompt may hold ``/no_think``, and ``/system_override``, which leaves the header out.

    As published, the header is closed only if it lists tools.
    """

    calls = QWEN

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        prompt = super()._render(messages, tools, add_generation_prompt)
        is_silent = self.capability == "chat" and _NO_THINK in self._system(messages)[0]
        return prompt + _NO_THOUGHT if add_generation_prompt and is_silent else prompt

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        listed = "\n".join(str({"type": "function", "function": function}) for function in functions)
        declared = (
            "### Tools\n\nYou may call one or more functions to assist with the user query.\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n\n"
            f"<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}'
            "\n</tool_call>\n\n<|im_end|>\n"
        )
        system, others = self._system(messages)
        return [{"role": "system", "content": system, "declared": declared}, *others]

    def _arranged(self, messages: list[Message]) -> list[Message]:
        system, others = self._system(messages)
        thought = _NO_THOUGHT if _NO_THINK in system else ""
        header = {"role": "system", "content": _header(system, messages[0].get("declared", ""))}
        conversation = [message for message in others if message["role"] != "system"]
        return [header, *(_with_reasoning(message, thought) for message in conversation)]

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        return self._answer("\n".join(filter(None, [content, QWEN.write(calls)])))


def _header(system: str, tools: str) -> str:
    instructions = system.replace(_NO_THINK, "").replace(_THINK, "").rstrip()
    if _OVERRIDE in system:
        return instructions.replace(_OVERRIDE, "").rstrip() + "<|im_end|>\n"
    mode, usual = (_NO_THINK, _NAME) if _NO_THINK in system else (_THINK, _THINKING)
    return (
        f"## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: {dates.today('%d %B %Y')}\n"
        f"Reasoning Mode: {mode}\n\n## Custom Instructions\n\n{instructions or usual}\n\n{tools}"
    )


def _with_reasoning(message: Message, thought: str) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": thought + message["content"].lstrip("\n")}


builtin("smollm3", CHATML, SmolLM3ChatTemplate, eosys="", tool="<|im_start|>user\n", eotool="<|im_end|>\n")
