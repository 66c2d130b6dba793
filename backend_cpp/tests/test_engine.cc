// Engine and scheduler on a stub model, under random traffic.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "engine/engine.h"
#include "tests/check.h"
#include "tests/stub_runner.h"

namespace turbomind::testing {

namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

TokenTable letters() {
  std::vector<TokenTable::Token> tokens;
  for (int id = 0; id < kStubVocab; ++id) tokens.push_back({std::string(1, static_cast<char>('0' + id)), id >= kStubVocab - 2});
  return TokenTable(std::move(tokens));
}

// Collects what comes out, and waits for ends.
class Collector {
 public:
  struct Answer {
    std::vector<int32_t> tokens;
    std::string text;
    int outputs = 0;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };

  OutputCallback callback() {
    return [this](Output&& output) {
      const std::lock_guard lock(mu_);
      Answer& answer = answers_[output.request];
      CHECK(answer.finish == FinishReason::kNone);
      answer.tokens.insert(answer.tokens.end(), output.token_ids.begin(), output.token_ids.end());
      answer.text += output.text;
      answer.finish = output.finish;
      answer.error = output.error;
      ++answer.outputs;
      changed_.notify_all();
    };
  }

  Answer wait(RequestId id) {
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, kDeadline, [&] { return answers_[id].finish != FinishReason::kNone; })) {
      throw Failure("request " + std::to_string(id) + " did not end");
    }
    return answers_[id];
  }

  // Waits until the request has produced something.
  void wait_started(RequestId id) {
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, kDeadline, [&] { return answers_[id].outputs > 0; })) throw Failure("nothing came out");
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
};

std::vector<int32_t> expected_answer(std::vector<int32_t> tokens, int count) {
  std::vector<int32_t> answer;
  for (int i = 0; i < count; ++i) {
    answer.push_back(stub_next(tokens));
    tokens.push_back(answer.back());
  }
  return answer;
}

std::vector<int32_t> random_prompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(random() % kStubVocab));
  return prompt;
}

Request make_request(RequestId id, std::vector<int32_t> prompt, int max_new_tokens, OutputCallback callback) {
  Request request;
  request.id = id;
  request.input_ids = std::move(prompt);
  request.params.max_new_tokens = max_new_tokens;
  request.on_output = std::move(callback);
  return request;
}

EngineConfig small_config() {
  EngineConfig config;
  config.session_len = 128;
  config.max_batch_size = 8;
  config.max_step_tokens = 24;
  config.block_len = 4;
  config.block_count = 40;
  return config;
}

template <class Body>
ErrorCode error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  throw Failure("no error was thrown");
}

}  // namespace

TEST(random_traffic_through_a_small_cache_answers_as_if_alone) {
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
      Sent one{random_prompt(random, 1 + static_cast<int>(random() % 60)), 1 + static_cast<int>(random() % 50), random() % 4 == 0, random() % 2 == 0};
      Request request = make_request(id, one.prompt, one.count, collector.callback());
      request.params.stream = one.is_streamed;
      engine.submit(std::move(request));
      if (one.is_cancelled) engine.cancel(id);
      sent.emplace(id, std::move(one));
    }
    for (const auto& [id, one] : sent) {
      const Collector::Answer answer = collector.wait(id);
      const std::vector<int32_t> want = expected_answer(one.prompt, one.count);
      CHECK(answer.tokens.size() <= want.size());
      CHECK(std::equal(answer.tokens.begin(), answer.tokens.end(), want.begin()));
      if (answer.finish != FinishReason::kCancelled) {
        CHECK(answer.finish == FinishReason::kLength);
        CHECK_EQUAL(answer.tokens.size(), want.size());
        if (!one.is_streamed) CHECK_EQUAL(answer.outputs, 1);
      }
    }
    const EngineStats stats = engine.stats();
    CHECK_EQUAL(stats.blocks_used, 0);
    CHECK_EQUAL(stats.running + stats.waiting, 0);
    CHECK_EQUAL(stats.completed + stats.cancelled, 120);
  }
}

