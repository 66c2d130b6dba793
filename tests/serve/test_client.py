import asyncio
import json
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonClient, TritonRequestError, TritonUnavailable
from tests.support.fake_triton import FakeTriton, Script
from tests.support.waiting import eventually

HELLO = [{"role": "user", "content": "héllo 你好"}]


async def run(client: TritonClient, request: GenerateRequest) -> list[GenerateChunk]:
    return [chunk async for chunk in client.generate(request)]


async def test_chunks_arrive_in_order_and_the_last_one_says_why_it_ended(client: TritonClient) -> None:
    chunks = await run(client, GenerateRequest(messages=HELLO))
    assert [chunk.text for chunk in chunks] == ["The capital", " of France", " is Paris."]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
    assert (chunks[-1].input_token_len, chunks[-1].generate_token_len) == (7, 6)


async def test_every_field_reaches_its_tensor(client: TritonClient, triton: FakeTriton) -> None:
    as_it_is = {
        "stop_words": ["结束", "b"],
        "max_new_tokens": 3,
        "min_new_tokens": 1,
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 4,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "random_seed": 2**64 - 1,
        "ignore_eos": True,
        "stop_token_ids": [5, 6],
        "bad_words": ["ugly"],
        "bad_token_ids": [9],
        "n": 1,
        "logprobs": 2,
        "session_id": 2**64 - 1,
        "sequence_start": True,
        "sequence_end": False,
        "step": 3,
        "priority": -1,
        "timeout_ms": 500,
        "skip_special_tokens": False,
    }
    tools, schema = [{"type": "function"}], {"type": "json_object"}
    others: Any = {"tools": tools, "logit_bias": {7: -100, 8: 0.5}, "response_format": schema, "request_id": "one"}
    await run(client, GenerateRequest(messages=HELLO, **as_it_is, **others))
    (received,) = triton.requests
    assert (received.model, received.id) == ("ensemble", "one")
    for name, value in (("messages", HELLO), ("tools", tools), ("response_format", schema)):
        assert json.loads(received.inputs.pop(name)) == value
    bias = {"logit_bias_ids": [7, 8], "logit_bias_values": [-100, 0.5]}
    assert received.inputs == {"stream": True, **as_it_is, **bias}


async def test_what_is_not_given_is_not_sent(client: TritonClient, triton: FakeTriton) -> None:
    await run(client, GenerateRequest(text_input="Once"))
    assert triton.requests[0].inputs == {"text_input": "Once", "stream": True}
    assert "token_ids" not in triton.requests[0].outputs


async def test_only_the_outputs_that_are_needed_are_asked_for(client: TritonClient, triton: FakeTriton) -> None:
    basic = {"text_output", "finish_reason", "input_token_len", "generate_token_len"}
    await run(client, GenerateRequest(text_input="a"))
    await run(client, GenerateRequest(text_input="a", n=2))
    await run(client, GenerateRequest(text_input="a", session_id=5, sequence_start=True))
    await run(client, GenerateRequest(text_input="a", logprobs=0))
    requested = [set(request.outputs) for request in triton.requests]
    assert requested[0] == basic
    assert requested[1] == basic | {"index"}
    assert requested[2] == basic | {"history_token_len"}
    assert requested[3] == basic | {"token_ids", "token_logprobs", "top_token_ids", "top_logprobs"}


async def test_leaving_before_every_choice_has_ended_cancels(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(choices=[["a"], ["1", "2", "3"]])
    async with aclosing(client.generate(GenerateRequest(text_input="x", n=2, request_id="two"))) as chunks:
        async for chunk in chunks:
            if chunk.finish_reason:
                break
    await eventually(lambda: not triton.stops.empty())
    assert triton.stops.get() == "two"


async def test_a_prompt_of_tokens_goes_to_the_engine_itself(client: TritonClient, triton: FakeTriton) -> None:
    await run(client, GenerateRequest(input_ids=[5, 6]))
    assert (triton.requests[0].model, triton.requests[0].inputs["input_ids"]) == ("turbomind", [5, 6])


async def test_sessions_are_ended_and_stopped_as_lmdeploy_s_triton_clients_do(
    client: TritonClient, triton: FakeTriton
) -> None:
    await client.end_session(7)
    await client.cancel_session(2**63)
    ended, stopped = triton.controls
    assert ended == {"CORRID": 7, "START": 0, "END": 1, "STOP": 0, "input_ids": [1], "input_lengths": 1} | {
        "request_output_len": 0
    }
    assert stopped == {"CORRID": 2**63, "STOP": 1}


async def test_a_number_too_large_for_its_tensor_is_named(client: TritonClient) -> None:
    with pytest.raises(ValueError, match="max_new_tokens must fit INT32"):
        await run(client, GenerateRequest(text_input="Once", max_new_tokens=2**31))


def test_a_request_needs_exactly_one_prompt() -> None:
    with pytest.raises(ValueError, match="exactly one of messages, text_input and input_ids"):
        GenerateRequest()
    with pytest.raises(ValueError, match="exactly one of messages, text_input and input_ids"):
        GenerateRequest(messages=HELLO, text_input="x")


async def test_a_refused_request_raises_the_status_and_the_engine_s_words(
    client: TritonClient, triton: FakeTriton
) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, "top_p must be in (0, 1], got 2"))
    with pytest.raises(TritonRequestError) as caught:
        await run(client, GenerateRequest(text_input="Once"))
    assert (caught.value.code, caught.value.message) == ("INVALID_ARGUMENT", "top_p must be in (0, 1], got 2")
    assert triton.stops.empty()


