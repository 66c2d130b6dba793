"""The preprocessing model: each request of a batch gets its token ids or its own error."""

import importlib.util
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from lmdeploy.model import MODELS
from lmdeploy.sessions import SessionStates
from tests.support.fake_pb_utils import Request, TritonError, arguments, loaded_model
from tests.support.waiting import eventually_sync

ROLES = ("user", "assistant", "user", "assistant")
ROOT = Path(__file__).resolve().parents[2]
MESSAGES = [{"role": "user", "content": "Hi, 你好 🙂"}]


@pytest.fixture(scope="module")
def model(default_model_dir: Path) -> Iterator[Any]:
    with loaded_model("preprocessing", model_path=str(default_model_dir)) as instance:
        yield instance


@pytest.fixture(scope="module")
def reference(default_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(default_model_dir)


def test_messages_become_the_ids_transformers_gives(model: Any, reference: Any) -> None:
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    [response] = model.execute([Request(messages=json.dumps(MESSAGES))])
    ids = response.array("INPUT_ID")
    assert ids.tolist() == [expected]
    assert (ids.dtype, ids.shape) == (np.uint32, (1, len(expected)))
    assert response.array("REQUEST_INPUT_LEN").tolist() == [[len(expected)]]


def test_a_conversation_may_leave_no_room_for_a_response(model: Any, reference: Any) -> None:
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=False, return_dict=True)["input_ids"]
    reported = {"messages": MESSAGES, "chat_template_kwargs": {"add_generation_prompt": False}}
    [response] = model.execute([Request(messages=json.dumps(reported))])
    assert response.array("INPUT_ID").tolist() == [expected]


def test_text_is_used_as_it_is(model: Any, reference: Any) -> None:
    [response] = model.execute([Request(text_input="Once upon")])
    assert response.array("INPUT_ID").tolist() == [reference.encode("Once upon")]


@pytest.mark.parametrize("text", ["<|im_start|>user", "plain", ""])
@pytest.mark.parametrize("adds", [True, False])
def test_texts_that_get_no_response_are_tokenized_as_transformers_does(
    model: Any, reference: Any, text: str, adds: bool
) -> None:
    [response] = model.execute([Request(text_input=text, add_special_tokens=array(adds, np.bool_))])
    assert response.error is None
    assert response.array("INPUT_ID").tolist() == [reference.encode(text, add_special_tokens=adds)]


def test_without_stop_words_the_tensor_is_empty_but_there(model: Any) -> None:
    [response] = model.execute([Request(text_input="x")])
    assert response.array("STOP_WORDS").shape == (1, 0)


def test_the_callers_stop_words_and_the_templates_are_joined(
    model: Any, default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CHAT_TEMPLATE", "internlm2")
    other = type(model)()
    other.initialize(arguments(model_path=str(default_model_dir), chat_template="base"))
    [response] = other.execute([Request(messages=json.dumps(MESSAGES), stop_words=["终", "<|im_end|>"])])
    assert response.array("STOP_WORDS").tolist() == [["终".encode(), b"<|im_end|>", b"<|action_end|>"]]


def array(value: Any, kind: Any) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype=kind)


@pytest.mark.parametrize("start", [False, None])
def test_messages_of_a_session_that_goes_on_are_only_what_follows_the_last_response(
    model: Any, reference: Any, start: bool | None
) -> None:
    history = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Red."}]
    whole = reference.apply_chat_template([*history, *MESSAGES], add_generation_prompt=True, tokenize=False)
    inputs = {} if start is None else {"sequence_start": array(start, np.bool_)}
    request = Request(messages=json.dumps(MESSAGES), session_id=array(0, np.uint64), **inputs)
    [response] = model.execute([request])
    assert response.error is None
    assert response.array("INPUT_ID").tolist() == [reference.encode(whole.partition("Red.<|im_end|>")[2])]


def test_messages_that_begin_a_session_are_a_whole_prompt(model: Any) -> None:
    beginning = {"session_id": array(5, np.uint64), "sequence_start": array(True, np.bool_)}
    first, alone = model.execute(
        [Request(messages=json.dumps(MESSAGES), **beginning), Request(messages=json.dumps(MESSAGES))]
    )
    assert first.array("INPUT_ID").tolist() == alone.array("INPUT_ID").tolist()


