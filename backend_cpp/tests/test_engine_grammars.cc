// Responses under a grammar, and requests that wait for one: the engine on a stub model.
#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/engine_helpers.h"
#include "tests/stub_grammar.h"

namespace turbomind::testing {

namespace {

std::unique_ptr<Engine> pattern_engine(const EngineConfig& config = small_config()) {
  return std::make_unique<Engine>(config, std::make_unique<StubRunner>(), letters(),
                                  std::make_unique<PatternCompiler>());
}

Request request_under(const std::string& format, RequestId id, OutputCallback callback, int tokens = 4) {
  Request request = make_request(id, {1, 2}, tokens, std::move(callback));
  request.params.response_format = format;
  return request;
}

// Keeps the compiler from coming to an end with "slow" formats.
struct SlowCompiler {
  SlowCompiler() { PatternCompiler::is_blocked = true; }
  ~SlowCompiler() { PatternCompiler::is_blocked = false; }
};

// State that compiler, grammar and matcher of one library share, and lose with the compiler.
struct GrammarLibrary {
  std::atomic<bool> is_loaded{true};
  std::atomic<int> uses_after_unload{0};

  void use() { uses_after_unload += !is_loaded; }
};

// Grammars without an end, which may be used while their compiler lives.
struct LibraryCompiler final : GrammarCompiler {
  explicit LibraryCompiler(std::shared_ptr<GrammarLibrary> used) : library(std::move(used)) {}
  ~LibraryCompiler() override { library->is_loaded = false; }
  std::shared_ptr<const Grammar> compile(const std::string&, const Waiting&) override {
    // The grammar and its matchers share it, and the last of them uses the library at its own end.
    const std::shared_ptr<GrammarLibrary> shared(library.get(),
                                                 [kept = library](GrammarLibrary* used) { used->use(); });
    const auto mask = [shared](int) { return shared->use(), every_token(); };
    return std::make_shared<StubGrammar>(mask, [shared](int, int32_t) { shared->use(); });
  }
  const std::shared_ptr<GrammarLibrary> library;
};

}  // namespace

PLAIN_ENGINE_TEST(a_grammar_constrains_its_response_and_forced_tokens_cost_no_step) {
  Collector collector;
  EngineConfig config = small_config();
  config.eos_token_ids = {60};
  const auto engine = pattern_engine(config);
  engine->submit(request_under("pattern", 1, collector.callback(), 20));
  const Collector::Response response = collector.wait(1);
  CHECK(response.finish == FinishReason::kStop);
  CHECK_EQUAL(response.tokens.size(), 8u);
  for (size_t i = 0; i < 8; ++i) CHECK(i % 2 == 1 ? response.tokens[i] == 11 : response.tokens[i] < 10);
  CHECK_EQUAL(engine->stats().steps, engines_draft ? 4 : 5);  // four free choices and the end
}

ENGINE_TEST(a_slow_or_broken_grammar_holds_up_nobody_else) {
  Collector collector;
  const auto engine = pattern_engine();
  PatternCompiler::is_blocked = true;
  engine->submit(request_under("slow", 1, collector.callback()));
  engine->submit(request_under("broken", 2, collector.callback()));
  engine->submit(request_under("slow", 3, collector.callback()));
  engine->cancel(3);
  engine->submit(make_request(4, {1, 2}, 4, collector.callback()));
  CHECK(collector.wait(4).tokens == expected_tokens({1, 2}, 4));
  PatternCompiler::is_blocked = false;
  CHECK(collector.wait(2).last.error_code == ErrorCode::kInvalidArgument);
  CHECK(collector.wait(1).finish == FinishReason::kLength);
  CHECK(collector.wait(3).finish == FinishReason::kCancelled);
}

ENGINE_TEST(a_grammar_that_cannot_be_used_fails_its_request_and_frees_its_session) {
  Collector collector;
  const auto engine = pattern_engine();
  turn(*engine, collector, 1, 5, true, {1, 2}, 2);
  Request request = session_request(2, 5, false, {3}, 4, collector.callback());
  request.params.response_format = "unusable";
  CHECK(failure_of(collector, *engine, std::move(request)) == ErrorCode::kInternal);
  CHECK_EQUAL(turn(*engine, collector, 3, 5, false, {3}, 2).size(), 2u);
}

ENGINE_TEST(a_refused_request_leaves_its_session_as_it_was) {
  Collector collector;
  const auto engine = pattern_engine();
  turn(*engine, collector, 1, 5, true, {1, 2, 3, 4, 5}, 2);
  Request rolls_back = session_request(2, 5, false, {3}, 4, collector.callback());
  rolls_back.session->step = 1;
  Request begins_again = session_request(3, 5, true, {3}, 4, collector.callback());
  for (Request* request : {&rolls_back, &begins_again}) {
    request->params.response_format = "unusable";
    CHECK(failure_of(collector, *engine, std::move(*request)) == ErrorCode::kInternal);
  }
  Request too_long = session_request(4, 5, false, std::vector<int32_t>(126, 1), 1, collector.callback());
  too_long.session->step = 2;
  CHECK(failure_of(collector, *engine, std::move(too_long)) == ErrorCode::kTooLong);
  turn(*engine, collector, 5, 5, false, {3}, 2);
  CHECK_EQUAL(collector.wait(5).last.history_token_len, 7);
}

ENGINE_TEST(a_response_whose_siblings_cannot_begin_ends_its_request) {
  Collector collector;
  const auto engine = pattern_engine();
  Request request = request_under("scarce", 1, collector.callback(), 20);
  request.params.n = 4;
  engine->submit(std::move(request));
  const Output last = collector.wait(1).last;
  CHECK(last.finish == FinishReason::kError);
  CHECK(last.is_final);
  CHECK_EQUAL(engine->stats().failed, 1);
}

ENGINE_TEST(closing_answers_requests_whose_grammars_are_not_compiled) {
  Collector collector;
  std::thread closing;
  {
    const SlowCompiler slow;
    auto engine = pattern_engine();
    engine->submit(request_under("slow", 1, collector.callback()));
    engine->submit(request_under("slow", 2, collector.callback()));
    closing = std::thread([&engine] { engine.reset(); });
    for (const RequestId id : {1, 2}) {
      const Output last = collector.wait(id).last;
      CHECK(last.finish == FinishReason::kCancelled);
      CHECK(last.is_final);
      CHECK_EQUAL(last.input_token_len, 2);
    }
    PatternCompiler::is_blocked = false;
    closing.join();
  }
}

ENGINE_TEST(a_request_can_be_cancelled_and_can_be_late_while_its_grammar_is_compiled) {
  Collector collector;
  const auto engine = pattern_engine();
  const SlowCompiler slow;
  engine->submit(request_under("slow", 1, collector.callback()));
  Request late = request_under("slow", 2, collector.callback());
  late.deadline = Clock::now() + std::chrono::milliseconds(5);
  engine->submit(std::move(late));
  engine->cancel(1);
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(collector.wait(2).last.error_code == ErrorCode::kTimeout);
  CHECK_EQUAL(engine->stats().cancelled, 1);
  CHECK_EQUAL(engine->stats().failed, 1);
}

ENGINE_TEST(grammars_are_not_used_after_their_compiler_is_gone) {
  Collector collector;
  const auto library = std::make_shared<GrammarLibrary>();
  {
    auto runner = std::make_unique<StubRunner>();
    runner->on_step = [](int step) { std::this_thread::sleep_for(std::chrono::milliseconds(step < 5 ? 0 : 100)); };
    Engine engine(small_config(), std::move(runner), letters(), std::make_unique<LibraryCompiler>(library));
    engine.submit(request_under("endless", 1, collector.callback(), 120));
    collector.wait_started(1);
  }
  CHECK(collector.wait(1).finish == FinishReason::kCancelled);
  CHECK(!library->is_loaded);
  CHECK_EQUAL(library->uses_after_unload.load(), 0);
}

ENGINE_TEST(without_a_compiler_a_response_format_is_refused) {
  Collector collector;
  Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
  CHECK(error_of([&] { engine.submit(request_under("pattern", 1, collector.callback())); }) == ErrorCode::kUnavailable);
}

}  // namespace turbomind::testing