async def test_an_error_after_some_chunks_comes_after_those_chunks(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(fail_after=2)
    chunks = client.generate(GenerateRequest(text_input="Once"))
    assert [(await anext(chunks)).text, (await anext(chunks)).text] == ["The capital", " of France"]
    with pytest.raises(TritonRequestError, match="scripted failure"):
        await anext(chunks)


async def test_a_response_without_an_end_is_an_error(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(finish_reason="")
    with pytest.raises(TritonRequestError, match="without a finish reason"):
        await run(client, GenerateRequest(text_input="Once"))


async def test_no_server_is_a_typed_error_that_names_the_address() -> None:
    async with TritonClient("127.0.0.1:1") as client:
        with pytest.raises(TritonUnavailable, match=r"127\.0\.0\.1:1"):
            await run(client, GenerateRequest(text_input="Once"))
        with pytest.raises(TritonUnavailable):
            await client.model_name()
        assert not await client.is_ready()


async def test_a_server_that_dies_ends_the_stream_with_unavailable(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(hold_after=1)
    chunks = client.generate(GenerateRequest(text_input="Once"))
    await anext(chunks)
    await asyncio.to_thread(triton.stop)
    with pytest.raises((TritonUnavailable, TritonRequestError)):
        await anext(chunks)


async def test_a_restarted_server_is_found_again(client: TritonClient, triton: FakeTriton) -> None:
    assert await client.is_ready()
    await asyncio.to_thread(triton.stop)
    assert not await client.is_ready()
    triton.start()
    await eventually(client.is_ready)
    assert await run(client, GenerateRequest(text_input="Once"))


async def test_leaving_the_iterator_cancels_in_the_engine(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(hold_after=1)
    async with aclosing(client.generate(GenerateRequest(text_input="Once", request_id="left"))) as chunks:
        async for _ in chunks:
            break
    assert await asyncio.to_thread(triton.stops.get, timeout=60) == "left"
    assert await asyncio.to_thread(triton.requests[0].cancelled.wait, 60)


async def test_a_cancelled_task_cancels_in_the_engine(client: TritonClient, triton: FakeTriton) -> None:
    triton.script = Script(hold_after=0)
    task = asyncio.create_task(run(client, GenerateRequest(text_input="Once", request_id="gone")))
    await eventually(lambda: bool(triton.requests))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(triton.stops.get, timeout=60) == "gone"
    assert await asyncio.to_thread(triton.requests[0].cancelled.wait, 60)


async def test_a_finished_request_is_not_cancelled(client: TritonClient, triton: FakeTriton) -> None:
    async with aclosing(client.generate(GenerateRequest(text_input="Once"))) as chunks:
        async for chunk in chunks:
            if chunk.finish_reason:
                break
    await client.close()
    assert triton.stops.empty()


# tritonserver 2.51 can crash when a client cancels a call that it responds to at this moment.


async def test_a_caller_that_leaves_a_call_does_not_cancel_it(client: TritonClient, triton: FakeTriton) -> None:
    triton.hangs = "preprocessing"
    asking = asyncio.create_task(client.tokenize(text="a"))
    await eventually(lambda: triton.waiting == {"preprocessing"})
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await _let_calls_end(client, triton)
    assert not triton.left


@pytest.mark.parametrize("model", ["preprocessing", "turbomind"])
async def test_a_call_that_takes_too_long_is_left_but_not_cancelled(
    client: TritonClient, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr("lmdeploy.serve.client._READY_TIMEOUT", 0.2)
    triton.hangs = model

    async def is_left() -> bool:  # on a busy machine, no model may have been asked in that time
        assert not await client.is_ready()
        return triton.waiting == {model}

    await eventually(is_left)
    await _let_calls_end(client, triton)
    assert not triton.left


async def test_a_call_is_not_cancelled_when_another_one_fails(client: TritonClient, triton: FakeTriton) -> None:
    triton.hangs, triton.restarts = "preprocessing", True
    assert not await client.is_ready()
    await eventually(lambda: triton.waiting == {"preprocessing"})
    await _let_calls_end(client, triton)
    assert not triton.left


async def _let_calls_end(client: TritonClient, triton: FakeTriton) -> None:
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.05)
    triton.hangs = ""
    await closing


async def test_the_model_name_is_the_configured_one_or_the_directory_s(
    client: TritonClient, triton: FakeTriton
) -> None:
    assert await client.model_name() == "fake-model"
    triton.parameters = {"model_name": "", "model_path": "/models/tiny-llama/"}
    assert await client.model_name() == "tiny-llama"
    triton.parameters = {}
    assert await client.model_name() == DEFAULT_MODEL_NAME


async def test_a_server_that_answers_connections_late_is_waited_for(triton: FakeTriton) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        from_server, to_server = await asyncio.open_connection(*triton.address.split(":"))

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while received := await source.read(65536):
                sink.write(received)
            sink.close()

        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    busy = await asyncio.start_server(relay, "127.0.0.1", 0)
    host, port = busy.sockets[0].getsockname()
    async with TritonClient(f"{host}:{port}") as client:
        assert (await run(client, GenerateRequest(text_input="Hello")))[-1].finish_reason == "stop"
    busy.close()
