"""The real lm-eval measures the pipeline, and a server, as it measures `transformers`. `make clients` installs it."""

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import Package
from tests.docs.blocks import steps

ROOT = Path(__file__).resolve().parent.parent.parent
LM_EVAL = Package("lm-eval")
PYTHON = LM_EVAL.python
TASKS = ["lmdeploy_choices", "lmdeploy_words", "lmdeploy_prose"]
pytestmark = LM_EVAL.mark


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("datasets")


def evaluate(
    data_sets: Path, model: str, model_args: dict[str, Any], tasks: list[str] = TASKS, *, chat: bool = False
) -> dict[str, Any]:
    """Return the responses to lm-eval, by task, and its results."""
    paths = [sysconfig.get_path("purelib"), str(ROOT)]
    given = {"paths": paths, "model": model, "model_args": model_args, "tasks": tasks, "chat": chat}
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(data_sets), "OPENAI_API_KEY": "none"}
    command = [PYTHON, str(ROOT / "tests" / "clients" / "use_lm_eval.py"), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def pipeline_s(data_sets: Path, default_model_dir: Path) -> dict[str, Any]:
    args = {"pretrained": str(default_model_dir), "dtype": "float32", "session_len": 512}
    return evaluate(data_sets, "lmdeploy", args)


def log_likelihoods(found: dict[str, Any]) -> list[float]:
    choices = [float(choice[0]) for sample in found["said"]["lmdeploy_choices"] for choice in sample]
    return choices + [float(text) for (text,) in found["said"]["lmdeploy_prose"]]


def test_the_pipeline_says_what_transformers_says(
    data_sets: Path, pipeline_s: dict[str, Any], default_model_dir: Path
) -> None:
    args = {"pretrained": str(default_model_dir), "dtype": "float32"}
    reference = evaluate(data_sets, "hf", args)
    assert log_likelihoods(pipeline_s) == pytest.approx(log_likelihoods(reference), rel=1e-3)
    assert pipeline_s["said"]["lmdeploy_words"] == reference["said"]["lmdeploy_words"]
    greedy = [[choice[1] for choice in sample] for sample in pipeline_s["said"]["lmdeploy_choices"]]
    assert greedy == [[choice[1] for choice in sample] for sample in reference["said"]["lmdeploy_choices"]]
    assert pipeline_s["results"]["lmdeploy_choices"]["acc,none"] >= 0.5


def test_a_server_says_what_the_pipeline_says(
    data_sets: Path, pipeline_s: dict[str, Any], gateway: str, default_model_dir: Path
) -> None:
    args = {
        "base_url": f"{gateway}/v1/completions",
        "model": default_model_dir.name,
        "tokenizer": str(default_model_dir),
    }
    served = evaluate(data_sets, "local-completions", args)
    assert log_likelihoods(served) == pytest.approx(log_likelihoods(pipeline_s), rel=1e-3)
    assert served["said"]["lmdeploy_words"] == pipeline_s["said"]["lmdeploy_words"]


def test_a_server_chats_with_lm_eval_as_the_pipeline_does(
    data_sets: Path, gateway: str, default_model_dir: Path
) -> None:
    args = {"base_url": f"{gateway}/v1/chat/completions", "model": default_model_dir.name}
    served = evaluate(data_sets, "local-chat-completions", args, ["lmdeploy_words"], chat=True)
    settings = {"pretrained": str(default_model_dir), "dtype": "float32", "session_len": 512}
    alone = evaluate(data_sets, "lmdeploy", settings, ["lmdeploy_words"], chat=True)
    assert served["said"] == alone["said"]


def test_the_guide_s_commands_are_taken_by_lm_eval() -> None:
    guide = ROOT / "docs" / "guides" / "evaluation.md"
    commands = [step.words for step in steps(guide) if step.language == "bash" and "run" in step.words[:4]]
    assert len(commands) == guide.read_text(encoding="utf-8").count(" run --model ") > 0
    for words in commands:
        arguments = words[words.index("run") :]
        code = "from lm_eval._cli import HarnessCLI; HarnessCLI().parse_args()"
        done = subprocess.run([PYTHON, "-c", code, *arguments], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
