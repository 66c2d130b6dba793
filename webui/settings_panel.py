"""The panel of settings, folded at the page's right side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gradio as gr

from webui import presets
from webui.settings import LENGTH, PENALTIES, SAMPLING, THINKING, Number, Settings, settings_of

AT_ONCE: dict[str, Any] = {"queue": False, "preprocess": False, "show_progress": "hidden", "api_visibility": "private"}
_STORAGE = "lmdeploy-chat-presets"
_NOT_SHOWN = "model"  # is in the page's head


@dataclass
class SettingsPanel:
    """Its parts."""

    controls: dict[str, Any]  # by name of `Settings`
    preset: Any  # name of the preset; none: the settings are those of no preset

    @property
    def inputs(self) -> list[Any]:
        """Inputs of `settings_from`."""
        return [self.controls[field.name] for field in fields(Settings)]

    @property
    def of_preset(self) -> list[Any]:
        """The controls that a preset sets."""
        return [self.controls[name] for name in presets.NAMES]


def settings_from(values: Sequence[Any]) -> Settings:
    """Return the settings of the controls, whose values are in the order of `SettingsPanel.inputs`."""
    reported = dict(zip((field.name for field in fields(Settings)), values, strict=True))
    words = (line.strip("\r") for line in (reported["stop_words"] or "").split("\n"))
    return settings_of({**reported, "stop_words": [word for word in words if word]})


def updates_for(settings: Settings) -> list[Any]:
    """Return updates that show settings, in the order of `SettingsPanel.inputs`; but for the model."""
    shown = [getattr(settings, field.name) for field in fields(Settings)]
    texts = ["\n".join(value) if isinstance(value, tuple) else "" if value is None else value for value in shown]
    names = [field.name for field in fields(Settings)]
    return [
        gr.skip() if name == _NOT_SHOWN else gr.update(value=value) for name, value in zip(names, texts, strict=True)
    ]


def settings_panel(model: Any, default_of: Callable[[str], Settings]) -> SettingsPanel:
    """Build the panel; call it where it is to be.

    ``default_of``: returns the default settings of a model.
    """
    usual = Settings()
    controls: dict[str, Any] = {_NOT_SHOWN: model}

    def slider(number: Number) -> None:
        controls[number.name] = gr.Slider(
            number.low,
            number.high,
            value=getattr(usual, number.name),
            step=number.step,
            label=number.label,
            info=number.info or None,
            elem_id=number.name.replace("_", "-"),
            buttons=[],
        )

    controls["system_prompt"] = gr.Textbox(
        label="System prompt",
        elem_id="system",
        lines=3,
        max_lines=10,
        placeholder="The model's own",
    )
    saved = gr.BrowserState({}, storage_key=_STORAGE, secret="presets")  # no secret: another browser has other ones
    preset = gr.Radio(list(presets.BUILT_IN), value=presets.DEFAULT, label="Preset", elem_id="preset")
    with gr.Accordion("Sampling", open=False, elem_id="fold-sampling"):
        for number in (*SAMPLING, *PENALTIES):
            slider(number)
        controls["seed"] = gr.Textbox(label="Seed", placeholder="random", elem_id="seed")
        with gr.Row(elem_id="own-presets"):
            name = gr.Textbox(show_label=False, placeholder="Preset name", elem_id="preset-name", max_length=40)
            keep = gr.Button("Save", elem_id="preset-keep", size="sm", min_width=64)
            drop = gr.Button("Delete", elem_id="preset-drop", size="sm", min_width=64, visible=False)
    with gr.Accordion("Length", open=False, elem_id="fold-length"):
        slider(LENGTH)
        controls["stop_words"] = gr.Textbox(
            label="Stop words", placeholder="one per line", elem_id="stop-words", lines=2, max_lines=6
        )
    with gr.Accordion("Reasoning", open=False, elem_id="fold-reasoning"):
        controls["thinking"] = gr.Radio(list(THINKING), value=THINKING[0], label="Thinking", elem_id="thinking")
        controls["thinking_budget"] = gr.Textbox(
            label="Thinking budget", placeholder="tokens; empty: no limit", elem_id="thinking-budget"
        )
    with gr.Accordion("Structured output and tools", open=False, elem_id="fold-form"):
        controls["json_schema"] = gr.Textbox(
            label="JSON schema",
            placeholder='{"type": "object", "properties": {}}',
            elem_id="json-schema",
            elem_classes="code",
            lines=4,
            max_lines=16,
        )
        controls["tools"] = gr.Textbox(
            label="Tools (OpenAI format)",
            placeholder='[{"type": "function", "function": {}}]',
            elem_id="tools",
            elem_classes="code",
            lines=4,
            max_lines=16,
        )

    numbers = [controls[name] for name in presets.NAMES]

    def choices(reported: object, **value: Any) -> Any:
        return gr.update(choices=[*presets.BUILT_IN, *presets.custom_presets(reported)], **value)

    def choose(chosen: str | None, reported: object, name: str | None) -> list[Any]:
        values = presets.values_of(chosen or "", reported, default_of(name or ""))
        is_custom = chosen in presets.custom_presets(reported)
        return [*(values or [gr.skip()] * len(numbers)), gr.update(visible=is_custom)]

    def keep_it(given: str | None, reported: object, *values: Any) -> list[Any]:
        called = (given or "").strip()
        settings = settings_of(dict(zip(presets.NAMES, values, strict=True)))
        try:
            kept = presets.with_preset(reported, called, settings)
        except ValueError as error:
            gr.Warning(f"{error}.")
            return [gr.skip()] * 4
        return [kept, choices(kept, value=called), "", gr.update(visible=True)]

    def drop_it(chosen: str | None, reported: object) -> list[Any]:
        kept = presets.without_preset(reported, chosen or "")
        return [kept, choices(kept, value=None), gr.update(visible=False)]

    preset.input(choose, [preset, saved, model], [*numbers, drop], **AT_ONCE)
    gr.on([name.submit, keep.click], keep_it, [name, saved, *numbers], [saved, preset, name, drop], **AT_ONCE)
    drop.click(drop_it, [preset, saved], [saved, preset, drop], **AT_ONCE)
    saved.change(choices, saved, preset, **AT_ONCE)
    for number in numbers:  # what was changed is no preset any more; the browser alone notices
        number.input(None, None, preset, js="() => null", queue=False)
    return SettingsPanel(controls, preset)
