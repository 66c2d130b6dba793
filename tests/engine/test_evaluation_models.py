"""Pipelines as models of evaluation harnesses, alongside `transformers` on the same weights."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmdeploy.evaluation.__main__ import main as command_line
from lmdeploy.evaluation.opencompass import PipelineModel
from lmdeploy.evaluation.scored_model import ScoredModel, windows
from lmdeploy.messages import GenerationConfig
from tests.support.tiny_models import make_tiny_llama

PAIRS = [("The capital of France is", " Paris."), ("One, two,", " three, four"), ("A ", "blank"), ("", "alone")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("evaluated") / "tiny")


class Reference:
    """Sums of log-probabilities, computed by `transformers` over the whole text at once."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def log_probabilities(self, ids: list[int]) -> torch.Tensor:
        """Return those of ``ids[1:]``."""
        with torch.no_grad():
            rows = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, :-1], -1)
        return rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    def score(self, context: str, continuation: str) -> float:
        whole = self.tokenizer(context + continuation)["input_ids"]
        if not context:
            whole = [self.tokenizer.bos_token_id, *whole]
        length = len(whole) - (len(self.tokenizer(context.rstrip())["input_ids"]) if context else 1)
        return self.log_probabilities(whole)[-length:].sum().item()


@pytest.fixture(scope="module")
def reference(tiny: Path) -> Reference:
    return Reference(tiny)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[ScoredModel]:
    loaded = ScoredModel(str(tiny), {"dtype": "float32", "session_len": 64, "cache_max_entry_count": 32})
    yield loaded
    loaded.close()


def test_continuations_are_scored_as_transformers_scores_them(model: ScoredModel, reference: Reference) -> None:
    scores = model.score([model.pair(*pair) for pair in PAIRS])
    expected = [reference.score(*pair) for pair in PAIRS]
    # Float32 sums in another order.
    assert [total for total, _ in scores] == pytest.approx(expected, rel=1e-3)


def test_what_the_model_would_say_itself_is_greedy(model: ScoredModel) -> None:
    prompt = "The capital of France is"
    ids = model.tokenizer.encode(prompt)
    (response,) = model.pipe([prompt], GenerationConfig(max_new_tokens=5, ignore_eos=True), do_preprocess=False)
    other = [*response.token_ids[:4], (response.token_ids[4] + 1) % 1000]
    (_, is_greedy), (_, is_greedy_too) = model.score([(ids, response.token_ids), (ids, other)])
    assert (is_greedy, is_greedy_too) == (True, False)


def test_texts_longer_than_the_session_are_scored_once_a_token(model: ScoredModel, reference: Reference) -> None:
    tokens = list(range(100, 300))
    parts = list(windows(tokens, 63))
    assert [token for _, continuation in parts for token in continuation] == tokens[1:]
    assert all(len(context) + len(continuation) <= 63 for context, continuation in parts)
    assert len(parts[-1][0]) + len(parts[-1][1]) == 63
    text = "A long text about ships and the sea. " * 12
    ids = [model.beginning, *reference.tokenizer(text)["input_ids"]]
    assert len(ids) > 64
    expected = 0.0
    done = 1
    while done < len(ids):  # by hand: at most 63 tokens at a time
        end = min(len(ids), done + 62)
        begin = max(0, end - 63)
        expected += reference.log_probabilities(ids[begin:end])[done - begin - 1 :].sum().item()
        done = end
    assert model.score_text(text) == pytest.approx(expected, rel=1e-3)


def test_logits_are_held_for_a_few_texts_at_a_time(model: ScoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [model.pair(*pair) for pair in PAIRS]
    whole = [total for total, _ in model.score(pairs)]
    monkeypatch.setattr("lmdeploy.evaluation.scored_model._MAX_LOGITS", 8 * model.pipe.engine.vocab_size)
    assert len(list(model._batches([6, 4, 2, 4]))) == 3
    assert [total for total, _ in model.score(pairs)] == pytest.approx(whole)


def test_what_does_not_fit_is_cut_or_refused(model: ScoredModel) -> None:
    long = "word " * 200
    (response,) = model.generate([long], [GenerationConfig(max_new_tokens=4, ignore_eos=True)])
    assert response
    with pytest.raises(ValueError, match="max_new_tokens must be below the session length, 64, got 64"):
        model.generate([long], [GenerationConfig(max_new_tokens=64)])
    with pytest.raises(ValueError, match="a continuation of 70 tokens does not fit the session length, 64"):
        model.score([([1], [5] * 70)])


def test_without_lm_eval_its_command_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit, match="pip install lm-eval"):
        command_line()


def test_opencompass_s_methods(tiny: Path, reference: Reference) -> None:
    model = PipelineModel(
        str(tiny), engine_config={"dtype": "float32", "cache_max_entry_count": 32}, max_seq_len=64, concurrency=2
    )
    text = "The capital of France is Paris."
    rows = reference.log_probabilities(reference.tokenizer(text)["input_ids"])
    assert model.get_ppl([text]).tolist() == pytest.approx([-rows.mean().item()], rel=1e-3)
    assert model.get_ppl([text], mask_length=[3]).tolist() == pytest.approx([-rows[2:].mean().item()], rel=1e-3)
    scored = model.get_loglikelihood([text], [" Paris."]).tolist()
    assert scored == pytest.approx([reference.score("The capital of France is", " Paris.")], rel=1e-3)
    assert model.get_token_len(text) == len(reference.tokenizer(text, add_special_tokens=False)["input_ids"])
    first, second = model.generate(["One, two,", "Red, blue,"], max_out_len=6)
    assert model.generate(["One, two,"], max_out_len=6) == [first]
    assert model.generate(["Red, blue,"], max_out_len=6, stopping_criteria=[second[3:5]]) == [second[:3]]
