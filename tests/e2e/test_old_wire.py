"""Requests of the LMDeploy clients up to 0.5.1, tensor by tensor, and the responses that they need."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from lmdeploy.serve.tritonserver import TritonServer
from tests.support.metrics import engine_metrics
from tests.support.servers import running_triton
from tests.support.waiting import eventually_sync

BOS, EOS = 1, 2  # of the default model
FIRST = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SECOND = "\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n"
SESSION_LEN = 32768  # the client's template's; the server's own is another


def tensor(name: str, kind: str, values: Any) -> grpcclient.InferInput:
    kinds = {"UINT32": np.uint32, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BYTES": np.object_}
    array = np.array(values, dtype=kinds[kind])
    made = grpcclient.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


class Wire:
    """One old client: unary calls for text, a new stream for each request to the engine."""

    def __init__(self, server: TritonServer) -> None:
        self.address = server.grpc_address

    def infer(self, model: str, *inputs: grpcclient.InferInput) -> Any:
        with grpcclient.InferenceServerClient(self.address) as client:
            return client.infer(model, list(inputs))

    def ids(self, text: str) -> list[int]:
        response = self.infer("preprocessing", tensor("QUERY", "BYTES", [[text.encode()]]))
        ids, length = response.as_numpy("INPUT_ID"), response.as_numpy("REQUEST_INPUT_LEN")
        assert ids.shape == (1, int(length[0, 0]))
        return [int(token) for token in ids[0]]

    def text(self, tokens: list[int], shown: int = 0) -> str:
        batch = tensor("TOKENS_BATCH", "UINT32", np.array(tokens, np.uint32).reshape(1, 1, -1))
        skip = tensor("skip_special_tokens", "INT32", [[1]])
        output = self.infer("postprocessing", batch, tensor("sequence_length", "UINT32", [[shown]]), skip)
        texts = output.as_numpy("OUTPUT")
        assert texts.shape == (1,)
        decoded: str = texts[0].decode()
        return decoded

    @contextmanager
    def stream(self, *args: Any, **kwargs: Any) -> Iterator["queue.Queue[Any]"]:
        """Send one engine request and half-close; yield what comes back, then None when the server has closed."""
        responses: queue.Queue[Any] = queue.Queue()
        with grpcclient.InferenceServerClient(self.address) as client:
            client.start_stream(lambda result, error: responses.put(error or result))
            client.async_stream_infer("turbomind", engine_inputs(*args, **kwargs), request_id="1-1")

            def close() -> None:
                client.stop_stream()  # waits, as the clients do, until the server has delivered everything
                responses.put(None)

            closing = threading.Thread(target=close)
            closing.start()
            yield responses
            closing.join(180)

    def run(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Return the whole sequence of each response of a request that succeeds."""
        with self.stream(*args, **kwargs) as responses:
            results = list(iter(lambda: responses.get(timeout=180), None))
        for result in results:
            assert not isinstance(result, InferenceServerException), result
        return [sequence_of(result) for result in results if result.as_numpy("output_ids") is not None]

    def error(self, *args: Any, **kwargs: Any) -> str:
        """Return the error of a request that fails."""
        with self.stream(*args, **kwargs) as responses:
            *_, last = iter(lambda: responses.get(timeout=180), None)
        assert isinstance(last, InferenceServerException)
        return str(last)


def sequence_of(result: Any) -> list[int]:
    output, length = result.as_numpy("output_ids"), result.as_numpy("sequence_length")
    assert output.shape[:2] == (1, 1)
    assert length.shape == (1, 1)
    assert (output.dtype, length.dtype) == (np.uint32, np.uint32)
    return [int(token) for token in output[0, 0, : int(length[0, 0])]]


