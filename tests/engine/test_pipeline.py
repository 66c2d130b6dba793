"""The offline API: inputs, streaming, limits, errors, cancellation, many threads."""

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.both_engines import config_for
from tests.support.waiting import eventually_sync

QUESTION = "What is the capital of France?"
SHORT = GenerationConfig(max_new_tokens=12)


# Both engines are alike here: another runner computes the steps.
@pytest.fixture(scope="module", params=["turbomind", pytest.param("pytorch", marks=pytest.mark.thorough)])
def pipe(request: pytest.FixtureRequest, default_model_dir):
    config = config_for(request.param, session_len=512, cache_max_entry_count=64)
    with pipeline(str(default_model_dir), backend_config=config) as loaded:
        yield loaded


def blocks_are_free(pipe) -> bool:
    return pipe.engine.metrics()["cache_blocks_used"] == 0


def test_texts_messages_and_batches_give_the_same_response(pipe) -> None:
    conversation = [{"role": "user", "content": QUESTION}]
    response = pipe(QUESTION, SHORT)
    assert response.text == "The capital of France is Paris."
    assert response.finish_reason == "stop"
    assert response.generate_token_len == len(response.token_ids)
    assert pipe(conversation, SHORT).text == response.text
    assert [one.text for one in pipe([QUESTION, conversation, QUESTION], [SHORT] * 3)] == [response.text] * 3
    assert pipe([], SHORT) == []


def test_streamed_pieces_join_to_the_whole_response_without_broken_characters(pipe) -> None:
    config = GenerationConfig(max_new_tokens=24, do_sample=True, temperature=1.5, top_k=0, random_seed=7)
    prompts = ["Tell me about 北京 🐶", "Écris une phrase", "🙂🙂🙂"]
    whole = pipe(prompts, config)
    pieces = dict.fromkeys(range(len(prompts)), "")
    ends = {}
    for piece in pipe.stream_infer(prompts, config):
        pieces[piece.index] += piece.text
        if piece.finish_reason:
            ends[piece.index] = piece.finish_reason
    assert [pieces[index] for index in range(len(prompts))] == [one.text for one in whole]
    assert [ends[index] for index in range(len(prompts))] == [one.finish_reason for one in whole]


def test_a_stop_string_over_several_tokens_never_leaks(pipe) -> None:
    free = pipe(QUESTION, SHORT).text
    assert free == "The capital of France is Paris."
    for stop in ("ital of Fr", "France is Par", "capital of France"):
        config = GenerationConfig(max_new_tokens=12, stop_words=[stop])
        pieces = [piece.text for piece in pipe.stream_infer(QUESTION, config)]
        assert "".join(pieces) == free[: free.index(stop)]


def test_a_prompt_beyond_the_session_gets_an_empty_response_of_reason_length(pipe) -> None:
    long, short = pipe(["word " * 600, QUESTION], SHORT)
    assert (long.text, long.finish_reason, long.generate_token_len) == ("", "length", 0)
    assert long.input_token_len > 512
    assert "Paris" in short.text


def test_a_response_ends_with_the_session(pipe) -> None:
    response = pipe("word " * 460, GenerationConfig(max_new_tokens=512, ignore_eos=True))
    assert response.finish_reason == "length"
    assert response.input_token_len + response.generate_token_len == 512


def test_a_stream_left_early_frees_its_blocks(pipe) -> None:
    before = pipe.engine.metrics()["requests_cancelled_total"]
    for piece in (
        stream := pipe.stream_infer("Tell me a very long story.", GenerationConfig(ignore_eos=True, max_new_tokens=400))
    ):
        assert piece.finish_reason is None
        break
    stream.close()
    eventually_sync(lambda: blocks_are_free(pipe))
    assert pipe.engine.metrics()["requests_cancelled_total"] == before + 1


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[{"role": "ghost", "content": "boo"}]], "ghost"),
        (42, "prompts"),
        ([42], "list"),
    ],
)
def test_malformed_prompts_are_refused_by_name(pipe, prompts, message) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(prompts, SHORT)
    eventually_sync(lambda: blocks_are_free(pipe))


def test_settings_that_cannot_be_honoured_are_refused_by_name(pipe, default_model_dir) -> None:
    with pytest.raises(ValueError, match="logprobs"):
        pipe(QUESTION, GenerationConfig(logprobs=30))
    with pytest.raises(ValueError, match="one for each"):
        pipe([QUESTION, QUESTION], [SHORT])
    with pytest.raises(ValueError, match="rope_scaling_factor"):
        pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(rope_scaling_factor=0.5))
    with pytest.raises(ValueError, match="cache_block_seq_len"):
        pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(cache_block_seq_len=48))


def test_a_closed_pipeline_says_so(default_model_dir) -> None:
    loaded = pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(cache_max_entry_count=8))
    loaded.close()
    loaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded(QUESTION)
