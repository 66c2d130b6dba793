"""Sampling presets: those that everybody has, and those that a reader keeps in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webui.settings import PENALTIES, SAMPLING, Settings, settings_of

NAMES = tuple(number.name for number in (*SAMPLING, *PENALTIES))
"""The settings that a preset has."""

BUILT_IN: dict[str, Settings] = {
    "Default": Settings(),
    "Precise": Settings(temperature=0.2, top_p=0.9, top_k=20),
    "Creative": Settings(temperature=1.1, top_p=0.98, top_k=100, min_p=0.02, presence_penalty=0.2),
}
DEFAULT = "Default"
"""The model's own, where the server reports them (`values_of`)."""
_MAX = 20  # own ones
_MAX_NAME_LEN = 40


def custom_presets(reported: object) -> dict[str, Settings]:
    """Return the presets that a browser reports; what cannot be one is left out."""
    if not isinstance(reported, Mapping):
        return {}
    names = [name for name in reported if isinstance(name, str) and name.strip() and name not in BUILT_IN][:_MAX]
    return {name[:_MAX_NAME_LEN]: settings_of(reported[name]) for name in names}


def with_preset(presets: object, name: str, settings: Settings) -> dict[str, Any]:
    """Return the browser's presets once one of that name is added, or replaced.

    Raises `ValueError` if the name is empty or one of those that everybody has, or there are too many; the text is for
    the reader.
    """
    kept = {preset: _reported(its) for preset, its in custom_presets(presets).items()}
    name = name.strip()[:_MAX_NAME_LEN]
    if not name or name in BUILT_IN:
        raise ValueError("A preset needs a name that no built-in preset has")
    if name not in kept and len(kept) >= _MAX:
        raise ValueError(f"There are {_MAX} presets of your own already; delete one first")
    return {**kept, name: _reported(settings)}


def without_preset(presets: object, name: str) -> dict[str, Any]:
    """Return the browser's presets once one is deleted."""
    return {preset: _reported(its) for preset, its in custom_presets(presets).items() if preset != name}


def values_of(name: str, presets: object, default: Settings) -> list[Any] | None:
    """Return the values of `NAMES` of a preset; None: there is none of that name. `default` is the model's."""
    preset = {**custom_presets(presets), **BUILT_IN, DEFAULT: default}.get(name)
    return None if preset is None else [getattr(preset, name) for name in NAMES]


def _reported(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in NAMES}
