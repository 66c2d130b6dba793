// Sessions, prefix caching, several responses, scoring, timeouts: the engine on a stub model.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/engine_helpers.h"

namespace turbomind::testing {

PLAIN_ENGINE_TEST(twenty_blocks_serve_64_sessions_of_8_turns_as_if_they_had_all_the_memory) {
  Collector collector;
  EngineConfig config = small_config();
  config.page_count = pages_of(20);  // 80 tokens
  config.session_len = 80;
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  std::mt19937 random(1);
  std::map<uint64_t, std::vector<int32_t>> histories;
  RequestId id = 1;
  for (int round = 0; round < 8; ++round) {
    std::vector<std::tuple<RequestId, uint64_t, int>> sent;
    for (uint64_t session = 0; session < 64; ++session) {  // session 0 is a session like any other
      const std::vector<int32_t> input = random_prompt(random, 1 + static_cast<int>(random() % 4));
      const int count = 1 + static_cast<int>(random() % 5);
      std::vector<int32_t>& history = histories[session];
      history.insert(history.end(), input.begin(), input.end());
      engine.submit(session_request(id, session, round == 0, input, count, collector.callback()));
      sent.emplace_back(id++, session, count);
    }
    for (const auto& [request, session, count] : sent) {
      const std::vector<int32_t> expected = expected_tokens(histories[session], count);
      CHECK(collector.wait(request).tokens == expected);
      histories[session].insert(histories[session].end(), expected.begin(), expected.end());
    }
  }
  CHECK(engine.stats().evictions > 0);
  CHECK(engine.stats().prefix_cache_hits > 0);
  CHECK_EQUAL(engine.stats().blocks_used, 0);
  CHECK_EQUAL(engine.stats().sessions, 64);
}

PLAIN_ENGINE_TEST(what_the_host_keeps_is_not_computed_again) {
  const auto computed = [](int host_blocks) {
    Collector collector;
    EngineConfig config = small_config();
    config.page_count = pages_of(20);  // 80 tokens
    config.host_page_count = pages_of(host_blocks);
    config.session_len = 80;
    Engine engine(config, std::make_unique<StubRunner>(), letters());
    std::mt19937 random(1);
    std::map<uint64_t, std::vector<int32_t>> histories;
    RequestId id = 1;
    for (int round = 0; round < 6; ++round) {
      for (uint64_t session = 0; session < 10; ++session) {  // one after the other: each finds the cache full of others
        const std::vector<int32_t> input = random_prompt(random, 8);
        std::vector<int32_t>& history = histories[session];
        history.insert(history.end(), input.begin(), input.end());
        engine.submit(session_request(id, session, round == 0, input, 3, collector.callback()));
        const std::vector<int32_t> expected = expected_tokens(history, 3);
        CHECK(collector.wait(id++).tokens == expected);
        history.insert(history.end(), expected.begin(), expected.end());
      }
    }
    const EngineStats stats = engine.stats();
    CHECK_EQUAL(stats.swapped_in > 0, host_blocks > 0);
    CHECK_EQUAL(stats.evictions == 0, host_blocks > 0);
    return stats.tokens_computed;
  };
  const int64_t without = computed(0);
  const int64_t with = computed(200);
  CHECK(with < 6 * 10 * (8 + 3 + 4 + 2));  // a turn's own tokens, and an unfinished block
  CHECK(without > 2 * with);
}

ENGINE_TEST(step_rolls_a_session_back) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  turn(engine, collector, 1, 9, true, {1, 2, 3, 4, 5, 6}, 8);
  Request request = session_request(2, 9, false, {7}, 3, collector.callback());
  request.session->step = 5;
  engine.submit(std::move(request));
  CHECK(collector.wait(2).tokens == expected_tokens({1, 2, 3, 4, 5, 7}, 3));
  CHECK_EQUAL(collector.wait(2).last.history_token_len, 5);
  request = session_request(3, 9, false, {7}, 3, collector.callback());
  request.session->step = 500;  // beyond the end: everything is kept
  engine.submit(std::move(request));
  CHECK_EQUAL(collector.wait(3).last.history_token_len, 9);
}

