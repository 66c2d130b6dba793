// The engine on a stub model: traffic, ends, errors, faults.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "tests/engine_helpers.h"

namespace turbomind::testing {

ENGINE_TEST(random_traffic_through_a_small_cache_answers_as_if_alone) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    Collector collector;
    Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
    struct Sent {
      std::vector<int32_t> prompt;
      int count;
      bool is_cancelled;
      bool is_streamed;
    };
    std::map<RequestId, Sent> sent;
    for (RequestId id = 1; id <= 120; ++id) {
      Sent one{random_prompt(random, 1 + static_cast<int>(random() % 60)), 1 + static_cast<int>(random() % 50),
               random() % 4 == 0, random() % 2 == 0};
      Request request = make_request(id, one.prompt, one.count, collector.callback());
      request.params.stream = one.is_streamed;
      engine.submit(std::move(request));
      if (one.is_cancelled) engine.cancel(id);
      sent.emplace(id, std::move(one));
    }
    for (const auto& [id, one] : sent) {
      const Collector::Response response = collector.wait(id);
      const std::vector<int32_t> expected = expected_tokens(one.prompt, one.count);
      CHECK(response.tokens.size() <= expected.size());
      CHECK(std::equal(response.tokens.begin(), response.tokens.end(), expected.begin()));
      if (response.finish != FinishReason::kCancelled) {
        CHECK(response.finish == FinishReason::kLength);
        CHECK_EQUAL(response.tokens.size(), expected.size());
        if (!one.is_streamed) CHECK_EQUAL(response.outputs, 1);
      }
    }
    const EngineStats stats = engine.stats();
    CHECK_EQUAL(stats.blocks_used, 0);
    CHECK_EQUAL(stats.running + stats.waiting, 0);
    CHECK_EQUAL(stats.completed + stats.cancelled, 120);
  }
}

// Of a model whose layers have windows and states: prefixes of twelve documents, snapshots, cancelled requests.
TEST(ten_thousand_conversations_through_an_engine_lose_no_page) {
  run_engine_test(
      true, false,
      [] {
        std::mt19937 random(2);
        std::vector<std::vector<int32_t>> documents;
        for (int i = 0; i < 12; ++i) documents.push_back(random_prompt(random, 8 + 4 * i));
        EngineConfig config = small_config();
        config.enable_prefix_caching = true;
        config.snapshot_interval = 8;
        Collector collector;
        Engine engine(config, std::make_unique<StubRunner>(), letters());
        const auto start_one = [&](RequestId id, const std::vector<int32_t>& prompt, int count) {
          engine.submit(make_request(id, prompt, count, collector.callback()));
        };
        constexpr RequestId kConversations = 10'000, kAtOnce = 20;
        for (RequestId first = 1; first <= kConversations; first += kAtOnce) {
          std::vector<std::vector<int32_t>> prompts;
          for (RequestId id = first; id < first + kAtOnce; ++id) {
            prompts.push_back(documents[random() % documents.size()]);
            for (unsigned i = 1 + random() % 9; i > 0; --i)
              prompts.back().push_back(static_cast<int32_t>(random() % 8));
            start_one(id, prompts.back(), 6);
            if (random() % 8 == 0) engine.cancel(id);
          }
          for (RequestId id = first; id < first + kAtOnce; ++id) {
            const Collector::Response response = collector.wait(id);
            std::vector<int32_t> expected = expected_tokens(prompts[id - first], 6);
            if (response.finish == FinishReason::kCancelled) expected.resize(response.tokens.size());
            CHECK(response.tokens == expected);
          }
        }
        const EngineStats stats = engine.stats();
        CHECK(stats.prefix_cache_hits > 0);
        CHECK(stats.evictions > 0);
        CHECK_EQUAL(stats.blocks_used, 0);
        const std::vector<int32_t> whole = random_prompt(random, 120);  // has room only where all others make it
        start_one(kConversations + 1, whole, 8);
        CHECK(collector.wait(kConversations + 1).tokens == expected_tokens(whole, 8));
      },
      true);
}

