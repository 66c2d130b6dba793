"""Log probabilities of prompts through gateway, Triton and engine, alongside those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmdeploy.paths import DEFAULT_MODEL_NAME as MODEL
from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.gateways import openai_client

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. Über den Wolken 🦜 " * 12
TOLERANCE = 2e-3  # float32 here and there, summed in another order; measured: 1e-4


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    ids: list[int] = Tokenizer(str(resolve("").path)).encode(TEXT)
    return ids


@pytest.fixture(scope="module")
def expected(tokens: list[int]) -> torch.Tensor:
    """Log probabilities [tokens, vocab] of what follows each token."""
    model = AutoModelForCausalLM.from_pretrained(default_model_dir(), dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.double().log_softmax(-1)


@pytest.fixture(scope="module")
def client(gateway: str) -> Iterator[openai.OpenAI]:
    with openai_client(gateway) as made:
        yield made


def assert_close(given: list[float | None], tokens: list[int], expected: torch.Tensor) -> None:
    assert given[0] is None
    of_tokens = expected[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
    assert torch.allclose(torch.tensor(given[1 : len(tokens)], dtype=torch.float64), of_tokens, atol=TOLERANCE)


@pytest.mark.parametrize("as_tokens", [False, True])
def test_a_prompt_s_log_probabilities_are_those_of_transformers(
    client: openai.OpenAI, tokens: list[int], expected: torch.Tensor, as_tokens: bool
) -> None:
    prompt: Any = tokens if as_tokens else TEXT
    choice = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=3, max_tokens=0).choices[0]
    logprobs = choice.logprobs
    assert (choice.text, choice.finish_reason) == (TEXT, "length")
    assert len(logprobs.tokens or []) == len(tokens) > 256  # more than one step computes
    assert_close(logprobs.token_logprobs or [], tokens, expected)
    compared = 0
    for position, top in enumerate((logprobs.top_logprobs or [])[1:]):
        most_likely = expected[position].topk(3).values
        # Halves of characters have the same text, of which the most likely is reported.
        if any("\N{REPLACEMENT CHARACTER}" in text for text in top):
            most_likely = most_likely[:1]
        given = torch.tensor(sorted(top.values(), reverse=True)[: len(most_likely)]).double()
        assert torch.allclose(given, most_likely, atol=TOLERANCE)
        compared += len(most_likely)
    assert compared > 2.5 * len(tokens)


def test_an_evaluation_of_continuations_gets_their_likelihoods(
    client: openai.OpenAI, tokens: list[int], expected: torch.Tensor
) -> None:
    """As evaluation harnesses ask: several prompts of tokens, one token generated and dropped, the context cut off."""
    lengths, context = [len(tokens), len(tokens) - 7, 40], 20
    response = client.completions.create(
        model=MODEL, prompt=[tokens[:length] for length in lengths], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    for choice, length in zip(response.choices, lengths, strict=True):
        given = (choice.logprobs.token_logprobs or [])[context:-1]
        assert len(given) == length - context
        positions = torch.arange(context - 1, length - 1)
        of_tokens = expected[positions, torch.tensor(tokens[context:length])]
        assert abs(sum(given) - of_tokens.sum().item()) < TOLERANCE * len(given)
        is_greedy = [
            value == max(top.values())
            for value, top in zip(given, (choice.logprobs.top_logprobs or [])[context:-1], strict=True)
        ]
        assert is_greedy == (expected[positions].argmax(-1) == torch.tensor(tokens[context:length])).tolist()


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_begins_with_the_prompt_s(
    client: openai.OpenAI, tokens: list[int], expected: torch.Tensor, n: int
) -> None:
    options: Any = {"echo": True, "logprobs": 0, "max_tokens": 4, "n": n, "stream": True}
    options["extra_body"] = {"ignore_eos": True}
    given: list[list[float | None]] = [[] for _ in range(n)]
    for chunk in client.completions.create(model=MODEL, prompt=tokens[:60], **options):
        (choice,) = chunk.choices
        if choice.logprobs is not None:
            given[choice.index] += choice.logprobs.token_logprobs or []
    for values in given:
        assert len(values) == 64
        assert_close(values, tokens[:60], expected)


def assert_scored(prompt_entries: list[Any], tokens: list[int], expected: torch.Tensor, top: int) -> None:
    """Places as vLLM reports them are those of `tokens`, with the `top` most likely in order."""
    assert prompt_entries[0] is None
    assert_close(
        [
            None,
            *(
                candidates[str(token)]["logprob"]
                for candidates, token in zip(prompt_entries[1:], tokens[1:], strict=True)
            ),
        ],
        tokens,
        expected,
    )
    for position, (candidates, token) in enumerate(zip(prompt_entries[1:], tokens[1:], strict=True)):
        ranked = sorted((entry["rank"], entry["logprob"]) for entry in candidates.values() if entry["rank"])
        assert [rank for rank, _ in ranked] == list(range(1, top + 1))
        given = torch.tensor([value for _, value in ranked]).double()
        assert torch.allclose(given, expected[position].topk(top).values, atol=TOLERANCE)
        assert set(candidates) - {str(token)} <= {
            str(other) for other in expected[position].topk(top + 3).indices.tolist()
        }


def test_prompt_logprobs_are_those_of_transformers(
    client: openai.OpenAI, tokens: list[int], expected: torch.Tensor
) -> None:
    response = client.completions.create(
        model=MODEL, prompt=[tokens, tokens[:9]], max_tokens=1, extra_body={"prompt_logprobs": 2}
    )
    for choice, length in zip(response.choices, [len(tokens), 9], strict=True):
        assert_scored(choice.prompt_logprobs, tokens[:length], expected, top=2)


def test_prompt_logprobs_of_a_chat_are_those_of_its_whole_prompt(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Hi Über"}]
    reference = AutoTokenizer.from_pretrained(default_model_dir())
    tokens = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(default_model_dir(), dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
    response = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=1, extra_body={"prompt_logprobs": 3}
    )
    assert_scored(response.prompt_logprobs, tokens, expected, top=3)
    prompt_entries = response.prompt_logprobs[1:]
    reported = "".join(
        candidates[str(token)]["decoded_token"] for candidates, token in zip(prompt_entries, tokens[1:], strict=True)
    )
    assert reported.startswith("system\n")
    assert "user\nHi" in reported


def test_what_does_not_ask_for_them_finds_the_prompt_in_the_cache(client: openai.OpenAI, tokens: list[int]) -> None:
    first = client.completions.create(model=MODEL, prompt=tokens, max_tokens=8, temperature=0)
    scored = client.completions.create(model=MODEL, prompt=tokens, max_tokens=8, temperature=0, echo=True, logprobs=0)
    assert scored.choices[0].text == TEXT + first.choices[0].text
    assert (scored.usage.prompt_tokens, scored.usage.completion_tokens) == (len(tokens), 8)
