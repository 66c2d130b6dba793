"""A batch continues where it was, whatever ends its processes: no request is lost, and none is there twice."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from lmdeploy.serve.ports import free_ports
from openai_gateway.batches.requests import InvalidRequest, error_line
from openai_gateway.batches.results import Results, ResultsError
from tests.gateway.batches.conftest import jsonl, request, results, wait_for
from tests.gateway.conftest import MODEL
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.processes import children
from tests.support.waiting import eventually_sync

REQUESTS, WRONG = 400, 40  # every 40th request is wrong
FIRST = 200  # requests that the engine answers before somebody is killed


def question(received: Received) -> int:
    """Return the number of the request that a request is of."""
    found = re.search(r"question (\d+)", received.inputs["messages"])
    assert found is not None
    return int(found[1])


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    fake = FakeTriton(MODEL)
    yield fake
    fake.stop()


def gateway(fake: FakeTriton, folder: Path, port: int, workers: int) -> Command:
    return Command(
        *(
            "serve",
            "gateway",
            "--triton-address",
            fake.address,
            "--server-name",
            "127.0.0.1",
            "--server-port",
            str(port),
        ),
        *("--files-dir", str(folder), "--workers", str(workers)),
    )


def runner(parent: int, folder: Path) -> list[int]:
    """Return which of a command's workers has the lock of the folder."""
    return [pid for pid in children(parent) if folder / "lock" in open_paths(pid)]


def open_paths(pid: int) -> set[Path]:
    return {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_is_killed_half_way_resumes_without_loss_or_doubles(
    fake: FakeTriton, tmp_path: Path, workers: int
) -> None:
    (port,) = free_ports(1)
    answered: list[int] = []

    def until_half(received: Received) -> Script:
        if len(answered) >= FIRST:
            return Script(hold_after=0)
        answered.append(question(received))
        return Script(texts=(f"answer {question(received)}",))

    def all_of_them(received: Received) -> Script:
        return Script(texts=(f"answer {question(received)}",))

    fake.script = until_half
    requests = [
        request(f"request {n}", f"question {n}", **({"method": "PUT"} if n % WRONG == 0 else {}))
        for n in range(REQUESTS)
    ]
    base_url = f"http://127.0.0.1:{port}/v1"
    with ExitStack() as stack, openai.OpenAI(base_url=base_url, api_key="none", max_retries=5) as client:

        def completed() -> int:
            counts = client.batches.retrieve(made.id).request_counts
            return 0 if counts is None else counts.completed

        command = stack.enter_context(gateway(fake, tmp_path, port, workers))
        command.wait_for("OpenAI API")
        file = client.files.create(file=("requests.jsonl", jsonl(*requests)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        eventually_sync(lambda: completed() == FIRST)
        before = set(answered)
        if workers == 1:
            command.end(signal.SIGKILL)
        else:
            (pid,) = runner(command.process.pid, tmp_path)
            os.kill(pid, signal.SIGKILL)  # another worker continues
        fake.reset()
        fake.script = all_of_them
        if workers == 1:
            command = stack.enter_context(gateway(fake, tmp_path, port, workers))
            command.wait_for("OpenAI API")
        done = wait_for(client, made.id, 60)
        output, errors = results(client, done.output_file_id), results(client, done.error_file_id)
    assert done.status == "completed"
    wrong = {f"request {n}" for n in range(0, REQUESTS, WRONG)}
    assert errors.keys() == wrong
    assert output.keys() == {f"request {n}" for n in range(REQUESTS)} - wrong
    for number in set(range(REQUESTS)) - set(range(0, REQUESTS, WRONG)):
        message = output[f"request {number}"]["response"]["body"]["choices"][0]["message"]
        assert message["content"] == f"answer {number}"
    again = [question(received) for received in fake.requests]
    assert len(again) == len(set(again)) == REQUESTS - len(wrong) - FIRST
    assert before.isdisjoint(again)


def test_half_a_result_is_cut_off_and_its_row_is_open_again(tmp_path: Path) -> None:
    output, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    lines = [error_line("batch_req_7", InvalidRequest(n, f"request {n}", ""), "code", "why") for n in range(1, 5)]
    written = Results(output, errors)
    for number, line in enumerate(lines[:3], 1):
        written.add(number, line, is_error=number == 3)
    written.close()
    for torn in (lines[3][:-1], lines[3][:20], lines[3][:3], b"\0" * 100):
        whole = output.read_bytes()
        output.write_bytes(whole + torn)
        again = Results(output, errors)
        assert (again.done, again.completed, again.failed) == ({1, 2, 3}, 2, 1)
        assert output.read_bytes() == whole
        again.close()
    assert [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()] == ["request 1", "request 2"]


def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    output = tmp_path / "precious.txt"
    for content in (b"my diary\n", b"half a line", b'{"id":"chatcmpl-1"}\n'):
        output.write_bytes(content)
        with pytest.raises(ResultsError, match="holds something else than results of a batch"):
            Results(output, tmp_path / "errors.jsonl")
        assert output.read_bytes() == content