ENGINE_TEST(a_cache_that_is_too_small_for_all_preempts_and_loses_nothing) {
  for (const int host_blocks : {0, 3, 40}) {
    Collector collector;
    EngineConfig config = small_config();
    config.page_count = pages_of(12);  // 48 tokens; each response grows to 40
    config.host_page_count = pages_of(host_blocks);
    StepGate gate;
    auto runner = std::make_unique<StubRunner>();
    runner->on_step = gate.hook();
    Engine engine(config, std::move(runner), letters());
    for (RequestId id = 1; id <= 6; ++id)
      engine.submit(make_request(id, {static_cast<int32_t>(id), 2, 3}, 37, collector.callback()));
    gate.is_open = true;
    for (RequestId id = 1; id <= 6; ++id) {
      CHECK(collector.wait(id).tokens == expected_tokens({static_cast<int32_t>(id), 2, 3}, 37));
    }
    CHECK(engine.stats().preemptions > 0);
    CHECK_EQUAL(engine.stats().swapped_in > 0, host_blocks > 0);
    CHECK_EQUAL(engine.stats().blocks_used, 0);
  }
}

TEST(an_engine_lets_encoders_of_its_process_go_first) {
  Collector collector;
  auto runner = std::make_unique<StubRunner>();
  const StubRunner& stub = *runner;
  Engine engine(small_config(), std::move(runner), letters());
  const auto run = [&](RequestId id) {
    engine.submit(make_request(id, {9}, 3, collector.callback()));
    collector.wait(id);
  };
  run(1);
  CHECK_EQUAL(stub.times_lowered.load(), 0);
  auto texts = std::make_unique<StubRunner>();
  const StubRunner& encoding = *texts;
  texts->traits_.is_pooling_model = true;
  const Engine encoder(small_config(), std::move(texts), letters());
  run(2);
  run(3);
  CHECK_EQUAL(stub.times_lowered.load(), 1);
  CHECK_EQUAL(encoding.times_lowered.load(), 0);
}

TEST(steps_begin_ahead_except_where_a_request_must_see_each_token) {
  const auto steps_ahead = [](const std::function<void(GenerationParams&)>& change) {
    stubs_sample_tokens = true;
    Collector collector;
    auto runner = std::make_unique<StubRunner>();
    const StubRunner& stub = *runner;
    Engine engine(small_config(), std::move(runner), letters());
    Request request = make_request(1, {9}, 12, collector.callback());
    change(request.params);
    engine.submit(std::move(request));
    CHECK_EQUAL(collector.wait(1).tokens.size(), 12u);
    CHECK_EQUAL(engine.stats().tokens_computed, 12);  // none after the last token
    return stub.steps_ahead.load();
  };
  CHECK_EQUAL(steps_ahead([](GenerationParams&) {}), 11);
  CHECK_EQUAL(steps_ahead([](GenerationParams& params) { params.bad_tokens = {{0}}; }), 11);
  CHECK_EQUAL(steps_ahead([](GenerationParams& params) { params.min_new_tokens = 12; }), 11);
  CHECK_EQUAL(steps_ahead([](GenerationParams& params) { params.bad_tokens = {{0, 1}}; }), 0);
  CHECK_EQUAL(steps_ahead([](GenerationParams& params) { params.bad_words = {"never"}; }), 0);
  CHECK_EQUAL(steps_ahead([](GenerationParams& params) { params.hidden_states = RequestedLogits::kGeneration; }), 0);
}

