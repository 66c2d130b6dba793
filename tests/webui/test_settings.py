"""The settings that a browser reports, and presets of its own, without a page."""

import pytest

from webui.presets import BUILT_IN, DEFAULT, custom_presets, values_of, with_preset, without_preset
from webui.settings import NUMBERS, Settings, settings_of


@pytest.mark.parametrize(
    "reported", [None, [], "x", 7, {"temperature": "hot", "seed": -1, "tools": 5, "stop_words": "x"}]
)
def test_what_cannot_be_a_setting_has_its_default(reported: object) -> None:
    assert settings_of(reported) == Settings()


def test_numbers_stay_within_their_sliders() -> None:
    for name, number in NUMBERS.items():
        assert getattr(settings_of({name: 1e9}), name) == number.high
        assert getattr(settings_of({name: -1e9}), name) == number.low
        assert type(getattr(settings_of({name: 1.0}), name)) is type(getattr(Settings(), name))


def test_settings_come_back_as_they_were_reported() -> None:
    from webui.settings_panel import settings_from  # imports gradio, which takes seconds

    settings = Settings(
        "Be brief.", "pirate", 0.1, 0.5, 3, 0.1, 9, 1.1, 0.5, -0.5, 7, ("END", " "), "{}", "on", 5, "[]"
    )
    assert settings_of(settings.to_json()) == settings
    assert Settings().to_json() == {}
    assert settings_from([*list(vars(settings).values())[:11], "END\n ", "{}", "on", "5", "[]"]) == settings


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[]", "must be a JSON object")])
def test_a_schema_that_is_none_is_reported(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = Settings(json_schema=text).response_format


def test_presets_of_ones_own_are_kept_alongside_those_of_everybody() -> None:
    kept = with_preset({}, " Dry ", Settings(temperature=0.05, max_new_tokens=3))
    assert list(custom_presets(kept)) == ["Dry"]
    usual = values_of(DEFAULT, {}, Settings()) or []
    assert values_of("Dry", kept, Settings()) == [0.05, *usual[1:]]
    assert without_preset(kept, "Dry") == {}
    for name in ("", "  ", *BUILT_IN):
        with pytest.raises(ValueError, match="a name that no built-in preset has"):
            with_preset(kept, name, Settings())
    assert values_of("Nobody's", kept, Settings()) is None


def test_what_a_browser_reports_of_presets_is_not_trusted() -> None:
    assert custom_presets({DEFAULT: {"temperature": 2}, "": {}, "x" * 99: {"top_k": 1e99}}) == {
        "x" * 40: settings_of({"top_k": 200})
    }
    assert custom_presets("nothing") == {}
