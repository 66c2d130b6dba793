"""Status tab, with plots as SVG: they load nothing, and follow the page's colours."""

from __future__ import annotations

import html
from collections.abc import Sequence

from webui.metrics import SAMPLES, Watch

POLL_SECONDS = 1.5
NONE = '<p class="none">This server reports no metrics at <code>/metrics</code>.</p>'


async def status_html(watch: Watch) -> str:
    """Ask for the server's metrics, and return them as they are shown."""
    if not await watch.look():
        return NONE
    cards = [
        _card("Running requests", watch.values("running"), "{:,.0f}", highest=4),
        _card("Waiting requests", watch.values("waiting"), "{:,.0f}", highest=4),
        _card(
            "Generation throughput",
            watch.rates("generated"),
            "{:,.1f} tokens/s",
            highest=10,
            note=_total(watch, "generated"),
        ),
        _card("Prompt throughput", watch.rates("prompt"), "{:,.1f} tokens/s", highest=10, note=_total(watch, "prompt")),
        _card("KV cache usage", watch.values("cache"), "{:.1%}", highest=1, note=_blocks(watch)),
        _card("Prefix cache hit rate", _shares(watch), "{:.1%}", highest=1, note="of prompt tokens since the start"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(title: str, values: Sequence[float | None], form: str, highest: float, note: str = "") -> str:
    latest = values[-1] if values else None
    return card(title, "–" if latest is None else form.format(latest), plot(values, SAMPLES, highest), note)


def _total(watch: Watch, metric: str) -> str:
    total = watch.values(metric)[-1]
    return "" if total is None else f"{total:,.0f} since the start"


def _blocks(watch: Watch) -> str:
    used, all_there_are = watch.values("blocks_used")[-1], watch.values("blocks")[-1]
    return "" if used is None or all_there_are is None else f"{used:,.0f} of {all_there_are:,.0f} blocks"


def _shares(watch: Watch) -> list[float | None]:
    pairs = zip(watch.values("hits"), watch.values("queried"), strict=True)
    return [hits / queried if hits is not None and queried else None for hits, queried in pairs]


WIDTH, HEIGHT = 320.0, 84.0
_TOP = 4.0  # room above the highest value


def plot(values: Sequence[float | None], room: int, highest: float = 0.0) -> str:
    """Return values over time as an area, the latest at the right.

    ``values``: None where nothing is known. ``room``: number of values that fill the width. ``highest``: at least so
    much is shown.
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