ENGINE_TEST(session_errors_carry_their_codes_and_disturb_nobody) {
  Collector collector;
  StepGate gate;
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = gate.hook();
  Engine engine(small_config(), std::move(runner), letters());
  CHECK(failure_of(collector, engine, session_request(1, 3, false, {1}, 3, collector.callback())) ==
        ErrorCode::kUnknownSession);
  engine.submit(session_request(2, 3, true, {1}, 30, collector.callback()));
  engine.submit(session_request(3, 3, false, {1}, 3, collector.callback()));
  engine.submit(session_request(4, 3, true, {1}, 3, collector.callback()));
  gate.is_open = true;
  CHECK(collector.wait(3).last.error_code == ErrorCode::kSessionBusy);
  CHECK(collector.wait(4).last.error_code == ErrorCode::kSessionBusy);
  CHECK(collector.wait(2).tokens == expected_tokens({1}, 30));
  Request stop = session_request(5, 3, false, {}, 0, collector.callback());
  stop.session->stop = true;
  CHECK(failure_of(collector, engine, std::move(stop)) == ErrorCode::kSessionIdle);
  Request end = session_request(6, 77, false, {1}, 0, collector.callback());
  end.session->end = true;
  CHECK(failure_of(collector, engine, std::move(end)) == ErrorCode::kUnknownSession);
  CHECK(failure_of(collector, engine,
                   session_request(7, 3, false, std::vector<int32_t>(100, 1), 3, collector.callback())) ==
        ErrorCode::kTooLong);
  CHECK(turn(engine, collector, 8, 3, false, {2}, 2).size() == 2);  // the session is as it was
}

ENGINE_TEST(a_stopped_turn_keeps_the_tokens_made_so_far) {
  Collector collector;
  StepGate gate{5};
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = gate.hook();
  Engine engine(small_config(), std::move(runner), letters());
  engine.submit(session_request(1, 4, true, {1, 2}, 120, collector.callback()));
  collector.wait_started(1);
  Request stop = session_request(2, 4, false, {}, 0, collector.callback());
  stop.session->stop = true;
  engine.submit(std::move(stop));
  gate.is_open = true;
  const Collector::Response stopped = collector.wait(1);
  CHECK(stopped.finish == FinishReason::kCancelled);
  CHECK(collector.wait(2).finish == FinishReason::kStop);
  std::vector<int32_t> tokens = {1, 2};
  tokens.insert(tokens.end(), stopped.tokens.begin(), stopped.tokens.end());
  tokens.push_back(9);
  CHECK(turn(engine, collector, 3, 4, false, {9}, 4) == expected_tokens(tokens, 4));
}

ENGINE_TEST(an_ended_session_is_gone_with_its_blocks) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  turn(engine, collector, 1, 4, true, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  CHECK(engine.stats().blocks_idle > 0);
  Request end = session_request(2, 4, false, {1}, 0, collector.callback());
  end.session->end = true;
  engine.submit(std::move(end));
  CHECK(collector.wait(2).finish == FinishReason::kStop);
  CHECK_EQUAL(engine.stats().blocks_idle, 0);
  CHECK_EQUAL(engine.stats().sessions, 0);
  CHECK(failure_of(collector, engine, session_request(3, 4, false, {1}, 3, collector.callback())) ==
        ErrorCode::kUnknownSession);
  Request one_shot = session_request(4, 0, true, {1, 2, 3, 4, 5, 6}, 3, collector.callback());
  one_shot.session->end = true;
  engine.submit(std::move(one_shot));
  CHECK(collector.wait(4).tokens == expected_tokens({1, 2, 3, 4, 5, 6}, 3));
  CHECK_EQUAL(engine.stats().sessions, 0);
  CHECK_EQUAL(engine.stats().blocks_idle, 0);
}

