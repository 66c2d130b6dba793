"""Public exception types, and error sentences that several modules share."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

_SHOWN_PROBLEMS = 12


class UnsupportedModelError(ValueError):
    """The checkpoint is whole, but needs something this engine does not have."""


class CheckpointError(ValueError):
    """The checkpoint is missing, truncated, half-written or contradicts itself.

    ``where``: the file or directory at fault. ``problems``: everything wrong with it; the message names all of them in
    one line.
    """

    def __init__(self, where: Path | str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = list(problems)
        shown = "; ".join(self.problems[:_SHOWN_PROBLEMS])
        hidden = len(self.problems) - _SHOWN_PROBLEMS
        super().__init__(f"{where}: {shown}" + (f"; and {hidden} more problems" if hidden > 0 else ""))

    def __reduce__(self) -> tuple[type["CheckpointError"], tuple[Path | str, list[str]]]:
        return CheckpointError, (self.where, self.problems)


def is_panic(error: BaseException) -> bool:
    """Return whether a library's Rust code broke off, by an error that derives from ``BaseException``."""
    return type(error).__name__ == "PanicException"


def nearest_of(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence that refuses a name: the nearest of those there are, or all of them."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def unknown_keyword(name: str, known: Collection[str]) -> str:
    """Return the sentence that refuses a keyword argument, with the nearest of those there are."""
    near = get_close_matches(name, known, n=1)
    return f"unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
