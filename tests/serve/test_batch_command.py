"""``lmdeploy batch``: a file of requests, answered in one process, and again where that was killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.cli.main import main
from tests.support.servers import START
from tests.support.tiny_encoders import make_encoder, texts_of
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

REQUESTS = 200
NAME = "tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / NAME)


def request(custom_id: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        **fields,
    }
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, requests: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in requests))
    return path


def read(path: Path) -> dict[str, Any]:
    """Return results by ``custom_id``, which each has for itself."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def results(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "lmdeploy", "batch", *map(str, arguments)]


def test_a_killed_command_goes_on_where_it_was_and_answers_as_the_pipeline_does(model: Path, tmp_path: Path) -> None:
    texts = [f"question {number}" for number in range(REQUESTS)]
    requests = [request(text, text) for text in texts]
    requests[7]["body"]["model"] = "another"
    requests[8]["url"] = "/v1/images"
    requests[9] = {**request("plain", ""), "url": "/v1/completions"}
    requests[9]["body"] = {"model": NAME, "prompt": "Once", "max_tokens": 16, "temperature": 0}
    given, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    words = command(given, model, "-o", output, "--max-batch-size", 2, "--concurrency", 8)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually_sync(lambda: process.poll() is not None or results(output) > REQUESTS // 4, START)
        finally:
            process.kill()
        assert "loading the model ..." in process.stderr.read()
    whole = output.read_bytes().rpartition(b"\n")[0]
    before = whole.splitlines()
    assert REQUESTS // 4 < len(before) < REQUESTS - 3
    output.write_bytes(whole + b"\n" + before[0][:40])  # as if it had been killed while it wrote

    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"{REQUESTS - 2} of {REQUESTS} requests were answered, in {output}; 2 failed, see " in done.stderr
    assert output.read_bytes().splitlines()[: len(before)] == before
    answered, failed = read(output), read(tmp_path / "out.errors.jsonl")
    assert failed.keys() == {"question 7", "question 8"}
    assert failed["question 7"]["response"]["status_code"] == 404
    assert "url must be one of" in failed["question 8"]["error"]["message"]
    assert answered.keys() == {text for number, text in enumerate(texts) if number not in (7, 8, 9)} | {"plain"}
    with pipeline(str(model)) as pipe:
        greedy = GenerationConfig(max_new_tokens=16)
        expected = pipe(texts, greedy)
        for text, response in zip(texts, expected, strict=True):
            if text in answered:
                body = answered[text]["response"]["body"]
                assert body["choices"][0]["message"]["content"] == response.text
                assert body["usage"]["completion_tokens"] == response.generate_token_len
        answer = answered["plain"]["response"]["body"]["choices"][0]["text"]
        assert answer == pipe("Once", greedy, do_preprocess=False).text

    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "loading" not in again.stderr  # there is nothing to do
    assert read(output) == answered


def test_rows_have_choices_log_probabilities_and_formats(model: Path, tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
    echo = {"model": NAME, "prompt": "a", "echo": True, "logprobs": 1}
    requests = [
        request("choices", "a", n=3, temperature=1.0, seed=1),
        request("format", "a", response_format=schema),
        request("scored", "a", logprobs=True, top_logprobs=3, max_tokens=4),
        request("echo", "a") | {"url": "/v1/completions", "body": echo},
        request("range", "a", temperature=7),
    ]
    given, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    assert main(["batch", str(given), str(model), "-o", str(output)]) == 1
    answered, failed = read(output), read(tmp_path / "out.errors.jsonl")
    choices = {name: line["response"]["body"]["choices"] for name, line in answered.items()}
    assert [choice["index"] for choice in choices["choices"]] == [0, 1, 2]
    assert choices["format"][0]["message"]["content"] == '"yes"'
    with pipeline(str(model)) as pipe:
        expected = pipe("a", GenerationConfig(max_new_tokens=4, logprobs=3))
    scored = choices["scored"][0]["logprobs"]["content"]
    assert len(scored) == len(expected.logprobs) == 4
    for reported, entry in zip(scored, expected.logprobs, strict=True):
        most_likely = sorted(entry.values(), reverse=True)[:3]
        assert [top["logprob"] for top in reported["top_logprobs"]] == pytest.approx(most_likely)
        assert reported["logprob"] == pytest.approx(max(entry.values()))  # greedy
    assert failed["range"]["response"]["status_code"] == 400
    message = failed["echo"]["response"]["body"]["error"]["message"]
    assert message == "echo with logprobs needs a server (lmdeploy serve api_server)"


def test_rows_have_vectors_and_scores(tmp_path: Path) -> None:
    embedder = tmp_path / "embedder"
    make_encoder(embedder, "Bert")
    query, *texts = texts_of((5, 9, 30))
    requested = {"model": "embedder", "query": query, "documents": texts}
    requests = [
        request("vectors", "") | {"url": "/v1/embeddings", "body": {"model": "embedder", "input": texts}},
        request("ranks", "") | {"url": "/v1/rerank", "body": requested},
        request("scores", "") | {"url": "/v1/score", "body": {"model": "embedder", "text_1": query, "text_2": texts}},
        request("classes", "") | {"url": "/v1/classify", "body": {"model": "embedder", "input": texts}},
    ]
    given, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    assert main(["batch", str(given), str(embedder), "-o", str(output)]) == 1  # the classes
    bodies = {name: line["response"]["body"] for name, line in read(output).items()}
    assert bodies.keys() == {"vectors", "ranks", "scores"}
    with pipeline(str(embedder)) as pipe:
        vectors, scores = pipe.embed(texts), pipe.score([(query, text) for text in texts])
    assert (np.array([entry["embedding"] for entry in bodies["vectors"]["data"]], np.float32) == vectors).all()
    found = {entry["index"]: entry["relevance_score"] for entry in bodies["ranks"]["results"]}
    assert [found[index] for index in range(len(texts))] == pytest.approx(scores, rel=1e-6)
    assert [entry["score"] for entry in bodies["scores"]["data"]] == pytest.approx(scores, rel=1e-6)


def test_results_are_of_one_model_with_one_set_of_settings(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = write(tmp_path / "in.jsonl", [request("a", "x")]), tmp_path / "out.jsonl"
    words = ["batch", str(given), str(model), "-o", str(output)]
    assert main(words) == 0
    assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]  # no file of errors
    whole = output.read_bytes()
    other = make_tiny_llama(tmp_path / "other" / NAME)
    for changed in (
        ["batch", str(given), str(other), "-o", str(output)],
        [*words, "--model-name", "b"],
        [*words, "--quant-policy", "8"],
        [*words, "--chat-template", "vicuna"],
    ):
        capsys.readouterr()
        assert main(changed) == 1
        stderr = capsys.readouterr().err
        assert stderr.startswith(f"lmdeploy batch: {output} has results of another model or with other settings than ")
        assert "; name another file, or remove it to compute all again" in stderr
    assert "chat_template vicuna" in stderr
    monkeypatch.chdir(model.parent)
    for same in (["batch", str(given), NAME, "-o", str(output)], [*words, "--max-batch-size", "1", "--threads", "1"]):
        assert main(same) == 0
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("requests", "kept", "message"),
    [
        ([], "", "has no requests"),
        ([request("a", "x")], "my diary\n", "holds something else than results of a batch; name another file"),
        (
            [request("a", "x"), request("b", "x")],
            '{"id":"batch_req-2","custom_id":"z","response":null,"error":null}\n',
            "has results of another input: its line 2 is z, in ",
        ),
        (
            [request("a", "x")],
            '{"id":"batch_req-9","custom_id":"z","response":null,"error":null}\n',
            "has no line 9",
        ),
    ],
)
def test_what_cannot_go_on_is_reported_in_a_sentence_and_left_as_it_is(
    requests: list[dict[str, Any]], kept: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    output.write_text(kept)
    assert main(["batch", str(given), "/nowhere", "-o", str(output)]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("lmdeploy batch: ")
    assert message in stderr
    assert output.read_text() == kept


def test_files_and_models_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
    given = write(tmp_path / "in.jsonl", [request("a", "x")])
    assert main(["batch", str(given), str(tmp_path / "no-model"), "-o", str(tmp_path / "out.jsonl")]) == 1
    assert "no-model" in capsys.readouterr().err
    same = tmp_path / "x.jsonl"
    assert main(["batch", str(given), "-o", str(same), "--errors", str(same)]) == 1
    assert "--errors must be another file than" in capsys.readouterr().err


def test_two_commands_do_not_write_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from openai_gateway.batches.results import Results

    given, output = write(tmp_path / "in.jsonl", [request("a", "x")]), tmp_path / "out.jsonl"
    first = Results(output, tmp_path / "out.errors.jsonl")
    try:
        assert main(["batch", str(given), "/nowhere", "-o", str(output)]) == 1
        assert f"another process writes to {output}" in capsys.readouterr().err
    finally:
        first.close()
