// Requests to an engine on the stub model, and what comes back.
#pragma once

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

// Whether engines of small_config() draft tokens.
inline bool engines_draft = false;

// Runs a test body as an engine is to be run.
inline void run_engine_test(bool samples, bool drafts, void (*body)(), bool has_groups = false) {
  stubs_sample_tokens = samples;
  stubs_have_groups = has_groups;
  engines_draft = stubs_repeat_themselves = drafts;
  body();
  engines_draft = stubs_repeat_themselves = stubs_have_groups = false;
}

// Pages in which `blocks` blocks of each group find room, with the states of some sequences.
inline int pages_of(int blocks) {
  return stubs_have_groups && blocks > 0 ? 3 * blocks + 12 : blocks;
}

// A test of the engine, which runs four times: the engine chooses tokens, and the runner does; the engine drafts tokens
// of a model that repeats itself, or it does not.
#define PLAIN_ENGINE_TEST(name)                                                                 \
  static void name();                                                                           \
  static const ::turbomind::testing::Registration registration_##name{                          \
      #name, [] { ::turbomind::testing::run_engine_test(false, false, name); }};                \
  static const ::turbomind::testing::Registration ahead_##name{                                 \
      #name "_chosen_ahead", [] { ::turbomind::testing::run_engine_test(true, false, name); }}; \
  static const ::turbomind::testing::Registration drafted_##name{                               \
      #name "_drafted", [] { ::turbomind::testing::run_engine_test(false, true, name); }};      \
  static const ::turbomind::testing::Registration both_##name{                                  \
      #name "_drafted_ahead", [] { ::turbomind::testing::run_engine_test(true, true, name); }}; \
  static void name()

// The same two times more, of a model whose layers have windows and states too; for what does not count blocks or hits.
#define ENGINE_TEST(name)                                                                                \
  static void name();                                                                                    \
  static const ::turbomind::testing::Registration grouped_##name{                                        \
      #name "_grouped", [] { ::turbomind::testing::run_engine_test(true, false, name, true); }};         \
  static const ::turbomind::testing::Registration grouped_drafted_##name{                                \
      #name "_grouped_drafted", [] { ::turbomind::testing::run_engine_test(false, true, name, true); }}; \
  PLAIN_ENGINE_TEST(name)

inline constexpr auto kDeadline = std::chrono::seconds(60);

template <class Condition>
void wait_until(Condition&& holds_true) {
  const auto end = Clock::now() + kDeadline;
  while (!holds_true()) {
    if (Clock::now() > end) throw Failure("it did not come to that");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// A runner's steps begin while it is open; the first few always do.
struct StepGate {
  int free_steps = 0;
  std::atomic<bool> is_open{false};

  std::function<void(int)> hook() {
    return [this](int step) { wait_until([this, step] { return step < free_steps || is_open; }); };
  }
};

inline TokenTable letters() {
  std::vector<TokenTable::Token> tokens;
  for (int id = 0; id < kStubVocab; ++id)
    tokens.push_back({std::string(1, static_cast<char>('0' + id)), id >= kStubVocab - 2});
  return TokenTable(std::move(tokens));
}

// Collects what comes out, and waits for ends.
class Collector {
 public:
  struct Response {
    std::vector<int32_t> tokens;
    std::string text;
    int outputs = 0;
    FinishReason finish = FinishReason::kNone;
    std::string error;
    std::vector<TokenLogprobs> prompt_logprobs;
    Output last;
  };

  OutputCallback callback() {
    return [this](Output&& output) {
      const std::lock_guard lock(mu_);
      Response& response = responses_[output.request * 100 + static_cast<RequestId>(output.index)];
      CHECK(response.finish == FinishReason::kNone);
      response.last = output;
      response.tokens.insert(response.tokens.end(), output.token_ids.begin(), output.token_ids.end());
      response.text += output.text;
      response.prompt_logprobs.insert(response.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                      output.prompt_logprobs.end());
      response.finish = output.finish;
      response.error = output.error;
      ++response.outputs;
      changed_.notify_all();
    };
  }

  Response wait(RequestId id, int index = 0) {
    id = id * 100 + static_cast<RequestId>(index);
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, kDeadline, [&] { return responses_[id].finish != FinishReason::kNone; })) {
      throw Failure("request " + std::to_string(id) + " did not end");
    }
    return responses_[id];
  }

  // Waits until the request has produced something.
  void wait_started(RequestId id) {
    id *= 100;
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, kDeadline, [&] { return responses_[id].outputs > 0; }))
      throw Failure("nothing came out");
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<RequestId, Response> responses_;
};

inline std::vector<int32_t> expected_tokens(std::vector<int32_t> tokens, int count) {
  std::vector<int32_t> response;
  for (int i = 0; i < count; ++i) {
    response.push_back(stub_next(tokens));
    tokens.push_back(response.back());
  }
  return response;
}

inline std::vector<int32_t> random_prompt(std::mt19937& random, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(random() % kStubVocab));
  return prompt;
}

inline Request make_request(RequestId id, std::vector<int32_t> prompt, int max_new_tokens, OutputCallback callback) {
  Request request;
  request.id = id;
  request.input_ids = std::move(prompt);
  request.params.max_new_tokens = max_new_tokens;
  request.on_output = std::move(callback);
  return request;
}

// Of a stub's model.
inline OutputSpace stub_space() {
  static const TokenTable table = letters();
  return {table, kStubVocab, 1};
}

inline EngineConfig small_config() {
  EngineConfig config;
  config.session_len = 128;
  config.max_batch_size = 8;
  config.max_step_tokens = 24;
  config.block_len = 4;
  config.page_count = pages_of(40);
  config.checks_invariants = true;
  if (engines_draft) {
    config.speculation.num_speculative_tokens = 5;
    config.speculation.is_adaptive = false;
    config.speculation.prompt_lookup_min = 2;
    config.speculation.shared_tokens = 400;
  }
  return config;
}

// Plan of an engine with these settings for a stub.
inline CachePlan plan_of_stub(const EngineConfig& config) {
  return plan_caches(StubRunner(), nullptr, {config.max_batch_size, config.session_len, config.block_len});
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

inline Request session_request(RequestId id, uint64_t session, bool start, std::vector<int32_t> input, int count,
                               OutputCallback callback) {
  Request request = make_request(id, std::move(input), count, std::move(callback));
  request.session = SessionParams{session, start, false, false, -1};
  return request;
}

// Runs a turn and returns its response.
inline std::vector<int32_t> turn(Engine& engine, Collector& collector, RequestId id, uint64_t session, bool start,
                                 std::vector<int32_t> input, int count) {
  engine.submit(session_request(id, session, start, std::move(input), count, collector.callback()));
  const Collector::Response response = collector.wait(id);
  CHECK(response.finish == FinishReason::kLength);
  return response.tokens;
}

inline ErrorCode failure_of(Collector& collector, Engine& engine, Request request) {
  const RequestId id = request.id;
  engine.submit(std::move(request));
  const Collector::Response response = collector.wait(id);
  CHECK(response.finish == FinishReason::kError);
  return response.last.error_code;
}

}  // namespace turbomind::testing
