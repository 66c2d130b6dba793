"""The default model's GGUF files alongside llama.cpp itself, which reads the same bytes.

``make peers`` builds llama.cpp and writes the files; where it has not, these are skipped by name. llama.cpp rounds
activations to 8 bits in groups of 32, as this engine does, and adds in another order; with 16-bit weights it computes
in half precision. The numbers of the default model's logits spread by about 3.
"""

from pathlib import Path

import pytest
import torch

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from tests.support.llama_cpp import logits_of_llama_cpp
from tools.bench.peers.places import GGUF_TYPES, gguf, why_missing

TEXT = (
    "The lighthouse stood at the end of the pier. Every evening its keeper climbed 212 steps, lit the lamp and wrote "
    "down which ships had passed: three from Lisbon, one from Oslo, and a small yacht whose name nobody could read."
)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return Tokenizer(str(default_model_dir())).encode(TEXT)


@pytest.fixture(params=sorted(GGUF_TYPES))
def file(request: pytest.FixtureRequest) -> Path:
    if reason := why_missing("llama.cpp", default_model_dir(), request.param):
        pytest.skip(reason)
    return gguf(default_model_dir(), request.param)


@pytest.fixture
def reference(file: Path, tokens: list[int], tmp_path: Path) -> torch.Tensor:
    return logits_of_llama_cpp(file, tmp_path / "logits.npy", tokens)


def test_logits_are_those_of_llama_cpp(file: Path, reference: torch.Tensor, tokens: list[int]) -> None:
    with pipeline(str(file), backend_config=TurbomindEngineConfig(cache_max_entry_count=64)) as model:
        (native,) = model.get_logits([tokens])
    native, reference = (x.float() - x.float().mean(-1, keepdim=True) for x in (torch.as_tensor(native), reference))
    error = (native - reference).pow(2).mean().sqrt() / reference.pow(2).mean().sqrt()
    kl = torch.nn.functional.kl_div(
        native.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="none"
    )
    agreement = (native.argmax(-1) == reference.argmax(-1)).float().mean()
    print(f"{file.name}: error {error:.4f}, KL {kl.sum(-1).mean():.2e}, first choices {agreement:.2f}")
    assert error < 0.05
    assert kl.sum(-1).mean() < 0.02
    assert agreement > 0.9
