"""Prompts of the offline API in the log at level INFO."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import ChatTemplateConfig, GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine

SHORT = GenerationConfig(max_new_tokens=4, ignore_eos=True)
CONFIG = TurbomindEngineConfig(session_len=512, cache_max_entry_count=64)


def prompts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the prompts in the log."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("prompt: ")]


async def generate(pipe: AsyncEngine, *turns: Any) -> None:
    """Answer the turns of a session."""
    for index, turn in enumerate(turns):
        async for _ in pipe.generate(turn, 7, SHORT, sequence_start=index == 0, sequence_end=False):
            pass


def test_the_rendered_prompt_is_logged_and_rounds_of_a_session_are_numbered(
    default_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = ChatTemplateConfig("chatglm")
    with (
        caplog.at_level(logging.INFO, "lmdeploy"),
        pipeline(
            str(default_model_dir), backend_config=CONFIG, chat_template_config=template, log_level="INFO"
        ) as pipe,
    ):
        session = pipe.chat("one", gen_config=SHORT)
        for text in ("two", "three"):
            session = pipe.chat(text, session=session, gen_config=SHORT)
        pipe.chat("again", gen_config=SHORT)
        first = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        pipe.chat("and", session=pipe.chat(first, gen_config=SHORT), gen_config=SHORT)
        asyncio.run(generate(pipe, first, "and"))
    shown = prompts(caplog)
    assert [re.findall(r"Round (\d)", prompt) for prompt in shown] == [
        ["1"],
        ["2"],
        ["3"],
        ["1"],
        *[["1", "2"], ["3"]] * 2,
    ]
    assert shown[0] == f"prompt: {'[Round 1]' + chr(10) * 2 + '问：one' + chr(10) * 2 + '答：'!r}"


@pytest.mark.parametrize(("level", "length", "shown"), [("INFO", 9, ["prompt: '<|im_star'"]), ("WARNING", None, [])])
def test_no_more_of_a_prompt_is_logged_than_asked_for(
    default_model_dir: Path, caplog: pytest.LogCaptureFixture, level: str, length: int | None, shown: list[str]
) -> None:
    with pipeline(str(default_model_dir), backend_config=CONFIG, log_level=level, max_log_len=length) as pipe:
        pipe("Hi", gen_config=SHORT)
    assert prompts(caplog) == shown