ENGINE_TEST(min_new_tokens_keeps_stop_tokens_from_being_chosen) {
  Collector collector;
  EngineConfig config = small_config();
  for (int32_t token = 0; token < kStubVocab; ++token) {
    if (token != 3) config.eos_token_ids.push_back(token);  // everything but token 3 ends the response
  }
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  Request request = make_request(1, {9}, 12, collector.callback());
  request.params.min_new_tokens = 5;
  engine.submit(std::move(request));
  const Collector::Response response = collector.wait(1);
  CHECK(response.tokens.size() >= 5);
  CHECK(std::equal(response.tokens.begin(), response.tokens.begin() + 5, std::vector<int32_t>(5, 3).begin()));
}

ENGINE_TEST(logits_that_are_not_numbers_end_that_request_alone) {
  Collector collector;
  auto runner = std::make_unique<StubRunner>();
  runner->poison = expected_tokens({1, 1}, 4)[3];
  Engine engine(small_config(), std::move(runner), letters());
  engine.submit(make_request(1, {1, 1}, 20, collector.callback()));
  const Collector::Response broken = collector.wait(1);
  CHECK(broken.finish == FinishReason::kError);
  CHECK(broken.error.find("not numbers") != std::string::npos);
  CHECK(engine.is_healthy());
  CHECK_EQUAL(engine.stats().blocks_used, 0);
}

ENGINE_TEST(a_device_fault_ends_every_request_with_an_error_and_refuses_new_ones) {
  Collector collector;
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = [](int step) {
    if (step == 5) throw std::runtime_error("the device is gone");
  };
  Engine engine(small_config(), std::move(runner), letters());
  for (RequestId id = 1; id <= 12; ++id) {
    try {
      engine.submit(make_request(id, {1, 2}, 100, collector.callback()));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);  // the fault came first
      continue;
    }
    const Collector::Response response = collector.wait(id);
    CHECK(response.finish == FinishReason::kError);
    CHECK(response.error.find("device is gone") != std::string::npos ||
          response.error.find("device fault") != std::string::npos);
  }
  CHECK(!engine.is_healthy());
  CHECK(error_of([&] { engine.submit(make_request(99, {1}, 5, collector.callback())); }) == ErrorCode::kUnavailable);
}

ENGINE_TEST(an_engine_hangs_while_a_step_takes_longer_than_it_may) {
  Collector collector;
  EngineConfig config = small_config();
  config.step_timeout = std::chrono::milliseconds(30);
  StepGate gate{.is_open = true};
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = gate.hook();
  Engine engine(config, std::move(runner), letters());
  engine.submit(make_request(1, {1, 2}, 5, collector.callback()));
  CHECK(collector.wait(1).tokens == expected_tokens({1, 2}, 5));
  wait_until([&] {
    std::this_thread::sleep_for(3 * config.step_timeout);
    return !engine.is_hung();  // it waits for requests
  });
  gate.is_open = false;
  engine.submit(make_request(2, {1, 2}, 5, collector.callback()));
  wait_until([&] { return engine.is_hung(); });
  gate.is_open = true;
  CHECK(collector.wait(2).tokens == expected_tokens({1, 2}, 5));
  wait_until([&] { return !engine.is_hung(); });
}

ENGINE_TEST(a_cancelled_request_frees_its_blocks_before_the_next_step) {
  Collector collector;
  std::atomic<int> steps{0};
  StepGate gate{5};
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = [&, wait = gate.hook()](int step) {
    ++steps;
    wait(step);
  };
  Engine engine(small_config(), std::move(runner), letters());
  engine.submit(make_request(1, {1, 2, 3}, 120, collector.callback()));
  collector.wait_started(1);
  engine.cancel(1);
  const int at_cancel = steps;
  gate.is_open = true;
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(steps - at_cancel <= 1);  // the step that was running
  CHECK_EQUAL(engine.stats().blocks_used, 0);
}

