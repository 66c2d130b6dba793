"""Fill-in-the-middle prompts: the text before the gap and after it, between tags of its own.

The form was trained by moving middles of texts to their end (Bavarian et al., 2022, arXiv 2207.14255); the tags are
those of the models' cards.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.strings import BaseChatTemplate

_FORMS = (
    "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",  # Qwen2.5-Coder, CodeGemma
    "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",  # StarCoder, Granite
    "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",  # DeepSeek-Coder
    "[SUFFIX]{suffix}[PREFIX]{prefix}",  # Codestral
)


@dataclass(frozen=True, slots=True)
class Infilling:
    """The prompt for a missing middle."""

    form: str  # with ``{prefix}`` and ``{suffix}``
    stop_words: tuple[str, ...] = ()  # what ends the middle, alongside the model's own ends

    def prompt(self, prefix: str, suffix: str) -> str:
        """Return the prompt."""
        return self.form.format(prefix=prefix, suffix=suffix)


def infilling_of(template: ChatTemplate, added_tokens: Collection[str]) -> Infilling | None:
    """Return how a model is asked, as its template says, or the tokens it has next to its words; None: it cannot be."""
    layout = template.layout if isinstance(template, BaseChatTemplate) else None
    if layout is not None and layout.infilling is not None:
        return Infilling(layout.infilling, layout.infilling_stop_words)
    return next((Infilling(form) for form in _FORMS if all(token in added_tokens for token in _tokens(form))), None)


def _tokens(form: str) -> list[str]:
    return [token for token in form.replace("{suffix}", "{prefix}").split("{prefix}") if token]
