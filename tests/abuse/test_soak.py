"""A server under mixed traffic, hostile requests among it: everything ends, nothing grows, nothing is left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abuse.callers import Outcome, read_corpus
from tests.abuse.observe import Sample
from tests.abuse.soak import Verdict
from tests.abuse.traffic import WEIGHTS
from tests.support.tiny_models import make_tiny_llama

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 25
MOST_GROWTH = 96  # MiB over half of so short a run, in which caches and arenas still find their size


@pytest.mark.thorough
@pytest.mark.e2e
def test_a_short_soak_leaves_nothing(default_model_dir: Path, tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny", max_position_embeddings=2048)
    report = tmp_path / "soak.json"
    flags = ["--seconds", str(SECONDS), "--callers", "12", "--longest", "200", "--most-growth", str(MOST_GROWTH)]
    command = [sys.executable, "-m", "tests.abuse.soak", str(model), *flags]
    done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    reported = json.loads(report.read_text())
    assert reported["unanswered"] == 0
    assert reported["left"] == {"blocks": 0, "running": 0, "waiting": 0}
    kinds = {name.split(":")[0] for name in reported["ends"]}
    assert kinds == WEIGHTS.keys()
    assert all("answered" in reported["ends"][kind] for kind in kinds - {"hostile", "leave"})
    assert not [name for name, ends in reported["ends"].items() if "failed" in ends], done.stdout
    assert {"tritonserver", "launcher and gateway", "model preprocessing"} <= reported["growth"].keys()
    assert sum(reported["growth"].values()) <= MOST_GROWTH


def test_hostile_requests_have_names_and_come_in_every_manner() -> None:
    corpus = read_corpus()
    assert len({hostile.name for hostile in corpus}) == len(corpus) > 20
    assert {hostile.manner for hostile in corpus} == {"read", "leave", "unread", "unfinished"}
    assert max(len(json.dumps(hostile.body)) for hostile in corpus) > 100_000


def test_what_grows_hangs_or_is_left_is_reported() -> None:
    samples = [Sample(float(second), {"a": 100.0 + second, "b": 50.0}, {"a": 10 + second}) for second in range(101)]
    streamed = Outcome("stream", 0.0, "answered", 1.0, [0.0, 0.1, 0.2, 0.5])
    outcomes = [streamed, Outcome("leave", 0.0, "left"), Outcome("leave", 0.0)]
    last = Sample(101.0, measurements={"blocks": 3.0, "running": 0.0})
    verdict = Verdict.of(outcomes, samples, last)
    assert verdict.unanswered == 1
    assert verdict.ends == {"stream": {"answered": 1}, "leave": {"left": 1, "unanswered": 1}}
    assert verdict.growth == {"a": 45.0, "b": 0.0}  # from the middle, 50 s, to that of the last tenth
    assert verdict.files_growth == {"a": 45, "b": 0}
    assert verdict.left == {"blocks": 3.0, "running": 0.0, "waiting": -1.0}
    assert verdict.gap_p50 == pytest.approx(0.1)
    assert "without an end: 1" in verdict.text()
