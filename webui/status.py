"""The tab that shows how busy the server is."""

from __future__ import annotations

from collections.abc import Sequence

from webui.metrics import SAMPLES, Watch
from webui.plots import card, plot

LOOK_SECONDS = 1.5
NONE = '<p class="none">This server tells no figures at <code>/metrics</code>.</p>'


async def status_html(watch: Watch) -> str:
    """Ask for the server's figures, and return them as they are shown."""
    if not await watch.look():
        return NONE
    cards = [
        _card("Requests answered now", watch.values("running"), "{:,.0f}", highest=4),
        _card("Requests in the queue", watch.values("waiting"), "{:,.0f}", highest=4),
        _card("Tokens written", watch.rates("generated"), "{:,.1f} /s", highest=10, note=_total(watch, "generated")),
        _card("Tokens of prompts", watch.rates("prompt"), "{:,.1f} /s", highest=10, note=_total(watch, "prompt")),
        _card("Cache in use", watch.values("cache"), "{:.1%}", highest=1, note=_blocks(watch)),
        _card("Found in the cache", _shares(watch), "{:.1%}", highest=1, note="of the tokens of prompts so far"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(title: str, values: Sequence[float | None], form: str, highest: float, note: str = "") -> str:
    latest = values[-1] if values else None
    return card(title, "–" if latest is None else form.format(latest), plot(values, SAMPLES, highest), note)


def _total(watch: Watch, figure: str) -> str:
    total = watch.values(figure)[-1]
    return "" if total is None else f"{total:,.0f} since the start"


def _blocks(watch: Watch) -> str:
    used, all_there_are = watch.values("blocks_used")[-1], watch.values("blocks")[-1]
    return "" if used is None or all_there_are is None else f"{used:,.0f} of {all_there_are:,.0f} blocks"


def _shares(watch: Watch) -> list[float | None]:
    pairs = zip(watch.values("matched"), watch.values("sought"), strict=True)
    return [matched / sought if matched is not None and sought else None for matched, sought in pairs]
