"""Plots as SVG, drawn here: the page loads nothing for them, and they follow its colours."""

from __future__ import annotations

import html
from collections.abc import Sequence

WIDTH, HEIGHT = 320.0, 84.0
_TOP = 4.0  # room above the highest value


def plot(values: Sequence[float | None], room: int, highest: float = 0.0) -> str:
    """Return values over time as an area, the latest at the right.

    Parameters
    ----------
    values
        None where nothing is known.
    room
        Number of values that fill the width.
    highest
        At least so much is shown.
    """
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    top = max([highest, *(value for _, value in known)]) or 1.0
    step = WIDTH / max(room - 1, 1)
    left = WIDTH - step * (len(values) - 1)
    points = [(left + step * index, HEIGHT - (HEIGHT - _TOP) * value / top) for index, value in known]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{points[0][0]:.1f},{HEIGHT} {line} {points[-1][0]:.1f},{HEIGHT}" if points else ""
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{area}"/><polyline points="{line}"/></svg>'
    )


def card(title: str, now: str, drawn: str, note: str = "") -> str:
    """Return a plot with its title, its latest value, and what else there is to say."""
    texts = [html.escape(text) for text in (title, now, note)]
    return f'<section><h3>{texts[0]}</h3><p class="now">{texts[1]}</p>{drawn}<p class="note">{texts[2]}</p></section>'