def engine_inputs(
    ids: list[int],
    session: int | None,
    *,
    step: int = 0,
    output_len: int = 64,
    start: int = 0,
    end: int = 0,
    stop: int = 0,
    ignore_eos: bool = False,
    top_k: int | None = 1,
) -> list[grpcclient.InferInput]:
    """Return the tensors of one request, as the clients make them."""
    inputs = [
        tensor("input_ids", "UINT32", np.array(ids, np.uint32).reshape(1, -1)),
        tensor("input_lengths", "UINT32", [[len(ids)]]),
        tensor("request_output_len", "UINT32", [[output_len]]),
        tensor("step", "INT32", [[step]]),
        tensor("session_len", "UINT32", [[SESSION_LEN]]),
        tensor("runtime_top_p", "FP32", [[1.0]]),
        tensor("temperature", "FP32", [[0.8]]),
        tensor("repetition_penalty", "FP32", [[1.0]]),
        tensor("START", "INT32", [[start]]),
        tensor("END", "INT32", [[end]]),
        tensor("STOP", "INT32", [[stop]]),
    ]
    if session is not None:
        inputs.append(tensor("CORRID", "UINT64", [[session]]))
    if top_k is not None:
        inputs.append(tensor("runtime_top_k", "UINT32", [[top_k]]))
    if start:
        inputs.append(tensor("random_seed", "UINT64", [[2**64 - 1]]))
    words = ("bad_words_list", [[[EOS], [1]]]) if ignore_eos else ("stop_words_list", [[[EOS, 99], [1, 2]]])
    inputs.append(tensor(words[0], "INT32", words[1]))
    return inputs


@pytest.fixture(scope="module")
def wire(triton_server: TritonServer) -> Wire:
    return Wire(triton_server)


def test_the_special_tokens_and_the_empty_text_have_ids(wire: Wire) -> None:
    assert (wire.ids("<BOS>"), wire.ids("<EOS>"), wire.ids("")) == ([BOS], [EOS], [BOS])
    assert wire.text([]) == ""


def test_the_worked_exchange_of_two_turns_end_and_a_new_turn(wire: Wire) -> None:
    first, second = wire.ids(FIRST), wire.ids(SECOND)

    begun = wire.run(first, 1, start=1)
    assert [len(sequence) for sequence in begun] == sorted(len(sequence) for sequence in begun)
    history = begun[-1]
    assert history[: len(first)] == first
    assert history[-1] == EOS
    assert wire.text(history[len(first) :]) == "The capital of France is Paris."

    step = len(history) - 1  # the client does not count the eos
    again = wire.run(second, 1, step=step)[-1]
    assert again[: step + len(second)] == history[:step] + second
    assert wire.text(again[step + len(second) :]).strip() == "The capital of Italy is Rome."
    # 16 + 7 of response + eos; 23 of them + 14 + 8 of response + eos.
    assert (len(first), len(history), step, len(second), len(again)) == (16, 24, 23, 14, 46)

    wire.run([1], 1, step=len(again) - 1, output_len=0, end=1)
    assert "TurboMind execute failure: 1" in wire.error(second, 1)
    assert wire.run(first, 1, start=1)[-1] == history
    wire.run([1], 1, output_len=0, end=1)


def test_the_text_can_be_shown_piece_by_piece(wire: Wire) -> None:
    ids = wire.ids(FIRST.replace("What is the capital of France?", "Write some emoji: 🐶🚀🌕"))
    shown, text = 0, ""
    # With 33 tokens the last character is whole, so that the last piece is shown however many tokens came at a time.
    for sequence in wire.run(ids, 2, start=1, end=1, output_len=33):
        tokens = sequence[len(ids) :]
        piece = wire.text(tokens, shown)
        if not piece.endswith("\N{REPLACEMENT CHARACTER}"):
            text, shown = text + piece, len(tokens)
    assert text == wire.text(tokens)
    assert "🐶" in text


@pytest.mark.parametrize("session", [0, 1, 2**64 - 1, None])
def test_one_shot_requests_of_any_session_id_work_again_and_again(wire: Wire, session: int | None) -> None:
    ids = wire.ids("Once upon a time")
    for length in (1, 8, 8):
        history = wire.run(ids, session, start=1, end=1, output_len=length, ignore_eos=True)[-1]
        assert len(history) == len(ids) + length
        assert EOS not in history[len(ids) :]


