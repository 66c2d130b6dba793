"""tools/evaluate.py measures what it says, and formats lose no more of the default model than they may."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_models import make_tiny_llama
from tools import evaluate
from tools.default_model import find_gguf
from tools.evaluate import (
    BUILT_IN,
    MADE,
    REFERENCE,
    Agreement,
    Bound,
    Evaluation,
    Format,
    built_in,
    compare,
    log_probabilities,
    read_pieces,
)


def test_agreement_is_what_torch_computes() -> None:
    generator = torch.Generator().manual_seed(3)
    texts = [[1, 5, 2, 7], [4, 0, 3]]
    reference, measured = (
        [log_probabilities(torch.randn(len(ids) + 1, 9, generator=generator), len(ids)) for ids in texts]
        for _ in range(2)
    )
    found = compare(texts, reference, measured)
    expected, got = torch.cat(reference).double(), torch.cat(measured).double()
    following = torch.tensor([token for ids in texts for token in ids[1:]])
    divergence = torch.nn.functional.kl_div(got, expected, reduction="batchmean", log_target=True)
    assert found.divergence == pytest.approx(divergence.item(), rel=1e-5)
    assert found.perplexity == pytest.approx(torch.nn.functional.nll_loss(got, following).exp().item(), rel=1e-5)
    assert found.same_top == sum(a.argmax() == b.argmax() for a, b in zip(expected, got, strict=True)) / 5
    assert compare(texts, reference, reference).divergence == 0


def test_pieces_of_text_are_divided_by_dashes(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n----\ntwo\nlines\n")
    assert read_pieces(path) == ["one", "two\nlines"]
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no text"):
        read_pieces(path)
    assert len(read_pieces()) > 5


@pytest.fixture(scope="module")
def measured(default_model_dir: Path) -> Evaluation:
    pieces = read_pieces()
    evaluation = Evaluation([pieces[2], pieces[5]])  # code, and a record
    evaluation.measure(str(default_model_dir), REFERENCE)
    return evaluation


# Those of 4 bits lose the most.
ALIKE = ("bfloat16", "float16", "`weight_bits` 8", "`quant_policy` 8", "`weight_bits` 8, `quant_policy` 8")


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(one, id=one.name, marks=pytest.mark.thorough if one.name in ALIKE else ()) for one in BUILT_IN],
)
def test_a_format_loses_no_more_than_it_may(measured: Evaluation, chosen: Format, default_model_dir: Path) -> None:
    assert chosen.bound is not None
    assert chosen.bound.exceeded(measured.measure(str(default_model_dir), chosen), measured.reference) == []


def test_a_gguf_file_loses_no_more_than_rounding_its_activations(measured: Evaluation, tmp_path: Path) -> None:
    # The weights are dequantized: the codes are exact.
    found = measured.measure(str(find_gguf(tmp_path)), Format("GGUF, Q4_1"))
    assert Bound(divergence=0.006, perplexity=0.01).exceeded(found, measured.reference) == []


def test_the_pytorch_engine_is_measured_too(default_model_dir: Path) -> None:
    chosen = {one.name: one for one in built_in("pytorch")}
    assert list(chosen) == ["bfloat16", "float16", "`quant_policy` 8", "`quant_policy` 4"]
    record = read_pieces()[5]
    evaluation = Evaluation([record], backend="pytorch")
    evaluation.measure(str(default_model_dir), REFERENCE)
    alongside = Evaluation([record]).measure(str(default_model_dir), REFERENCE)
    assert evaluation.reference.perplexity == pytest.approx(alongside.perplexity, rel=1e-3)
    rounded = evaluation.measure(str(default_model_dir), chosen["`quant_policy` 8"])
    bound = chosen["`quant_policy` 8"].bound
    assert bound is not None
    assert bound.exceeded(rounded, evaluation.reference) == []
    assert rounded.divergence > 0


@pytest.mark.thorough
@pytest.mark.parametrize("chosen", MADE, ids=lambda chosen: chosen.name)
def test_what_lite_makes_loses_no_more_than_it_may(
    measured: Evaluation, chosen: Format, default_model_dir: Path, tmp_path: Path
) -> None:
    assert chosen.bound is not None
    made = chosen.model(str(default_model_dir), tmp_path)
    assert chosen.bound.exceeded(measured.measure(made, chosen), measured.reference) == []


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("evaluated") / "tiny")


def test_the_command_writes_a_table_and_fails_where_more_is_lost(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, report = tmp_path / "text.txt", tmp_path / "report.json"
    text.write_text("A short text.\n----\nAnd another one.")
    strict = Format("strict", {"dtype": "float32", "weight_bits": 4}, Bound(divergence=0.0, perplexity=9.0))
    monkeypatch.setattr(evaluate, "built_in", lambda backend: [strict])
    flags = ["--text", str(text), "--checkpoint", f"again={tiny_model}", "--json", str(report)]
    shown = []
    measure = Evaluation.measure

    def watched(*arguments: Any) -> Agreement:
        shown.append(capsys.readouterr())
        return measure(*arguments)

    monkeypatch.setattr(Evaluation, "measure", watched)
    with pytest.raises(SystemExit) as stopped:
        evaluate.main([str(tiny_model), *flags])
    shown.append(capsys.readouterr())
    assert re.search(r"strict: KL divergence \S+ > 0", str(stopped.value))
    rows = [line for output in shown for line in output.out.splitlines() if line.startswith("|")]
    assert [row.split(" | ")[0] for row in rows] == ["| format", "| ---", "| float32", "| strict", "| again"]
    assert ["| float32 |" in shown[1].out, "| strict |" in shown[2].out] == [True, True]  # before the next one
    assert "strict:   0%" in "".join(output.err for output in shown[1:])
    found = json.loads(report.read_text())
    assert found["strict"]["divergence"] > 0
    assert found["again"]["divergence"] == 0


@pytest.mark.parametrize("given", ["name", "=x"])
def test_a_checkpoint_has_a_name_and_a_path(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["--checkpoint", given])
    assert "expected NAME=PATH" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match=r"^nowhere: no such directory"):
        evaluate.main(["--checkpoint", "name=nowhere"])
