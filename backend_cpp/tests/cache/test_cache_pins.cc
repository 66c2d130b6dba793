// Pinned prompts: the last to leave memory, and never in the way of requests.
#include <future>
#include <optional>
#include <random>

#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

struct ControlResult {
  CacheReport report;
  std::optional<ErrorCode> error;
};

ControlResult control(Engine& engine, CacheControl::Action action, std::vector<int32_t> tokens = {}) {
  std::promise<ControlResult> promise;
  CacheControl control;
  control.action = action;
  control.tokens = std::move(tokens);
  control.on_done = [&](const CacheReport& report, const Error* error) {
    promise.set_value({report, error != nullptr ? std::make_optional(error->code()) : std::nullopt});
  };
  engine.control_cache(std::move(control));
  return promise.get_future().get();
}

// Asks for a response of a token; returns how much of the prompt was found.
int cached_tokens_of(Engine& engine, RequestId id, const std::vector<int32_t>& prompt) {
  Collector collector;
  engine.submit(make_request(id, prompt, 1, collector.callback()));
  const Collector::Response response = collector.wait(id);
  CHECK(response.tokens == expected_tokens(prompt, 1));
  return response.last.cached_token_len;
}

EngineConfig config_of(int blocks) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.page_count = pages_of(blocks);
  return config;
}

}  // namespace

ENGINE_TEST(a_pinned_prompt_stays_while_others_come_and_go) {
  using Action = CacheControl::Action;
  Engine engine(config_of(40), std::make_unique<StubRunner>(), letters());
  std::mt19937 random(1);
  const std::vector<int32_t> pinned = random_prompt(random, 21);
  CHECK(control(engine, Action::kPin, pinned).error == ErrorCode::kInvalidArgument);  // nothing of it is there
  RequestId id = 1;
  cached_tokens_of(engine, id++, pinned);
  const ControlResult kept = control(engine, Action::kPin, pinned);
  CHECK(!kept.error);
  CHECK(kept.report.tokens >= 20 - small_config().block_len && kept.report.tokens <= 21);
  CHECK_EQUAL(kept.report.pinned_prompts, 1);
  CHECK(kept.report.pinned_pages > 0);
  const auto others = [&](int count) {
    while (count-- > 0) cached_tokens_of(engine, id++, random_prompt(random, 30));
  };
  others(30);
  CHECK(engine.stats().evictions > 0);
  CHECK_EQUAL(control(engine, Action::kReport).report.pinned_pages, kept.report.pinned_pages);
  CHECK_EQUAL(cached_tokens_of(engine, id++, pinned), kept.report.tokens);
  CHECK_EQUAL(control(engine, Action::kUnpin, pinned).report.pinned_prompts, 0);
  CHECK(control(engine, Action::kUnpin, pinned).error == ErrorCode::kNotFound);
  others(30);
  CHECK_EQUAL(cached_tokens_of(engine, id++, pinned), 0);
}

ENGINE_TEST(pins_take_a_fourth_of_the_cache_and_give_way_to_what_needs_it_all) {
  using Action = CacheControl::Action;
  const EngineConfig config = config_of(40);
  Engine engine(config, std::make_unique<StubRunner>(), letters());
  std::mt19937 random(2);
  RequestId id = 1;
  bool is_rejected = false;
  std::vector<int32_t> last;
  for (int i = 0; i < 20 && !is_rejected; ++i) {
    last = random_prompt(random, 13);
    cached_tokens_of(engine, id++, last);
    const ControlResult result = control(engine, Action::kPin, last);
    is_rejected = result.error.has_value();
    const CacheReport report = control(engine, Action::kReport).report;
    CHECK(report.pinned_pages <= report.max_pinned_pages);
    CHECK_EQUAL(report.max_pinned_pages, config.page_count / 4);
  }
  CHECK(is_rejected);
  // A request that fits into the cache alone completes.
  const int max_prompt = engine.config().session_len - 1;
  cached_tokens_of(engine, id++, random_prompt(random, max_prompt));
  const CacheReport dropped = control(engine, Action::kDropMemory).report;
  CHECK_EQUAL(dropped.pinned_prompts, 0);
  CHECK_EQUAL(dropped.stats.blocks_idle, 0);
  CHECK_EQUAL(cached_tokens_of(engine, id++, last), 0);
}

}  // namespace turbomind::testing