def test_without_top_k_the_response_is_sampled_and_ends(wire: Wire) -> None:
    assert len(wire.run(wire.ids(FIRST), 3, start=1, end=1, output_len=16, top_k=None)[-1]) > len(wire.ids(FIRST))


@pytest.mark.parametrize("step", [-1, 0, 7, 10**6])
def test_step_rolls_back_and_is_ignored_beyond_the_end(wire: Wire, step: int) -> None:
    first, second = wire.ids(FIRST), wire.ids(SECOND)
    history = wire.run(first, 4, start=1)[-1]
    kept = history[:step] if 0 <= step < len(history) else history
    again = wire.run(second, 4, step=step, output_len=4)[-1]
    assert again[: len(kept) + len(second)] == kept + second
    wire.run([1], 4, output_len=0, end=1)


def test_resuming_puts_the_history_back_without_generating(wire: Wire) -> None:
    first, second = wire.ids(FIRST), wire.ids(SECOND)
    history = wire.run(first, 5, start=1)[-1]
    straight = wire.run(second, 5, step=len(history) - 1)[-1]
    wire.run([1], 5, output_len=0, end=1)
    wire.run(history[:-1], 5, start=1, output_len=0)
    assert wire.run(second, 5, step=len(history) - 1)[-1] == straight
    wire.run([1], 5, output_len=0, end=1)


def test_a_cancel_on_another_stream_stops_the_turn_and_keeps_its_tokens(
    wire: Wire, triton_server: TritonServer
) -> None:
    ids = wire.ids(FIRST)
    with wire.stream(ids, 6, start=1, output_len=3000, ignore_eos=True) as responses:
        responses.get(timeout=180)
        wire.run([], 6, output_len=0, stop=1)
        *_, last = (response for response in iter(lambda: responses.get(timeout=180), None))
    assert not isinstance(last, InferenceServerException)
    history = sequence_of(last)
    assert len(ids) < len(history) < 3000
    assert wire.run(wire.ids(SECOND), 6, step=len(history), output_len=2)[-1][: len(history)] == history
    wire.run([], 6, output_len=0, stop=1, end=1)
    assert "failure: 1" in wire.error(ids, 6)
    eventually_sync(lambda: engine_metrics(triton_server)["cache_blocks_used"] == 0)


def test_a_response_is_shortened_to_the_session_s_length_silently() -> None:
    with running_triton(session_len=64, cache_max_entry_count=8) as server:
        wire = Wire(server)
        assert len(wire.run([504] * 40, 1, start=1, output_len=512, ignore_eos=True)[-1]) == 64
        assert "TurboMind execute failure: 6" in wire.error([504] * 40, 1, step=40)
        assert len(wire.run([504] * 10, 1, step=40, end=1, output_len=4, ignore_eos=True)[-1]) == 54


def test_errors_are_the_numbers_the_clients_know(wire: Wire) -> None:
    ids = wire.ids(FIRST)
    assert "TurboMind execute failure: 1" in wire.error(ids, 4711)
    assert "TurboMind execute failure: 1" in wire.error(ids, 4711, start=1, stop=1)
    assert "TurboMind execute failure: 5" in wire.error([10**9], 8, start=1)
    wire.run(ids, 8, start=1, output_len=2)
    assert "TurboMind execute failure: 4" in wire.error([], 8, output_len=0, stop=1)
    with wire.stream(ids, 8, start=1, output_len=2000, ignore_eos=True) as responses:
        responses.get(timeout=180)
        assert "TurboMind execute failure: 3" in wire.error(ids, 8)
        wire.run([], 8, output_len=0, stop=1)
        assert not any(isinstance(response, Exception) for response in iter(lambda: responses.get(timeout=180), None))
    wire.run([1], 8, output_len=0, end=1)
    assert "TurboMind execute failure: 1" in wire.error([1], 8, output_len=0, end=1)
