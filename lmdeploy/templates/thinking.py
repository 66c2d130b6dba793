"""How models mark what they think before they answer, and which marks a chat template knows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lmdeploy.templates.base import ChatTemplate


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What stands around a model's thoughts, which come before its answer.

    Attributes
    ----------
    begin, end : str
        The marks.
    before_answer : str
        Written between the end of the thoughts and the answer, and no part of it.
    before_answer_alone : tuple of str
        Written before an answer without thoughts, and no part of it.
    are_special : bool
        The marks are special tokens, which are left out of texts unless they are asked for.
    """

    begin: str
    end: str
    before_answer: str = ""
    before_answer_alone: tuple[str, ...] = ()
    are_special: bool = False


THINK = ThinkingMarks("<think>", "</think>")
MAGISTRAL = ThinkingMarks("[THINK]", "[/THINK]", are_special=True)
GRANITE = ThinkingMarks("Here is my thought process:", "Here is my response:")
_FINAL = "<|channel|>final<|message|>"
HARMONY = ThinkingMarks(
    "<|channel|>analysis<|message|>", "<|end|>", f"<|start|>assistant{_FINAL}", (_FINAL,), are_special=True
)

_NAMED = {
    "deepseek-r1": (THINK, True),
    "qwen-qwq": (THINK, True),
    "qwen3": (THINK, False),
    "glm45": (THINK, False),
    "intern-s1": (THINK, False),
    "granite": (GRANITE, False),
    "magistral": (MAGISTRAL, False),
    "gpt-oss": (HARMONY, False),
}
PARSERS = ("auto", "none", *_NAMED)
"""What ``--reasoning-parser`` may be."""

_ASKED = [{"role": "user", "content": "-"}]


@dataclass(frozen=True)
class Thinking:
    """Where the thoughts of a served model are.

    Attributes
    ----------
    marks : ThinkingMarks
        Around them.
    begins : bool
        Where there is no template: prompts end with the opening mark, and answers lack it.
    template : ChatTemplate, optional
        Knows whether prompts end so.
    end_ids : tuple of int
        The tokens of `closing`; empty: they are not known.
    """

    marks: ThinkingMarks
    begins: bool = False
    template: ChatTemplate | None = None
    end_ids: tuple[int, ...] = ()

    @property
    def closing(self) -> str:
        """What thoughts are ended with that have taken long enough."""
        blank = "" if self.marks.are_special else "\n"
        return f"{blank}{self.marks.end}{self.marks.before_answer or 2 * blank}"

    def begins_inside(self, options: Mapping[str, Any]) -> bool:
        """Return whether an answer begins with thoughts, its prompt made with these ``chat_template_kwargs``."""
        if self.template is None:
            return self.begins and options.get("enable_thinking") is not False
        return _ends_open(self.template, self.marks.begin, json.dumps(options, sort_keys=True))


def thinking_of(name: str, template: ChatTemplate | None) -> Thinking | None:
    """Return where a model's thoughts are; None: nowhere.

    Parameters
    ----------
    name
        One of `PARSERS`; ``auto``: as the template has it.
    template
        The model's, if it is at hand.
    """
    if name == "none":
        return None
    if name != "auto":
        marks, begins = _NAMED[name]
        return Thinking(marks, begins)
    if template is None:
        return None
    for marks in (HARMONY, MAGISTRAL, THINK, GRANITE):
        if template.mentions(marks.begin) and template.mentions(marks.end):
            return Thinking(marks, template=template)
    return None


@lru_cache(maxsize=64)
def _ends_open(template: ChatTemplate, begin: str, options: str) -> bool:
    try:
        return template.with_options(json.loads(options)).render(_ASKED).rstrip().endswith(begin)
    except ValueError:  # the request itself is refused
        return False
