"""Reasoning delimiters of models, and their detection in a chat template."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lmdeploy.checks import parser_name
from lmdeploy.templates.base import ChatTemplate


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """Tags around a model's reasoning, which comes before its answer."""

    begin: str
    end: str
    before_answer: str = ""  # written between the end of the reasoning and the answer, and no part of it
    before_answer_alone: tuple[str, ...] = ()  # written before an answer without reasoning, and no part of it
    before_call: str = ""  # written between the end of the reasoning and a call
    after_answer: str = ""  # written after an answer, and no part of it
    are_special: bool = False  # the tags are special tokens, which are left out of texts unless they are asked for


# DeepSeek R1 and V3.1, Qwen3, GLM-4.5, MiniMax M2, OLMo 3 and others: their published templates.
THINK = ThinkingTags("<think>", "</think>")
# Hunyuan A13B's published template; vLLM's parser ernie45, and Granite 3.3's published template.
HUNYUAN = replace(THINK, before_answer="<answer>", before_answer_alone=("<answer>",), after_answer="</answer>")
ERNIE45 = replace(THINK, before_answer="<response>", before_answer_alone=("<response>",), after_answer="</response>")
# Magistral and Ministral 3: their published templates.
MAGISTRAL = ThinkingTags("[THINK]", "[/THINK]", are_special=True)
# Gemma 4's and Seed-OSS's published templates.
GEMMA4 = ThinkingTags("<|channel>thought\n", "<channel|>", are_special=True)
SEED_OSS = ThinkingTags("<seed:think>", "</seed:think>", are_special=True)
# Command A Reasoning's published template.
COHERE = ThinkingTags(
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|START_RESPONSE|>",
    ("<|START_RESPONSE|>",),
    after_answer="<|END_RESPONSE|>",
    are_special=True,
)
# Granite 3.2's model card.
GRANITE = ThinkingTags("Here is my thought process:", "Here is my response:")
# gpt-oss: OpenAI's description of harmony.
_FINAL = "<|channel|>final<|message|>"
HARMONY = ThinkingTags(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    f"<|start|>assistant{_FINAL}",
    (_FINAL,),
    before_call="<|start|>assistant",
    are_special=True,
)


@dataclass(frozen=True, slots=True)
class NamedThinking:
    """A named reasoning format."""

    tags: ThinkingTags
    begins: bool = False  # where there is no template at hand: prompts end with the opening tag, and responses lack it
    only_if_requested: bool = False  # where there is no template at hand: only with ``thinking`` or ``enable_thinking``
    in_content: bool = False  # responses keep their reasoning in the content, with both tags


# The names of vLLM's and SGLang's parsers, and some of our own.
_NAMED = {
    "cohere_command3": NamedThinking(COHERE),
    "deepseek_r1": NamedThinking(THINK, begins=True),
    "deepseek_v3": NamedThinking(THINK, begins=True, only_if_requested=True),
    "ernie45": NamedThinking(ERNIE45, begins=True),
    "gemma4": NamedThinking(GEMMA4),
    "glm45": NamedThinking(THINK),
    "glm47": NamedThinking(THINK, begins=True),
    "granite": NamedThinking(GRANITE),
    "hunyuan_a13b": NamedThinking(HUNYUAN),
    "intern-s1": NamedThinking(THINK),
    "kimi_k2": NamedThinking(THINK),
    "minimax_m2": NamedThinking(THINK, begins=True),
    "minimax_m2_append_think": NamedThinking(THINK, begins=True, in_content=True),
    "mistral": NamedThinking(MAGISTRAL),
    "nemotron_v3": NamedThinking(THINK, begins=True),
    "olmo3": NamedThinking(THINK, begins=True),
    "openai_gptoss": NamedThinking(HARMONY),
    "qwen3": NamedThinking(THINK),
    "seed_oss": NamedThinking(SEED_OSS),
    "step3": NamedThinking(THINK, begins=True),
}
_ALIASES = {
    "deepseek_v31": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "deepseek_v4": "deepseek_v3",
    "gpt-oss": "openai_gptoss",
    "hunyuan": "hunyuan_a13b",
    "kimi": "kimi_k2",
    "magistral": "mistral",
    "mimo": "qwen3",
    "minimax": "minimax_m2",
    "qwen-qwq": "deepseek_r1",
    "qwen3-thinking": "deepseek_r1",
}
_NAMED |= {alias: _NAMED[name] for alias, name in _ALIASES.items()}
PARSERS = ("auto", "none", *sorted(_NAMED))
"""Values of ``--reasoning-parser``."""

_ASKED: list[dict[str, Any]] = [{"role": "user", "content": "-"}]
_RETURNED: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "callid000", "type": "function", "function": {"name": "f", "arguments": {}}}],
    },
    {"role": "tool", "content": "-", "tool_call_id": "callid000"},
]


@dataclass(frozen=True)
class Thinking:
    """Where the reasoning of a served model is."""

    tags: ThinkingTags  # around it
    named: NamedThinking | None = None  # says, where there is no template, whether prompts end with the opening tag
    template: ChatTemplate | None = None  # knows whether prompts end so
    end_ids: tuple[int, ...] = ()  # the tokens of `closing`; empty: they are not known

    @property
    def in_content(self) -> bool:
        """Whether responses keep their reasoning in the content."""
        return self.named is not None and self.named.in_content

    @property
    def closing(self) -> str:
        """Text that ends reasoning at its token budget."""
        blank = "" if self.tags.are_special else "\n"
        return f"{blank}{self.tags.end}{self.tags.before_answer or 2 * blank}"

    def begins_inside(self, options: Mapping[str, Any], *, after_tool: bool = False) -> bool:
        """Return whether a response begins with reasoning, its prompt made with these ``chat_template_kwargs``.

        ``after_tool``: the prompt ends with what a tool returned.
        """
        if self.template is not None:
            return _ends_open(self.template, self.tags.begin, json.dumps(options, sort_keys=True), after_tool)
        requested = [options[name] for name in ("thinking", "enable_thinking") if name in options]
        if self.named is None or False in requested:
            return False
        return self.named.begins and (bool(requested) or not self.named.only_if_requested)


def thinking_of(name: str, template: ChatTemplate | None) -> Thinking | None:
    """Return where a model's reasoning is; None: nowhere.

    Raises `ValueError` if there is no such parser; lists them. ``name``: one of `PARSERS`; ``auto``: as the template
    has it. ``template``: the model's, if it is at hand.
    """
    name = parser_name("reasoning_parser", name, PARSERS)
    if name == "none":
        return None
    if name != "auto":
        tags = _NAMED[name].tags
        knows = template is not None and template.mentions(tags.begin.strip())
        return Thinking(tags, _NAMED[name], template if knows else None)
    if template is None:
        return None
    for tags in (HARMONY, MAGISTRAL, GEMMA4, SEED_OSS, COHERE, HUNYUAN, THINK, GRANITE):
        texts = (tags.begin.strip(), tags.end, tags.after_answer)
        if all(template.mentions(text) for text in texts if text):
            return Thinking(tags, template=template)
    return None


@lru_cache(maxsize=64)
def _ends_open(template: ChatTemplate, begin: str, options: str, after_tool: bool) -> bool:
    try:
        messages = [*_ASKED, *_RETURNED] if after_tool else _ASKED
        return template.with_options(json.loads(options)).render(messages).rstrip().endswith(begin.rstrip())
    except ValueError:  # the request itself is refused
        return False