TEST(a_cache_that_is_too_small_for_all_preempts_and_loses_nothing) {
  Collector collector;
  EngineConfig config = small_config();
  config.block_count = 12;  // 48 tokens; each answer grows to 40
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  for (RequestId id = 1; id <= 6; ++id) engine.submit(make_request(id, {static_cast<int32_t>(id), 2, 3}, 37, collector.callback()));
  for (RequestId id = 1; id <= 6; ++id) {
    CHECK(collector.wait(id).tokens == expected_answer({static_cast<int32_t>(id), 2, 3}, 37));
  }
  CHECK(engine.stats().preemptions > 0);
  CHECK_EQUAL(engine.stats().blocks_used, 0);
}

TEST(scheduler_invariants_hold_after_every_event) {
  std::mt19937 random(5);
  for (int history = 0; history < 300; ++history) {
    BlockPool blocks(16);
    Scheduler scheduler({4, 12, 4}, blocks);
    StepInput input;
    RequestId next = 1;
    for (int event = 0; event < 80; ++event) {
      switch (random() % 4) {
        case 0:
          scheduler.add(std::make_unique<Sequence>(make_request(next++, random_prompt(random, 1 + static_cast<int>(random() % 30)), 20, {}), 0, kStubVocab));
          break;
        case 1:
          scheduler.remove(1 + random() % next);
          break;
        default: {
          std::vector<Sequence*> planned = scheduler.plan(input);
          scheduler.check_invariants();
          CHECK(static_cast<int>(input.tokens.size()) <= 12);
          int decoding_rows = 0;
          for (const StepSpan& span : input.spans) decoding_rows += span.count == 1;
          CHECK(planned.size() == input.spans.size());
          if (scheduler.running_count() + scheduler.waiting_count() > 0) CHECK(!planned.empty());
          std::vector<RequestId> finished;
          for (size_t i = 0; i < planned.size(); ++i) {
            if (!input.spans[i].wants_logits) continue;
            if (static_cast<int>(planned[i]->tokens.size()) >= 50 || random() % 10 == 0) {
              finished.push_back(planned[i]->request.id);
            }
          }
          scheduler.commit();
          for (size_t i = 0; i < planned.size(); ++i) {
            if (input.spans[i].wants_logits) planned[i]->tokens.push_back(1);
          }
          for (const RequestId id : finished) CHECK(scheduler.remove(id) != nullptr);
        }
      }
      scheduler.check_invariants();
    }
    scheduler.remove_all();
    scheduler.check_invariants();
    CHECK_EQUAL(blocks.free_block_count(), 16);
  }
}

TEST(a_long_prompt_does_not_delay_running_answers_and_is_not_starved_by_them) {
  BlockPool blocks(1000);
  Scheduler scheduler({8, 12, 4}, blocks);
  StepInput input;
  for (RequestId id = 1; id <= 6; ++id) scheduler.add(std::make_unique<Sequence>(make_request(id, {1}, 500, {}), 0, kStubVocab));
  const auto step = [&] {
    const std::vector<Sequence*> planned = scheduler.plan(input);
    scheduler.commit();
    for (size_t i = 0; i < planned.size(); ++i) {
      if (input.spans[i].wants_logits) planned[i]->tokens.push_back(1);
    }
    return planned;
  };
  step();
  scheduler.add(std::make_unique<Sequence>(make_request(7, std::vector<int32_t>(60, 1), 5, {}), 0, kStubVocab));
  for (int round = 0; round < 10; ++round) {  // 60 tokens at 12 - 6 a step
    CHECK_EQUAL(step().size(), 7u);
    CHECK_EQUAL(input.tokens.size(), 12u);
  }
  CHECK(input.spans.back().wants_logits);
}

TEST(stop_tokens_end_an_answer_and_are_not_part_of_it) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  const std::vector<int32_t> free_run = expected_answer({9}, 12);
  Request request = make_request(1, {9}, 12, collector.callback());
  request.params.stop_token_ids = {free_run[6]};
  const auto first = std::find(free_run.begin(), free_run.end(), free_run[6]) - free_run.begin();
  engine.submit(std::move(request));
  const Collector::Answer answer = collector.wait(1);
  CHECK(answer.finish == FinishReason::kStop);
  CHECK_EQUAL(static_cast<long>(answer.tokens.size()), static_cast<long>(first));
}