ENGINE_TEST(several_responses_share_the_prompts_blocks_and_end_one_by_one) {
  Collector collector;
  EngineConfig config = small_config();
  config.page_count = pages_of(100);
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  std::mt19937 random(4);
  const std::vector<int32_t> prompt = random_prompt(random, 62);
  Request request = make_request(1, prompt, 9, collector.callback());
  request.params.n = 4;
  request.params.stream = false;
  engine.submit(std::move(request));
  int final_outputs = 0;
  for (int index = 0; index < 4; ++index) {
    const Collector::Response response = collector.wait(1, index);
    CHECK(response.tokens == expected_tokens(prompt, 9));
    CHECK_EQUAL(response.outputs, 1);
    final_outputs += response.last.is_final;
  }
  CHECK_EQUAL(final_outputs, 1);
  CHECK(engine.stats().tokens_computed <= 62 + 3 * 2 + 4 * 9);  // 60 of the prompt's tokens fill blocks
  CHECK_EQUAL(engine.stats().completed, 1);
  CHECK_EQUAL(engine.stats().blocks_used + engine.stats().blocks_idle, 0);
}

ENGINE_TEST(scoring_sums_minus_log_p_over_the_prompt_in_chunks) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  std::vector<int32_t> prompt = {1};
  const std::vector<int32_t> likely = expected_tokens(prompt, 60);
  prompt.insert(prompt.end(), likely.begin(), likely.end());
  prompt[30] = (prompt[30] + 1) % kStubVocab;  // from here on the stub predicts something else, except by chance
  int hits = 0;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    hits += stub_next({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i) + 1}) == prompt[i + 1];
  }
  Request request = make_request(1, prompt, 0, collector.callback());
  request.params.scores_prompt = true;
  engine.submit(std::move(request));
  const Output scored = collector.wait(1).last;
  const double normaliser = std::log(std::exp(5.0) + kStubVocab - 1);
  CHECK_EQUAL(scored.scored_tokens, 60);
  CHECK(std::abs(scored.score - (60 * normaliser - 5.0 * hits)) < 1e-6);
}

ENGINE_TEST(log_probabilities_of_the_prompt_come_once_with_the_first_response) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  std::vector<int32_t> prompt = {1};
  const std::vector<int32_t> likely = expected_tokens(prompt, 60);
  prompt.insert(prompt.end(), likely.begin(), likely.end());
  prompt[30] = (prompt[30] + 1) % kStubVocab;
  const double normaliser = std::log(std::exp(5.0) + kStubVocab - 1);
  for (const int length : {0, 5}) {
    const int responses = length == 0 ? 1 : 3;
    const auto id = static_cast<RequestId>(length) + 1;
    Request request = make_request(id, prompt, length, collector.callback());
    request.params.prompt_logprobs = 2;
    request.params.n = responses;
    engine.submit(std::move(request));
    for (int response = 1; response < responses; ++response)
      CHECK(collector.wait(id, response).prompt_logprobs.empty());
    const Collector::Response first = collector.wait(id);
    CHECK(first.finish == FinishReason::kLength);
    CHECK_EQUAL(first.tokens.size(), static_cast<size_t>(length));
    CHECK_EQUAL(first.prompt_logprobs.size(), prompt.size());
    CHECK(std::isnan(first.prompt_logprobs[0].chosen));
    for (size_t i = 1; i < prompt.size(); ++i) {
      const int32_t predicted = stub_next({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i)});
      const TokenLogprobs& entry = first.prompt_logprobs[i];
      CHECK(std::abs(entry.chosen - ((predicted == prompt[i] ? 5.0 : 0.0) - normaliser)) < 1e-5);
      CHECK_EQUAL(entry.top[0].first, predicted);
    }
    for (const TokenLogprobs& entry : first.prompt_logprobs) CHECK_EQUAL(entry.top.size(), 2u);
  }
}

