"""Invalid combinations of engine settings."""

import json
from pathlib import Path

import pytest

import lmdeploy._turbomind as _turbomind
from lmdeploy import TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.tiny_models import make_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("settings"), max_position_embeddings=2048)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sesion_len": 64}, "the engine has no setting sesion_len; did you mean session_len?"),
        ({"session_len": 1}, "session_len must be >= 2, got 1"),
        ({"quant_policy": 5}, "quant_policy must be one of 0, 4, 8, got 5"),
        ({"dtype": "float8"}, "dtype must be one of auto, float32, float16, bfloat16, got float8"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false, got 1"),
        ({"tp": 1.5}, "tp must be a whole number, got 1.5"),
        ({"cache_max_entry_count": 0}, "cache_max_entry_count must be > 0"),
    ],
)
def test_a_bad_setting_is_refused_by_name(model: Path, settings: dict[str, object], message: str) -> None:
    directory = str(resolve(str(model)).path)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        _turbomind.Engine(directory, json.dumps(settings))


def test_without_a_session_length_it_is_the_models_own(model: Path) -> None:
    engine = Engine(str(model), TurbomindEngineConfig(dtype="float32"))
    try:
        assert engine.session_len == 2048
    finally:
        engine.close()


def test_a_session_length_the_cache_cannot_hold_is_shortened_with_a_word(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TurbomindEngineConfig(dtype="float32", session_len=1024, cache_max_entry_count=10)
    engine = Engine(str(model), config)
    try:
        assert engine.session_len == 640
    finally:
        engine.close()
    assert "session_len is 640 instead of 1024: the cache holds 10 blocks of 64 tokens" in caplog.text
