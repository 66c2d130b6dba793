"""tritonserver itself: `generate` endpoints, gRPC, cancellation, errors, metrics, shutdown with work in flight."""

import json
import queue
import threading
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from lmdeploy.serve.tritonserver import TritonServer
from tests.support.metrics import engine_metrics
from tests.support.servers import running_triton
from tests.support.waiting import eventually_sync

CAPITAL = json.dumps([{"role": "user", "content": "What is the capital of France?"}])
REPLY = "The capital of France is Paris."


def post(server: TritonServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"http://{server.http_address}/v2/models/{path}", json=body, trust_env=False)


def no_blocks_used(server: TritonServer) -> bool:
    return engine_metrics(server)["cache_blocks_used"] == 0


def tensor(name: str, array: np.ndarray, kind: str) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def prompt_ids(count: int = 8, **more: tuple[Any, str]) -> list[grpcclient.InferInput]:
    inputs = [tensor("input_ids", np.full((1, count), 504, np.uint32), "UINT32")]
    return inputs + [
        tensor(name, np.array([[value]]).astype(dtype), kind) for name, (value, dtype, kind) in more.items()
    ]  # type: ignore[misc]


@pytest.fixture
def stream(triton_server: TritonServer):
    """A gRPC stream; its responses and errors come out of a queue."""
    responses: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(triton_server.grpc_address) as client:
        client.start_stream(lambda result, error: responses.put(error or result))
        yield client, responses


def test_generate_takes_plain_json(triton_server: TritonServer) -> None:
    response = post(triton_server, "ensemble/generate", {"messages": CAPITAL, "max_new_tokens": 32})
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["text_output"], body["finish_reason"], body["generate_token_len"]) == (REPLY, "stop", 7)
    none = {"stop_words": "", "bad_words": ""}
    finished = post(triton_server, "ensemble/generate", {"text_input": "1, 2, 3, 4,", "max_new_tokens": 4, **none})
    assert "5" in finished.json()["text_output"]