ENGINE_TEST(what_cannot_go_with_log_probabilities_of_the_prompt_is_refused) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  const auto rejection = [&](const std::function<void(Request&)>& change) {
    Request request = make_request(1, {1, 2}, 0, collector.callback());
    request.params.prompt_logprobs = 1;
    change(request);
    return error_of([&] { engine.submit(std::move(request)); });
  };
  CHECK(rejection([](Request& request) { request.params.n = 2; }) == ErrorCode::kInvalidArgument);
  CHECK(rejection([](Request& request) { request.params.prompt_logprobs = 21; }) == ErrorCode::kInvalidArgument);
  CHECK(rejection([](Request& request) { request.session = SessionParams{}; }) == ErrorCode::kInvalidArgument);
}

ENGINE_TEST(hidden_states_and_logits_come_for_the_tokens_asked_for) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  Request request = make_request(1, std::vector<int32_t>(50, 2), 5, collector.callback());
  request.params.stream = false;
  request.params.hidden_states = RequestedLogits::kAll;
  request.params.logits = RequestedLogits::kGeneration;
  engine.submit(std::move(request));
  const Output output = collector.wait(1).last;
  CHECK_EQUAL(output.hidden_states.size(), 54u);
  for (size_t i = 0; i < output.hidden_states.size(); ++i) CHECK_EQUAL(output.hidden_states[i], static_cast<float>(i));
  CHECK_EQUAL(output.logits.size(), 5u * kStubVocab);
}

ENGINE_TEST(an_embedding_is_the_hidden_state_of_the_prompts_last_token) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  const auto request_on = [&](RequestId id) {
    Request request = make_request(id, std::vector<int32_t>(50, 2), 0, collector.callback());
    request.params.output_embedding = true;
    return request;
  };
  for (const RequestId id : {1, 2}) {  // the second finds all but the last token
    engine.submit(request_on(id));
    const Output output = collector.wait(id).last;
    CHECK(output.embedding == std::vector<float>{49});
    CHECK(output.finish == FinishReason::kStop);
    CHECK(output.token_ids.empty() && output.hidden_states.empty());
  }
  Request of_session = request_on(3);
  of_session.session = SessionParams{};
  CHECK(error_of([&] { engine.submit(std::move(of_session)); }) == ErrorCode::kInvalidArgument);
}

ENGINE_TEST(a_request_that_takes_too_long_ends_with_a_timeout) {
  Collector collector;
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  Engine engine(small_config(), std::move(runner), letters());
  Request request = make_request(1, {1, 2}, 120, collector.callback());
  request.deadline = Clock::now() + std::chrono::milliseconds(30);
  engine.submit(std::move(request));
  engine.submit(make_request(2, {1, 2}, 60, collector.callback()));
  CHECK(collector.wait(1).last.error_code == ErrorCode::kTimeout);
  CHECK(collector.wait(2).tokens == expected_tokens({1, 2}, 60));
}

ENGINE_TEST(a_logits_hook_that_throws_ends_its_request_alone) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  Request request = make_request(1, {1, 2}, 20, collector.callback());
  request.params.logits_hook = [](const std::vector<int32_t>& tokens, float* logits, int) {
    if (tokens.size() > 5) throw std::runtime_error("the hook is tired");
    logits[7] = 100;
  };
  engine.submit(std::move(request));
  engine.submit(make_request(2, {1, 2}, 20, collector.callback()));
  const Collector::Response failed = collector.wait(1);
  CHECK(failed.tokens == std::vector<int32_t>(4, 7));
  CHECK(failed.error.find("tired") != std::string::npos);
  CHECK(collector.wait(2).tokens == expected_tokens({1, 2}, 20));
}

}  // namespace turbomind::testing
