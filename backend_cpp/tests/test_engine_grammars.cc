// Responses under a grammar, and requests that wait for one: the engine on a stub model.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/engine_helpers.h"
#include "tests/stub_grammar.h"

namespace turbomind::testing {

PLAIN_ENGINE_TEST(a_grammar_constrains_its_response_and_forced_tokens_cost_no_step) {
  Collector collector;
  EngineConfig config = small_config();
  config.eos_token_ids = {60};
  Engine engine(config, std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  Request request = make_request(1, {1, 2}, 20, collector.callback());
  request.params.response_format = "pattern";
  engine.submit(std::move(request));
  const Collector::Response response = collector.wait(1);
  CHECK(response.finish == FinishReason::kStop);
  CHECK_EQUAL(response.tokens.size(), 8u);
  for (size_t i = 0; i < 8; ++i) CHECK(i % 2 == 1 ? response.tokens[i] == 11 : response.tokens[i] < 10);
  CHECK_EQUAL(engine.stats().steps, engines_draft ? 4 : 5);  // four free choices and the end
}

ENGINE_TEST(a_slow_or_broken_grammar_holds_up_nobody_else) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  Request slow = make_request(1, {1, 2}, 4, collector.callback());
  slow.params.response_format = "slow";
  Request broken = make_request(2, {1, 2}, 4, collector.callback());
  broken.params.response_format = "broken";
  Request dropped = make_request(3, {1, 2}, 4, collector.callback());
  dropped.params.response_format = "slow";
  PatternCompiler::is_blocked = true;
  engine.submit(std::move(slow));
  engine.submit(std::move(broken));
  engine.submit(std::move(dropped));
  engine.cancel(3);
  engine.submit(make_request(4, {1, 2}, 4, collector.callback()));
  CHECK(collector.wait(4).tokens == expected_tokens({1, 2}, 4));
  PatternCompiler::is_blocked = false;
  CHECK(collector.wait(2).last.error_code == ErrorCode::kInvalidArgument);
  CHECK(collector.wait(1).finish == FinishReason::kLength);
  CHECK(collector.wait(3).finish == FinishReason::kCancelled);
}

ENGINE_TEST(a_grammar_that_cannot_be_used_fails_its_request_and_frees_its_session) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  turn(engine, collector, 1, 5, true, {1, 2}, 2);
  Request request = session_request(2, 5, false, {3}, 4, collector.callback());
  request.params.response_format = "unusable";
  CHECK(failure_of(collector, engine, std::move(request)) == ErrorCode::kInternal);
  CHECK_EQUAL(turn(engine, collector, 3, 5, false, {3}, 2).size(), 2u);
}

ENGINE_TEST(a_refused_request_leaves_its_session_as_it_was) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  turn(engine, collector, 1, 5, true, {1, 2, 3, 4, 5}, 2);
  Request rolls_back = session_request(2, 5, false, {3}, 4, collector.callback());
  rolls_back.session->step = 1;
  Request begins_again = session_request(3, 5, true, {3}, 4, collector.callback());
  for (Request* request : {&rolls_back, &begins_again}) {
    request->params.response_format = "unusable";
    CHECK(failure_of(collector, engine, std::move(*request)) == ErrorCode::kInternal);
  }
  Request too_long = session_request(4, 5, false, std::vector<int32_t>(126, 1), 1, collector.callback());
  too_long.session->step = 2;
  CHECK(failure_of(collector, engine, std::move(too_long)) == ErrorCode::kTooLong);
  turn(engine, collector, 5, 5, false, {3}, 2);
  CHECK_EQUAL(collector.wait(5).last.history_token_len, 7);
}

ENGINE_TEST(a_response_whose_siblings_cannot_begin_ends_its_request) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  Request request = make_request(1, {1, 2}, 20, collector.callback());
  request.params.response_format = "scarce";
  request.params.n = 4;
  engine.submit(std::move(request));
  const Output last = collector.wait(1).last;
  CHECK(last.finish == FinishReason::kError);
  CHECK(last.is_final);
  CHECK_EQUAL(engine.stats().failed, 1);
}

namespace {

// Keeps the compiler from coming to an end with "slow" formats.
struct SlowCompiler {
  SlowCompiler() { PatternCompiler::is_blocked = true; }
  ~SlowCompiler() { PatternCompiler::is_blocked = false; }
};

Request slow_request(RequestId id, OutputCallback callback) {
  Request request = make_request(id, {1, 2, 3}, 4, std::move(callback));
  request.params.response_format = "slow";
  return request;
}

}  // namespace

ENGINE_TEST(closing_answers_requests_whose_grammars_are_not_compiled) {
  Collector collector;
  std::thread closing;
  {
    const SlowCompiler slow;
    auto engine = std::make_unique<Engine>(small_config(), std::make_unique<StubRunner>(), letters(),
                                           std::make_unique<PatternCompiler>());
    engine->submit(slow_request(1, collector.callback()));
    engine->submit(slow_request(2, collector.callback()));
    closing = std::thread([&engine] { engine.reset(); });
    for (const RequestId id : {1, 2}) {
      const Output last = collector.wait(id).last;
      CHECK(last.finish == FinishReason::kCancelled);
      CHECK(last.is_final);
      CHECK_EQUAL(last.input_token_len, 3);
    }
    PatternCompiler::is_blocked = false;
    closing.join();
  }
}

ENGINE_TEST(a_request_can_be_cancelled_and_can_be_late_while_its_grammar_is_compiled) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters(), std::make_unique<PatternCompiler>());
  const SlowCompiler slow;
  engine.submit(slow_request(1, collector.callback()));
  Request late = slow_request(2, collector.callback());
  late.deadline = Clock::now() + std::chrono::milliseconds(5);
  engine.submit(std::move(late));
  engine.cancel(1);
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(collector.wait(2).last.error_code == ErrorCode::kTimeout);
  CHECK_EQUAL(engine.stats().cancelled, 1);
  CHECK_EQUAL(engine.stats().failed, 1);
}

ENGINE_TEST(grammars_are_not_used_after_their_compiler_is_gone) {
  Collector collector;
  const auto library = std::make_shared<GrammarLibrary>();
  {
    auto runner = std::make_unique<StubRunner>();
    runner->on_step = [](int step) { std::this_thread::sleep_for(std::chrono::milliseconds(step < 5 ? 0 : 100)); };
    Engine engine(small_config(), std::move(runner), letters(), std::make_unique<LibraryCompiler>(library));
    Request request = make_request(1, {1, 2}, 120, collector.callback());
    request.params.response_format = "endless";
    engine.submit(std::move(request));
    collector.wait_started(1);
  }
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(!library->is_loaded);
  CHECK_EQUAL(library->uses_after_unload.load(), 0);
}

ENGINE_TEST(without_a_compiler_a_response_format_is_refused) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  Request request = make_request(1, {1, 2}, 4, collector.callback());
  request.params.response_format = "pattern";
  CHECK(error_of([&] { engine.submit(std::move(request)); }) == ErrorCode::kUnavailable);
}

}  // namespace turbomind::testing
