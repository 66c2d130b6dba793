"""The engine answers from a checkpoint in Meta's layout what Meta's formulas say."""

from pathlib import Path

import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.published_tokenizers import train_pieces
from tests.unit.test_meta_llama import logits_by_metas_formulas, random_weights, write

TEXT, COUNT = "Call me Ishmael.", 12


def test_greedy_tokens_are_those_of_metas_formulas(tmp_path: Path) -> None:
    directory, weights = tmp_path / "llama-2-tiny", random_weights(512)
    directory.mkdir()
    train_pieces(directory)
    write(directory, weights, 2)
    config = TurbomindEngineConfig(dtype="float32", model_format="meta_llama", session_len=64, cache_max_entry_count=8)
    with pipeline(str(directory), backend_config=config) as pipe:
        response = pipe(TEXT, GenerationConfig(max_new_tokens=COUNT, ignore_eos=True), do_preprocess=False)
        ids = pipe.tokenizer.encode(TEXT)
    expected = list(ids)
    for _ in range(COUNT):
        expected.append(int(torch.argmax(logits_by_metas_formulas(weights, expected)[-1])))
    assert response.token_ids == expected[len(ids) :]
