"""How the page looks. Names only fonts that machines have: the page asks no other host for anything."""

from typing import Any

import gradio as gr

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = """
.gradio-container { width: 100% !important; }
.gradio-container main { width: 100%; max-width: 1240px; margin: 0 auto; padding: 14px 22px !important; }
footer { display: none !important; }

#header { padding: 2px 2px 0; }
#header .title { display: flex; align-items: baseline; gap: 14px; flex-wrap: wrap; }
#header h1 { margin: 0; font-size: 1.3rem; font-weight: 650; letter-spacing: -0.01em; }
#header .status { font-size: 0.84rem; color: var(--body-text-color-subdued); white-space: nowrap; }
#header .status::before {
  content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 7px;
}
#header .ready::before { background: #16a34a; }
#header .away::before { background: #dc2626; }
#header .away { color: #dc2626; }
#header .waiting::before { background: #cbd5e1; }

#chat { border: 1px solid var(--border-color-primary); border-radius: 16px; box-shadow: none; }
#chat .message-wrap { padding: 6px 10px; }
#chat .message { font-size: 0.96rem; line-height: 1.55; }
#chat .bot.message { background: transparent; border-color: transparent; box-shadow: none; }
#chat .bot-row { max-width: 100%; }
#chat .top-panel, #chat .message-buttons-right { display: none; }
#chat .message-buttons-left { margin: -8px 0 0 10px; opacity: 0.55; }
#chat small { color: var(--body-text-color-subdued); font-size: 0.78rem; font-variant-numeric: tabular-nums; }
#chat .notice { color: #dc2626; }

#question { padding: 0; border: 1px solid var(--border-color-primary) !important; border-radius: 14px !important; }
.form:has(> #question) { background: transparent; border: 0; box-shadow: none; }
#question .full-container { padding: 0 8px; border: 0; }
#question .input-wrapper { padding: 3px 0; }
#question .input-row { align-items: center; }
#question .textarea-wrapper { display: flex; }
#question textarea { font-size: 0.96rem; border: 0; box-shadow: none; padding: 9px 8px; }
#send, #stop { min-width: 96px; border-radius: 14px; font-size: 0.96rem; box-shadow: none; }

#stop { border: 1px solid #fca5a5; color: #dc2626; background: transparent; }

#settings { gap: 10px; min-width: 250px; }
#settings .form { border: 1px solid var(--border-color-primary); border-radius: 16px; box-shadow: none; }
#settings .block { padding: 12px 16px; }
#settings .reset-button { display: none; }
#settings input[type="number"] { border: 0; box-shadow: none; text-align: right; padding-right: 0; width: 72px; }
#settings button { box-shadow: none; border: 1px solid var(--border-color-primary); border-radius: 12px; }
"""


def theme() -> Any:
    """Return the Gradio theme."""
    base = gr.themes.Soft(
        primary_hue="emerald", secondary_hue="emerald", neutral_hue="slate", radius_size="lg", font=SANS, font_mono=MONO
    )
    return base.set(
        block_title_background_fill="transparent",
        block_title_background_fill_dark="transparent",
        block_title_padding="0",
        block_title_text_color="*body_text_color",
        block_title_text_color_dark="*body_text_color",
        block_title_text_size="*text_sm",
        block_title_text_weight="550",
        slider_color="*primary_500",
    )