def test_rounds_of_a_session_are_numbered_as_in_its_whole_conversation(
    model: Any, default_model_dir: Path, reference: Any
) -> None:
    """Two sessions take turns, a request may bring several rounds, and a session that begins again begins at one."""
    numbering = type(model)()
    numbering.initialize(arguments(model_path=str(default_model_dir), chat_template="chatglm"))
    template = MODELS.get("chatglm")()
    history: dict[int, list[dict[str, str]]] = {}

    def prepare(session: int, contents: list[str], start: bool) -> None:
        turns = [{"role": role, "content": content} for role, content in zip(ROLES, contents, strict=False)]
        if start:
            history[session] = []
        before = template.render(history[session], add_generation_prompt=False).rstrip() if history[session] else ""
        history[session] = [*history[session], *turns]
        inputs = {"session_id": array(session, np.uint64), "sequence_start": array(start, np.bool_)}
        [response] = numbering.execute([Request(messages=json.dumps(turns), **inputs)])
        text = template.render(history[session]).removeprefix(before)
        assert reference.decode(response.array("INPUT_ID")[0]) == text
        history[session].append({"role": "assistant", "content": "yes"})

    prepare(1, ["one"], True)
    prepare(2, ["one", "yes", "two"], True)
    prepare(1, ["two"], False)
    prepare(2, ["three"], False)
    prepare(1, ["three", "yes", "four"], False)
    prepare(1, ["five"], False)
    prepare(2, ["one"], True)
    prepare(2, ["two"], False)
    assert template.render(history[1]).count("[Round 5]") == 1


def test_a_session_that_is_not_known_here_is_in_its_second_round(
    model: Any, default_model_dir: Path, reference: Any
) -> None:
    numbering = type(model)()
    numbering.initialize(arguments(model_path=str(default_model_dir), chat_template="chatglm"))
    [response] = numbering.execute([Request(messages=json.dumps(MESSAGES), session_id=array(9, np.uint64))])
    assert "[Round 2]" in reference.decode(response.array("INPUT_ID")[0])


def test_sessions_spoken_in_last_are_remembered() -> None:
    sessions = SessionStates()
    for session in range(70_000):
        sessions.add(session, 3, is_first=True)
    assert [sessions.get(session).rounds for session in (69_999, 5_000, 0)] == [3, 3, 1]


QUERIES = ["Hi, 你好 🙂", "<|im_start|>user\nHi<|im_end|>\n", " and\n"]


@pytest.mark.parametrize("queries", [*([query] for query in QUERIES), QUERIES])
def test_old_clients_texts_are_tokenized_as_they_are_and_filled_up_with_eos(
    model: Any, reference: Any, queries: list[str]
) -> None:
    [response] = model.execute([Request(QUERY=queries)])
    rows, lengths = (response.array(name) for name in ("INPUT_ID", "REQUEST_INPUT_LEN"))
    assert rows.dtype == lengths.dtype == np.uint32
    assert lengths.shape == (len(queries), 1)
    for query, row, length in zip(queries, rows.tolist(), lengths[:, 0], strict=True):
        assert row[:length] == reference.encode(query)
        assert set(row[length:]) <= {reference.eos_token_id}


# Of the empty text the client takes the token off.
@pytest.mark.parametrize(("query", "token"), [("<BOS>", "bos"), ("<EOS>", "eos"), ("", "bos")])
def test_old_clients_can_ask_for_bos_and_eos(model: Any, reference: Any, query: str, token: str) -> None:
    [response] = model.execute([Request(QUERY=query)])
    assert response.array("INPUT_ID").tolist() == [[getattr(reference, f"{token}_token_id")]]