ENGINE_TEST(destroying_the_engine_ends_open_requests_as_cancelled) {
  Collector collector;
  {
    auto runner = std::make_unique<StubRunner>();
    runner->on_step = [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    Engine engine(small_config(), std::move(runner), letters());
    for (RequestId id = 1; id <= 20; ++id) engine.submit(make_request(id, {1, 2, 3}, 100, collector.callback()));
    collector.wait_started(1);
  }
  for (RequestId id = 1; id <= 20; ++id) CHECK(collector.wait(id).finish != FinishReason::kNone);
}

ENGINE_TEST(a_runner_that_can_be_started_again_is_and_has_forgotten_what_it_cached) {
  Collector collector;
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  auto runner = std::make_unique<StubRunner>();
  runner->traits_.processes = runner.get();
  std::atomic<bool> fails{false};
  std::atomic<int> restarts{0};
  runner->on_step = [&](int) {
    if (fails.exchange(false)) throw Error(ErrorCode::kUnavailable, "the worker was killed by signal 9");
  };
  runner->on_restart = [&] {
    if (++restarts == 1) throw Error(ErrorCode::kUnavailable, "no memory");
  };
  Engine engine(config, std::move(runner), letters());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  engine.submit(make_request(1, prompt, 5, collector.callback()));
  CHECK(collector.wait(1).tokens == expected_tokens(prompt, 5));
  fails = true;
  engine.submit(make_request(2, prompt, 5, collector.callback()));
  const Collector::Response lost = collector.wait(2);
  CHECK(lost.finish == FinishReason::kError);
  CHECK(lost.error.find("signal 9") != std::string::npos);
  RequestId id = 3;
  for (bool is_taken = false; !is_taken; ++id) {
    try {
      engine.submit(make_request(id, prompt, 5, collector.callback()));
      is_taken = collector.wait(id).finish == FinishReason::kLength;
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  // The stub throws for what is not in its cache: nothing of the time before was matched.
  CHECK(collector.wait(id - 1).tokens == expected_tokens(prompt, 5));
  CHECK_EQUAL(restarts.load(), 2);
  CHECK(!engine.has_failed());
}

ENGINE_TEST(a_response_may_take_all_that_its_prompt_leaves_of_a_conversation) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  const std::vector<int32_t> prompt(28, 5);
  engine.submit(make_request(1, prompt, kUnlimited, collector.callback()));
  CHECK(collector.wait(1).tokens == expected_tokens(prompt, 100));
}

ENGINE_TEST(bad_requests_are_refused_and_disturb_nothing) {
  Collector collector;
  EngineConfig config = small_config();
  config.max_waiting = 5;
  auto runner = std::make_unique<StubRunner>();
  StepGate gate;
  runner->on_step = gate.hook();
  Engine engine(config, std::move(runner), letters());
  const auto reject = [&](auto&& change) {
    return error_of([&] {
      Request request = make_request(50, {1}, 5, collector.callback());
      change(request);
      engine.submit(std::move(request));
    });
  };
  CHECK(reject([](Request& r) { r.input_ids.clear(); }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.input_ids = {kStubVocab}; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.input_ids = {-1}; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.input_ids.assign(128, 1); }) == ErrorCode::kTooLong);
  CHECK(reject([](Request& r) { r.params.max_new_tokens = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.max_new_tokens = 129; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.temperature = -1; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.temperature = NAN; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.top_p = -0.1F; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.top_k = -1; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.repetition_penalty = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.stop_words = {""}; }) == ErrorCode::kInvalidArgument);
  CHECK(reject([](Request& r) { r.params.stop_token_ids = {kStubVocab}; }) == ErrorCode::kInvalidArgument);

  RequestId accepted = 0;
  ErrorCode overload = ErrorCode::kInternal;
  for (RequestId id = 1; id < 40 && accepted == 0; ++id) {
    try {
      engine.submit(make_request(id, {1}, 3, collector.callback()));
    } catch (const Error& error) {
      overload = error.code();
      accepted = id - 1;
    }
  }
  CHECK(overload == ErrorCode::kUnavailable);
  gate.is_open = true;
  for (RequestId id = 1; id <= accepted; ++id) CHECK(collector.wait(id).tokens == expected_tokens({1}, 3));
}

}  // namespace turbomind::testing