TEST(min_new_tokens_keeps_stop_tokens_from_being_chosen) {
  Collector collector;
  EngineConfig config = small_config();
  for (int32_t token = 0; token < kStubVocab; ++token) {
    if (token != 3) config.eos_token_ids.push_back(token);  // everything but token 3 ends the answer
  }
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  Request request = make_request(1, {9}, 12, collector.callback());
  request.params.min_new_tokens = 5;
  engine.submit(std::move(request));
  const Collector::Answer answer = collector.wait(1);
  CHECK(answer.tokens.size() >= 5);
  CHECK(std::equal(answer.tokens.begin(), answer.tokens.begin() + 5, std::vector<int32_t>(5, 3).begin()));
}

TEST(logits_that_are_not_numbers_end_that_request_alone) {
  Collector collector;
  auto runner = std::make_unique<StubRunner>();
  runner->poison = expected_answer({1, 1}, 4)[3];
  Engine engine(small_config(), std::move(runner), letters());
  engine.submit(make_request(1, {1, 1}, 20, collector.callback()));
  const Collector::Answer broken = collector.wait(1);
  CHECK(broken.finish == FinishReason::kError);
  CHECK(broken.error.find("not numbers") != std::string::npos);
  CHECK(engine.is_healthy());
  CHECK_EQUAL(engine.stats().blocks_used, 0);
}

TEST(a_device_fault_ends_every_request_with_an_error_and_refuses_new_ones) {
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
    const Collector::Answer answer = collector.wait(id);
    CHECK(answer.finish == FinishReason::kError);
    CHECK(answer.error.find("device is gone") != std::string::npos || answer.error.find("device fault") != std::string::npos);
  }
  CHECK(!engine.is_healthy());
  CHECK(error_of([&] { engine.submit(make_request(99, {1}, 5, collector.callback())); }) == ErrorCode::kUnavailable);
}

TEST(a_cancelled_request_frees_its_blocks_before_the_next_step) {
  Collector collector;
  std::atomic<int> steps{0};
  auto runner = std::make_unique<StubRunner>();
  runner->on_step = [&](int) {
    ++steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  Engine engine(small_config(), std::move(runner), letters());
  engine.submit(make_request(1, {1, 2, 3}, 120, collector.callback()));
  collector.wait_started(1);
  engine.cancel(1);
  const int at_cancel = steps;
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(steps - at_cancel <= 1);  // the step that was running
  CHECK_EQUAL(engine.stats().blocks_used, 0);
}

TEST(destroying_the_engine_ends_open_requests_as_cancelled) {
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

TEST(bad_requests_are_refused_and_disturb_nothing) {
  Collector collector;
  EngineConfig config = small_config();
  config.max_waiting = 5;
  auto runner = std::make_unique<StubRunner>();
  std::atomic<bool> hold{true};
  runner->on_step = [&](int) {
    while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Engine engine(config, std::move(runner), letters());
  const auto refuse = [&](auto&& change) {
    return error_of([&] {
      Request request = make_request(50, {1}, 5, collector.callback());
      change(request);
      engine.submit(std::move(request));
    });
  };
  CHECK(refuse([](Request& r) { r.input_ids.clear(); }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.input_ids = {kStubVocab}; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.input_ids = {-1}; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.input_ids.assign(128, 1); }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.max_new_tokens = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.max_new_tokens = 129; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.temperature = -1; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.temperature = NAN; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.top_p = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.top_k = -1; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.repetition_penalty = 0; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.stop_words = {""}; }) == ErrorCode::kInvalidArgument);
  CHECK(refuse([](Request& r) { r.params.stop_token_ids = {kStubVocab}; }) == ErrorCode::kInvalidArgument);

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
  hold = false;
  for (RequestId id = 1; id <= accepted; ++id) CHECK(collector.wait(id).tokens == expected_answer({1}, 3));
}

}  // namespace turbomind::testing