def test_without_bos_the_empty_old_text_is_eos_and_bos_is_unknown(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = model._encoder._preparer.tokenizer
    monkeypatch.setattr(tokenizer._tokenizer, "bos_token_id", None)
    responses = model.execute([Request(QUERY=""), Request(QUERY="<BOS>")])
    assert [r.array("INPUT_ID").tolist() for r in responses] == [[[tokenizer.eos_token_id]], [[2**32 - 1]]]


def test_the_environment_overrides_the_configured_model(
    model: Any, default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_MODEL_PATH", str(default_model_dir))
    type(model)().initialize(arguments(model_path="/nowhere/at/all"))


def test_a_relative_model_path_starts_at_the_version_directory(
    model: Any, default_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "preprocessing" / "1").mkdir(parents=True)
    (tmp_path / "there").symlink_to(default_model_dir)
    args = arguments(model_path="../../there") | {"model_repository": str(tmp_path / "preprocessing")}
    type(model)().initialize(args)


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "one of text_input and messages must be given, got neither"),
    "both": ({"text_input": "x", "messages": json.dumps(MESSAGES)}, "must not both be given"),
    "empty text": ({"text_input": ""}, "at least one token"),
    "no json": ({"messages": "hello"}, "messages must be JSON"),
    "not a list": ({"messages": "{}"}, "messages must be a list, got dict"),
    "no messages": ({"messages": "[]"}, "at least one message"),
    "bad role": ({"messages": '[{"role": "bot", "content": "x"}]'}, "role must be one of"),
    "deep nesting": ({"messages": "[" * 100_000}, "messages must be JSON"),
    "tools no list": ({"messages": json.dumps(MESSAGES), "tools": '"f"'}, "tools must be a list"),
    "no tool": ({"messages": json.dumps(MESSAGES), "tools": '[{"type": "function"}]'}, "tools[0].function must be"),
    "tools with text": ({"text_input": "x", "tools": '[{"type": "function"}]'}, "tools must come with messages"),
    "no utf-8": ({"text_input": b"ab\xff"}, "text_input must be UTF-8 text (invalid start byte at byte 2)"),
    "surrogate": ({"messages": r'[{"role": "user", "content": "\ud800"}]'}, "lone surrogate"),
    "old and new": ({"QUERY": "x", "text_input": "y"}, "QUERY must come alone"),
    "long old text": ({"QUERY": "x" * 10_000_000}, "session length of 8192 tokens, got 10000000 bytes"),
    "tools later": (
        {"messages": json.dumps(MESSAGES), "tools": '[{"type": "function"}]', "session_id": np.ones((1, 1), np.uint64)},
        "tools must come with the beginning of a session",
    ),
    # Of fewer bytes than 8,192 of the longest token, and of more tokens.
    "too many tokens": ({"text_input": "🙂x" * 100_000}, "shorter than the session length of 8192 tokens, got more"),
    "ten megabytes": ({"text_input": "x" * 10_000_000}, "session length of 8192 tokens, got 10000000 bytes"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_refused_and_its_neighbours_are_answered(model: Any, case: str) -> None:
    inputs, reason = BAD_REQUESTS[case]
    first, bad, last = model.execute([Request(text_input="a"), Request(**inputs), Request(text_input="b")])
    assert reason in str(bad.error)
    assert bad.error.code == TritonError.INVALID_ARG
    assert first.error is None
    assert last.error is None


def test_a_text_of_many_bytes_that_fits_is_answered(model: Any, reference: Any) -> None:
    text = "internationalization " * 4000
    [response] = model.execute([Request(text_input=text)])
    tokens = reference(text)["input_ids"]
    assert len(text) > 8 * 8192
    assert len(tokens) <= 8192
    assert response.array("INPUT_ID").tolist() == [tokens]


def test_where_special_tokens_are_cut_does_not_count(model: Any, default_model_dir: Path) -> None:
    other = type(model)()
    other.initialize(arguments(model_path=str(default_model_dir), split_special_tokens="true"))
    text = "internationalization " * 3400 + "<|im_end|>" * 200
    [response] = other.execute([Request(text_input=text)])
    assert len(text) > 8 * 8192
    assert response.error is None
    assert 8192 - 4 * 200 < response.array("INPUT_ID").shape[1] <= 8192  # cuts, four bytes each, would not fit


def test_prompts_are_as_long_as_the_session_length_allows(model: Any, default_model_dir: Path) -> None:
    for session_len, is_rejected in ((100, True), (100_000, False)):
        other = type(model)()
        config = json.dumps({"session_len": session_len})
        other.initialize(arguments(model_path=str(default_model_dir), engine_config=config))
        [response] = other.execute([Request(text_input="🙂x" * 1000)])
        assert ("session length of 100 tokens" in str(response.error)) == is_rejected


@pytest.mark.parametrize(
    ("length", "shown"), [("0", None), ("9", "prompt: '<|im_star'"), ("1000", "Hi, 你好 🙂<|im_end|>")]
)
def test_the_rendered_prompt_is_logged_as_far_as_asked_for(
    model: Any, default_model_dir: Path, caplog: pytest.LogCaptureFixture, length: str, shown: str | None
) -> None:
    other = type(model)()
    other.initialize(arguments(model_path=str(default_model_dir), max_log_len=length))
    with caplog.at_level(logging.INFO, logger="lmdeploy"):
        other.execute([Request(messages=json.dumps(MESSAGES))])
    logged = [record.getMessage() for record in caplog.records if record.getMessage().startswith("prompt: ")]
    assert len(logged) == (shown is not None)
    assert all(str(shown) in line for line in logged)


def test_a_bug_becomes_an_internal_error_of_its_request(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(model._encoder, "encode", fail)
    [response] = model.execute([Request(text_input="a")])
    assert response.error.code == TritonError.INTERNAL
    assert "surprise" in str(response.error)


def test_the_repositorys_model_is_this_one(model: Any) -> None:
    source = Path(__file__).parents[2] / "model_repository" / "preprocessing" / "1" / "model.py"
    spec = importlib.util.spec_from_file_location("repository_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TritonPythonModel is type(model)


class Paused:
    """Pauses the preparation of prompts that hold a text, until they may go on."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on, self.order = threading.Event(), threading.Event(), list[str]()
        monkeypatch.setattr(model._lanes, "is_idle", lambda lane: False)  # nothing is responded to at once
        encode = model._encoder.encode

        def paused(text: str | None, *args: Any, **kwargs: Any) -> Any:
            self.order.append((text or "")[:1])
            if "pause" in (text or ""):
                self.begun.set()
                assert self.may_go_on.wait(180)
            return encode(text, *args, **kwargs)

        monkeypatch.setattr(model._encoder, "encode", paused)


@pytest.mark.parametrize(
    ("text", "since", "is_at_once"), [("tiny", 1.0, True), ("tiny", 0.0, False), ("long " * 1000, 1.0, False)]
)
def test_a_tiny_text_that_comes_alone_is_responded_to_at_once(
    model: Any, text: str, since: float, is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: model._returned + since)
    request = Request(text_input=text)
    [response] = model.execute([request])
    assert response.error is None
    assert request.sender.sent.is_set() != is_at_once


def test_a_short_text_does_not_wait_for_a_long_one(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paused, long = Paused(model, monkeypatch), Request(text_input="pause " + "long " * 7000)
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(model.execute, [long])
        assert paused.begun.wait(180)
        [response] = model.execute([Request(text_input="short")])
        assert response.error is None
        assert not long.sender.sent.is_set()
        paused.may_go_on.set()
        assert waiting.result()[0].error is None


def test_callers_take_turns(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = Paused(model, monkeypatch)
    texts = [("ann", "1")] * 3 + [("bob", "2")] * 2 + [("eve", "3")]
    requests = [Request(text_input=text, caller=caller) for caller, text in texts]
    with ThreadPoolExecutor(2) as others:
        first = others.submit(model.execute, [Request(text_input="pause")])
        assert paused.begun.wait(180)
        waiting = others.submit(model.execute, requests)
        queue = model._lanes._queues["short"]
        eventually_sync(lambda: sum(map(len, queue._items.values())) == len(requests))
        paused.may_go_on.set()
        assert all(response.error is None for response in [*first.result(), *waiting.result()])
    assert paused.order == ["p", *"123121"]


@pytest.mark.parametrize("by_request", [True, False], ids=["by a request", "by Triton"])
def test_a_request_whose_caller_left_is_dropped(model: Any, monkeypatch: pytest.MonkeyPatch, by_request: bool) -> None:
    paused = Paused(model, monkeypatch)
    left = Request(text_input="gone")
    left.id = "left"
    with ThreadPoolExecutor(2) as others:
        first = others.submit(model.execute, [Request(text_input="pause")])
        assert paused.begun.wait(180)
        waiting = others.submit(model.execute, [left])
        if by_request:
            eventually_sync(lambda: "left" in model._lanes._jobs)
            model._lanes.drop("left")
        else:
            left.sender.left = True
        paused.may_go_on.set()
        assert first.result()[0].error is None
        assert waiting.result()[0].error.code == TritonError.CANCELLED
    assert paused.order == ["p"]
    [reply] = model.execute([Request(stop_request_id="left")])
    assert reply.array("INPUT_ID").shape == (1, 0)


# A model in its own process, as a server has it, which waits for good with the interpreter's lock.
ORPHAN = """
import ctypes, sys, types
sys.modules["triton_python_backend_utils"] = types.SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
from python_backend import end_with_server, lanes
end_with_server.SECONDS = 0.1
lanes.Lanes(lambda job: {}, {"short": 1})
print("loaded", flush=True)
ctypes.PyDLL(None).pause()
"""


def test_the_process_ends_with_a_server_that_is_killed() -> None:
    server = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen([sys.executable, "-c", server, ORPHAN], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loaded\n"
        process.kill()
        assert process.stdout.read() == b""  # which ends when nobody holds it any more
