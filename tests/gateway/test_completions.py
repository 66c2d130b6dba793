import httpx
import openai

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.waiting import eventually_sync


def echo(received: Received) -> Script:
    return Script(texts=["<", received.inputs["text_input"], ">"])


def test_a_prompt_is_continued_as_is(client: openai.OpenAI, triton: FakeTriton) -> None:
    response = client.completions.create(model=MODEL, prompt="Once upon")
    assert response.object == "text_completion"
    assert response.choices[0].text == "The capital of France is Paris."
    assert triton.requests[0].inputs["text_input"] == "Once upon"
    assert triton.requests[0].inputs["max_new_tokens"] == 16


def test_several_prompts_get_a_choice_each_and_one_usage(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = echo
    response = client.completions.create(model=MODEL, prompt=["a", "b", "c"], max_tokens=5)
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, "<a>"), (1, "<b>"), (2, "<c>")]
    assert response.usage is not None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (21, 6)


def test_a_stream_of_several_prompts_distinguishes_them(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = echo
    texts = {0: "", 1: ""}
    reasons = {}
    *chunks, last = client.completions.create(
        model=MODEL, prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
    )
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason
    assert texts == {0: "<a>", 1: "<b>"}
    assert reasons == {0: "stop", 1: "stop"}
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (14, 12)


def test_lmdeploy_s_benchmark_request_is_accepted(http: httpx.Client, triton: FakeTriton) -> None:
    requested = {
        "model": MODEL,
        "prompt": "a",
        "temperature": 0.0,
        "best_of": 1,
        "max_tokens": 8,
        "stream": True,
        "ignore_eos": True,
    }
    response = http.post("/v1/completions", json=requested, headers={"authorization": "Bearer None"})
    assert response.status_code == 200
    assert triton.requests[0].inputs["ignore_eos"] is True


def test_one_failing_prompt_fails_the_request_and_cancels_the_others(http: httpx.Client, triton: FakeTriton) -> None:
    def script(received: Received) -> Script:
        if received.inputs["text_input"] == "good":
            return Script(hold_after=0)
        eventually_sync(lambda: len(triton.requests) == 2)  # it fails when the other one has begun
        return Script(fail_after=0)

    triton.script = script
    assert http.post("/v1/completions", json={"model": MODEL, "prompt": ["good", "bad"]}).status_code == 500
    good = next(request for request in triton.requests if request.inputs["text_input"] == "good")
    # The failed one is stopped too: after an error that is no refusal it might still run.
    assert good.id in (triton.stops.get(timeout=180), triton.stops.get(timeout=180))
