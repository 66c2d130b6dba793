"""The default model, which a small trained projector lets see, names the colour it is shown, served end to end."""

import re
from pathlib import Path

import openai
import pytest

from openai_gateway.settings import Settings
from tests.support.colour_model import COLOURS, coloured, make_colour_model
from tests.support.gateways import running_gateway
from tests.support.images import data_url
from tests.support.servers import running_triton

pytestmark = pytest.mark.e2e

NOT_TRAINED_ON = 1000  # seed


def test_the_response_is_the_colour_in_the_image(tmp_path: Path, default_model_dir: Path) -> None:
    model = make_colour_model(tmp_path / "colours", default_model_dir)
    with (
        running_triton(model, device="cpu", session_len=512, cache_max_entry_count=64) as triton,
        running_gateway(Settings(triton_address=triton.grpc_address, model_name="colours")) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):

        def named(colour: str) -> str | None:
            shown = {"type": "image_url", "image_url": {"url": data_url(coloured(colour, NOT_TRAINED_ON))}}
            question = {"type": "text", "text": "Name the colour."}
            response = client.chat.completions.create(
                model="colours",
                messages=[{"role": "user", "content": [shown, question]}],  # type: ignore[typeddict-item, list-item]
                max_tokens=16,
                temperature=0,
            )
            found = re.search("|".join(COLOURS), response.choices[0].message.content or "")
            return None if found is None else found[0]

        assert {colour: named(colour) for colour in COLOURS} == {colour: colour for colour in COLOURS}
