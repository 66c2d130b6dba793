"""Phi-3's first configs call longrope `su`, which `transformers` no longer reads."""

import json
from pathlib import Path

from transformers import Phi3Config, Phi3ForCausalLM

from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.checkpoint import describe
from tests.support.tiny_vision_models import TEXT, save_random
from tools.bench.random_model import write_tokenizer

FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}


def test_longrope_by_its_first_name_is_longrope(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **FACTORS}
    config = Phi3Config(**TEXT, original_max_position_embeddings=64, rope_parameters=rope)
    directory = save_random(Phi3ForCausalLM, config, tmp_path / "model", 0)
    today = describe(directory, "model").spec
    assert today.ropes[0].stretch is not None
    written = json.loads((directory / "config.json").read_text())
    del written["rope_parameters"]
    written |= {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
    written |= {"rope_scaling": {"type": "su", **FACTORS}}
    (directory / "config.json").write_text(json.dumps(written))
    assert describe(directory, "model").spec == today
    write_tokenizer(directory)
    del written["original_max_position_embeddings"]  # the class has one
    (directory / "config.json").write_text(json.dumps(written))
    assert describe(directory, "model").spec.ropes[0].stretch is not None
    assert Tokenizer(str(directory)).encode("a")  # it is no fault of the tokenizer that `transformers` has no `su`
