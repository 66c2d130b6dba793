"""Theme of the page. Names only fonts that machines have: the page asks no other host for anything."""

from pathlib import Path
from typing import Any

import gradio as gr

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def theme() -> Any:
    """Return the Gradio theme."""
    base = gr.themes.Soft(
        primary_hue="emerald", secondary_hue="emerald", neutral_hue="slate", radius_size="lg", font=SANS, font_mono=MONO
    )
    return base.set(
        body_text_color_subdued="*neutral_600",  # contrasts of at least 4.5 (WCAG 2.1, 1.4.3)
        block_info_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_300",
        block_title_background_fill="transparent",
        block_title_background_fill_dark="transparent",
        block_title_padding="0",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_title_text_size="*text_sm",
        block_title_text_weight="550",
        slider_color="*primary_500",
    )
