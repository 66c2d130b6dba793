"""Names of parsers, whose words vLLM joins with ``_`` and SGLang with ``-`` or not at all."""

from collections.abc import Iterable


def parser_name(option: str, text: str, names: Iterable[str]) -> str:
    """Return the one of `names` that `text` is, however its words are joined.

    Raises
    ------
    ValueError
        None is; lists them.
    """
    known = {_plain(name): name for name in names}
    try:
        return known[_plain(text)]
    except KeyError:
        raise ValueError(f"{option} must be one of {', '.join(known.values())}, got {text!r}") from None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