def test_generate_stream_sends_the_pieces(triton_server: TritonServer) -> None:
    # Alone with its salt: what others said is not drafted.
    body = {"messages": CAPITAL, "max_new_tokens": 32, "stream": True, "cache_salt": "pieces"}
    response = post(triton_server, "ensemble/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]
    assert "".join(event["text_output"] for event in events) == REPLY
    assert [event["finish_reason"] for event in events][-1] == "stop"
    assert 3 < len(events) <= 8  # one a token, where none was drafted, and the end


def test_a_server_caches_prefixes_unless_a_setting_says_no(triton_server: TritonServer) -> None:
    body = {"text_input": "Some facts about cities. " * 30, "max_new_tokens": 2, "cache_salt": "cities"}
    cached = [post(triton_server, "ensemble/generate", body).json()["cached_token_len"] for _ in range(2)]
    assert cached[0] == 0
    assert cached[1] >= 64


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        ({"messages": "[]"}, "messages"),
        ({"messages": "not json"}, "messages"),
        ({"text_input": "x", "temperature": -1.0}, "temperature"),
        ({"text_input": "x", "max_new_tokens": 0}, "max_new_tokens"),
        ({"text_input": "x", "top_k": -5}, "top_k"),
        ({"text_input": "word " * 20_000}, "session length"),
        *(
            ({"text_input": "a", "parameters": parameters}, message)
            for parameters, message in (
                ({"use_beam_search": True}, "the parameter use_beam_search is not supported; leave it out"),
                ({"seed": "warm"}, "the parameter random_seed must be a whole number that fits its tensor, got warm"),
                ({"max_tokens": "many"}, "the parameter max_new_tokens must be a whole number"),
                ({"temperature": 3.0}, "temperature must be >= 0 and <= 2, got 3"),
            )
        ),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(
    triton_server: TritonServer, body: dict[str, Any], needle: str
) -> None:
    response = post(triton_server, "ensemble/generate", body)
    assert response.status_code == 400, response.text
    assert needle in response.text


@pytest.mark.parametrize(
    ("inputs", "needle"),
    [
        (lambda: [tensor("input_ids", np.full((1, 3), 4_000_000_000, np.uint32), "UINT32")], "vocabulary"),
        (lambda: [tensor("input_ids", np.zeros((1, 0), np.uint32), "UINT32")], "at least one token"),
        (lambda: prompt_ids(input_lengths=(9, np.uint32, "UINT32")), "input_lengths"),
        (lambda: prompt_ids(STOP=(1, np.int32, "INT32")), "stop_request_id"),
        (lambda: [tensor("input_ids", np.ones((1, 3), np.float32), "FP32")], "input_ids"),
        (lambda: [tensor("input_ids", np.ones((1, 3, 2), np.uint32), "UINT32")], "input_ids"),
        (lambda: [tensor("input_ids", np.ones((2, 3), np.uint32), "UINT32")], "batch"),
        (lambda: [*prompt_ids(), tensor("temperature", np.ones((1, 2), np.float32), "FP32")], "temperature"),
    ],
)
def test_bad_tensors_at_the_backend_are_answered_with_an_error(
    stream: Any, triton_server: TritonServer, inputs: Any, needle: str
) -> None:
    client, responses = stream
    client.async_stream_infer("turbomind", inputs())
    error = responses.get(timeout=180)
    assert isinstance(error, InferenceServerException)
    assert needle in str(error)
    eventually_sync(lambda: no_blocks_used(triton_server))


def long_request() -> list[grpcclient.InferInput]:
    return prompt_ids(
        stream=(True, np.bool_, "BOOL"), ignore_eos=(True, np.bool_, "BOOL"), max_new_tokens=(5000, np.int32, "INT32")
    )


def test_closing_a_direct_grpc_stream_frees_its_blocks(triton_server: TritonServer) -> None:
    before = engine_metrics(triton_server)["requests_cancelled_total"]
    responses: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(triton_server.grpc_address) as client:
        client.start_stream(lambda result, error: responses.put(error or result))
        client.async_stream_infer("turbomind", long_request())
        responses.get(timeout=180)
        eventually_sync(lambda: not no_blocks_used(triton_server))
        client.stop_stream(cancel_requests=True)
        eventually_sync(lambda: no_blocks_used(triton_server))
    assert engine_metrics(triton_server)["requests_cancelled_total"] == before + 1


def stop_request(name: str) -> list[grpcclient.InferInput]:
    return [
        tensor("STOP", np.array([[1]], np.int32), "INT32"),
        tensor("stop_request_id", np.array([[name.encode()]], np.object_), "BYTES"),
    ]


@pytest.mark.parametrize("model", ["turbomind", "ensemble"])
def test_a_stop_request_ends_the_request_it_names(stream: Any, triton_server: TritonServer, model: str) -> None:
    client, responses = stream
    if model == "turbomind":
        inputs = long_request()
    else:
        inputs = [tensor("text_input", np.array([[b"Once upon a time"]], np.object_), "BYTES"), *long_request()[1:]]
    client.async_stream_infer(model, inputs, request_id=f"the-one-{model}")
    responses.get(timeout=180)
    client.async_stream_infer("turbomind", stop_request(f"the-one-{model}"))
    reason = b""
    while reason != b"cancelled":  # a response that ends otherwise is followed by none
        result = responses.get(timeout=180)
        reasons = result.as_numpy("finish_reason")
        reason = reasons.reshape(-1)[0] if reasons is not None and reasons.size else b""
    eventually_sync(lambda: no_blocks_used(triton_server))


def test_a_stop_that_overtakes_its_request_still_ends_it(stream: Any) -> None:
    client, responses = stream
    client.async_stream_infer("turbomind", stop_request("late"), enable_empty_final_response=True)
    assert responses.get(timeout=180) is not None
    client.async_stream_infer("turbomind", long_request(), request_id="late")
    assert responses.get(timeout=180).as_numpy("finish_reason").reshape(-1)[0] == b"cancelled"


def test_triton_reports_statistics_of_each_request(triton_server: TritonServer) -> None:
    def successes() -> int:
        url = f"http://{triton_server.http_address}/v2/models/turbomind/stats"
        return int(httpx.get(url, trust_env=False).json()["model_stats"][0]["inference_stats"]["success"]["count"])

    before = successes()
    post(triton_server, "ensemble/generate", {"messages": CAPITAL, "max_new_tokens": 2})
    eventually_sync(lambda: successes() == before + 1)


def test_a_server_asked_to_stop_ends_its_streams_as_cancelled_and_leaves_no_process() -> None:
    responses: queue.Queue[Any] = queue.Queue()
    with running_triton(cache_max_entry_count=256) as server:
        client = grpcclient.InferenceServerClient(server.grpc_address)
        client.start_stream(lambda result, error: responses.put(error or result))
        names = {str(number) for number in range(4)}
        for name in names:
            client.async_stream_infer("turbomind", long_request(), request_id=name)
        running: set[str] = set()
        while running != names:
            running.add(responses.get(timeout=180).get_response().id)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        reasons: list[bytes] = []
        while len(reasons) < 4:
            reasons += filter(None, responses.get(timeout=180).as_numpy("finish_reason").reshape(-1))
        client.close()  # Triton does not leave before its clients do
        stopping.join(180)
        assert not stopping.is_alive()
        assert server.wait() == 0, server.log_tail()
    assert reasons == [b"cancelled"] * 4


def test_fields_come_as_parameters_too_under_our_names_and_those_of_the_vllm_backend(
    triton_server: TritonServer,
) -> None:
    as_tensors = {"text_input": "1, 2, 3,", "max_new_tokens": 12, "stop_words": ["7"], "temperature": 0.0}
    expected = post(triton_server, "ensemble/generate", as_tensors).json()["text_output"]
    native = {"max_new_tokens": 12, "stop": "7", "temperature": 0.0}
    reference = {"max_tokens": 12, "stop": "7", "temperature": 0.0, "seed": 5}
    as_json = {"sampling_parameters": json.dumps({"max_tokens": 12, "stop": ["7"], "temperature": 0})}
    for parameters in (native, reference, as_json):
        body = {"text_input": "1, 2, 3,", "parameters": parameters}
        assert post(triton_server, "ensemble/generate", body).json()["text_output"] == expected
    assert expected
    assert "7" not in expected


def test_the_stop_word_that_ended_a_response_is_reported(triton_server: TritonServer) -> None:
    request = {"text_input": "1, 2, 3,", "max_new_tokens": 12, "stop_words": ["zzz", "7", ", 7"], "temperature": 0.0}
    assert post(triton_server, "ensemble/generate", request).json()["stop_string"] == ", 7"
    assert post(triton_server, "ensemble/generate", request | {"stop_words": ["zzz"]}).json()["stop_string"] == ""


def test_parameters_of_a_grpc_request_may_be_text(stream: Any) -> None:
    client, responses = stream
    client.async_stream_infer(
        "turbomind", prompt_ids(), parameters={"max_tokens": "3", "temperature": "0.5", "seed": "7", "ignore_eos": True}
    )
    response = responses.get(timeout=180)
    assert response.as_numpy("generate_token_len").item() == 3
