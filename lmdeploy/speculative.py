"""Fields of ``speculative_config``: those of vLLM's ``--speculative-config``, and further ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.fields import field

MAX_DRAFTS = 32
MAX_RUN_LEN = 64
MTP_METHODS = ("mtp", "deepseek_mtp")
EAGLE_METHODS = ("eagle", "eagle3")


@field.documented
@dataclass
class SpeculativeConfig:
    """How tokens are drafted that a step then checks alongside the one that is due."""

    method: str | None = field.string(
        None,
        "Where drafts come from; ngram: from what was said before; draft_model: from there, or from a smaller model; "
        "mtp (deepseek_mtp), eagle, eagle3: from there, or from a head of the model. "
        "Default: draft_model where a model is named, else ngram.",
        choices=("ngram", "draft_model", "mtp", "deepseek_mtp", "eagle", "eagle3"),
    )
    model: str | None = field.string(
        None,
        "The model that drafts, with the same tokenizer, as models are named; default: the model itself. Of eagle and "
        "eagle3: the head.",
    )
    weight_bits: int | None = field.integer(
        None, "Round the drafting model's matrices to this many bits.", choices=(4, 8)
    )
    num_speculative_tokens: int = field.integer(
        16, "Most drafts of a response in a step; fewer are taken where they do not pay.", low=1, high=MAX_DRAFTS
    )
    adaptive: bool = field.boolean(
        True, "Take fewer drafts, or none, where they would not pay; false: as many as are found, for measurements."
    )
    prompt_lookup_min: int = field.integer(
        1, "Tokens that have to repeat before what followed them is drafted.", low=1, high=MAX_RUN_LEN
    )
    prompt_lookup_max: int = field.integer(
        32, "Tokens that are compared; a longer run that repeats counts as no better.", low=1, high=MAX_RUN_LEN
    )
    shared_tokens: int = field.integer(
        65536,
        "Tokens of requests that ended, in which others look too, if prefixes are shared (enable_prefix_caching); "
        "0: none.",
        high=1 << 24,
    )

    def __post_init__(self) -> None:
        is_order_wrong = (
            isinstance(self.prompt_lookup_min, int)
            and isinstance(self.prompt_lookup_max, int)
            and self.prompt_lookup_min > self.prompt_lookup_max
        )
        field.require_valid(
            self,
            [
                f"prompt_lookup_min must not be larger than prompt_lookup_max, got {self.prompt_lookup_min} and "
                f"{self.prompt_lookup_max}"
                if is_order_wrong
                else None,
                f"method {self.method} needs a model: the head's folder or repository"
                if self.method in EAGLE_METHODS and not self.model
                else None,
                f"method {self.method} takes the head of the model's own checkpoint: leave model out"
                if self.method in MTP_METHODS and self.model
                else None,
            ],
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SpeculativeConfig:
        """Return the configuration that a JSON object holds.

        Raises `ValueError` if it holds another field, or a value that is none of a field's.
        """
        return field.from_object(cls, given)


def located(
    given: Mapping[str, Any] | str, locate: Callable[[str], str], locate_head: Callable[[str, str], str]
) -> dict[str, Any] | str:
    """Return an engine's ``speculative_config`` with a path in place of its model's name.

    ``given``: the setting. ``locate``: from a model's name to its engine directory. ``locate_head``: from a method and
    a head's name, ``""`` where the model's checkpoint has it, to the head's engine directory.
    """
    if isinstance(given, str):
        return given
    method, model = given.get("method"), given.get("model") or ""
    if method in MTP_METHODS + EAGLE_METHODS:
        return {**given, "model": locate_head(method, model)}
    return {**given, "model": locate(model)} if model else dict(given)


def speculation_problems(given: object) -> list[str | None]:
    """Return the errors of an engine's ``speculative_config``."""
    if not isinstance(given, Mapping):
        return []
    try:
        SpeculativeConfig.of(given)
    except ValueError as error:
        return [f"speculative_config: {error}"]
    return []
