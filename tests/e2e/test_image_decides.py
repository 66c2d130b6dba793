"""The default model, which a small trained projector lets see, names the colour it is shown, served end to end."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from openai_gateway.settings import Settings
from tests.support.gateways import running_gateway
from tests.support.images import data_url
from tests.support.servers import running_triton

COLOURS = {"red": (220, 30, 30), "green": (30, 160, 40), "blue": (30, 50, 210), "yellow": (235, 220, 40)}
_SIDE = 28
_WIDTH = 32  # of the tower
_TOKEN = "<image>"
_RENAMED = "<jupyter_script>"  # a token that no text has, which becomes the image's
_EXAMPLES = 24  # images of each colour


def coloured(name: str, seed: int) -> Image.Image:
    """Return an image of one colour, in a shade of its own and with noise."""
    random = np.random.default_rng([seed, *map(ord, name)])
    shade = np.array(COLOURS[name]) * random.uniform(0.75, 1.1) + random.uniform(-15, 15, 3)
    noise = random.normal(0, 12, (40, 40, 3))
    return Image.fromarray(np.clip(shade + noise, 0, 255).astype(np.uint8))


def make_colour_model(directory: Path, base: Path) -> Path:
    """Make the checkpoint, of the Llama checkpoint ``base`` with one file of tied weights."""
    import torch
    from safetensors.torch import save_file
    from transformers import CLIPImageProcessorPil, LlavaConfig, LlavaForConditionalGeneration

    directory.mkdir()
    token_id = _write_tokenizer(directory, base)
    text = json.loads((base / "config.json").read_text())
    sides = {"height": _SIDE, "width": _SIDE}
    processor = CLIPImageProcessorPil(size={"shortest_edge": _SIDE}, crop_size=sides)
    processor.save_pretrained(directory)
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": _WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": _SIDE, "patch_size": 14, "projection_dim": 16,
        },
        text_config=text,
        image_token_index=token_id,
    )  # fmt: skip
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(directory)
    config.text_config.num_hidden_layers, config.text_config.vocab_size = 0, 1
    config.text_config.pad_token_id = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(config).float()
    _train(model, processor, _name_embeddings(base))
    seeing = {name: value for name, value in model.state_dict().items() if "language_model" not in name}
    seeing = {name: value.contiguous() for name, value in seeing.items() if name != "lm_head.weight"}
    save_file(seeing, directory / "seeing.safetensors")
    (directory / "text.safetensors").symlink_to(base / "model.safetensors")
    files = dict.fromkeys(seeing, "seeing.safetensors") | dict.fromkeys(_tensors(base), "text.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


def _write_tokenizer(directory: Path, base: Path) -> int:
    """Copy the tokenizer, with a token for images; return its id."""
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (directory / name).write_text((base / name).read_text())
    content = (base / "tokenizer.json").read_text().replace(json.dumps(_RENAMED), json.dumps(_TOKEN))
    (directory / "tokenizer.json").write_text(content)
    return next(int(t["id"]) for t in json.loads(content)["added_tokens"] if t["content"] == _TOKEN)


def _tensors(base: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(base / "model.safetensors", framework="pt") as content:
        return list(content.keys())


def _name_embeddings(base: Path) -> dict[str, Any]:
    """Return the embedding of each colour's name, which is one token."""
    from safetensors import safe_open
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    with safe_open(base / "model.safetensors", framework="pt") as content:
        rows = content.get_slice("model.embed_tokens.weight")
        found = {}
        for name in COLOURS:
            (token,) = tokenizer.encode(f" {name}").ids
            found[name] = rows[token : token + 1].float()[0]
    return found


def _train(model: Any, processor: Any, targets: dict[str, Any]) -> None:
    """Fit the projector's second layer to the targets by ridge regression; the first one stays random."""
    import torch

    projector = model.model.multi_modal_projector
    torch.nn.init.normal_(projector.linear_1.weight, std=1.0)
    inputs, outputs = [], []
    with torch.inference_mode():
        for name, target in targets.items():
            for seed in range(_EXAMPLES):
                pixels = processor(images=coloured(name, seed), return_tensors="pt")["pixel_values"]
                seen = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-2][0, 1:]
                inputs.append(projector.act(projector.linear_1(seen)))
                outputs.append(target.expand(len(seen), -1))
        x, y = torch.cat(inputs).double(), torch.cat(outputs).double()
        x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
        solution = torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(x.shape[1], dtype=torch.float64), x.T @ y)
        projector.linear_2.weight.copy_(solution[:-1].T.float())
        projector.linear_2.bias.copy_(solution[-1].float())


NOT_TRAINED_ON = 1000  # seed


@pytest.mark.thorough  # test_images.py compares served responses with those of the offline pipeline
def test_the_response_is_the_colour_in_the_image(tmp_path: Path, default_model_dir: Path) -> None:
    model = make_colour_model(tmp_path / "colours", default_model_dir)
    with (
        running_triton(model, device="cpu", session_len=512, cache_max_entry_count=64) as triton,
        running_gateway(Settings(triton_address=triton.grpc_address, model_name="colours")) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
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
