// The engine without its threads, driven step by step.
#include <set>

#include "engine/engine_core.h"
#include "tests/disk/scratch.h"
#include "tests/engine_helpers.h"
#include "tests/stub_grammar.h"

namespace turbomind::testing {

namespace {

struct Driven {
  explicit Driven(const EngineConfig& given) : config(given), core(planned(), runner(), stub_space().tokens) {}

  const EngineConfig& planned() {
    config.plan = plan_of_stub(config);
    return config;
  }
  StubRunner& runner() {
    planned();
    stub = std::make_unique<StubRunner>();
    stub->allocate_cache({config.plan, {config.page_count, config.host_page_count}, 0});
    return *stub;
  }

  void add(Request request, std::shared_ptr<const Grammar> grammar = nullptr, std::optional<Error> failure = {}) {
    request.on_output = [this](Output&& output) {
      std::vector<Output>& all = outputs[output.request];
      CHECK(all.empty() || !all.back().is_final);
      all.push_back(std::move(output));
    };
    core.add({std::move(request), std::move(grammar), std::move(failure)});
    deliver();
  }
  void step() {
    core.step();
    deliver();
  }
  void deliver() {
    core.check_invariants();
    for (Delivery& delivery : core.take_outputs()) (*delivery.to)(std::move(delivery.output));
  }
  void finish() {
    while (core.has_work()) step();
  }
  const Output& last(RequestId id) const { return outputs.at(id).back(); }
  std::vector<int32_t> tokens(RequestId id, int index = 0) const {
    std::vector<int32_t> tokens;
    if (!outputs.contains(id)) return tokens;
    for (const Output& output : outputs.at(id)) {
      if (output.index == index) tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
    }
    return tokens;
  }

  EngineConfig config;
  std::unique_ptr<StubRunner> stub;
  EngineCore core;
  std::map<RequestId, std::vector<Output>> outputs;
};

Request request_of(RequestId id, std::vector<int32_t> prompt, int max_new_tokens) {
  return make_request(id, std::move(prompt), max_new_tokens, {});
}

}  // namespace

ENGINE_TEST(every_request_of_mixed_traffic_ends_once_and_nothing_is_left) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    EngineConfig config = small_config();
    config.enable_prefix_caching = seed % 2 == 0;
    Driven driven(config);
    const auto now = Clock::now();
    std::map<RequestId, Request> sent;
    RequestId next = 1;
    for (int event = 0; event < 400; ++event) {
      switch (random() % 6) {
        case 0: {
          Request request = request_of(next, random_prompt(random, 1 + static_cast<int>(random() % 50)),
                                       1 + static_cast<int>(random() % 20));
          if (random() % 3 == 0) {
            request.session = SessionParams{random() % 4, random() % 2 == 0, random() % 3 == 0, false,
                                            random() % 2 == 0 ? -1 : static_cast<int>(random() % 30)};
          } else {
            request.params.n = 1 + static_cast<int>(random() % 3);
          }
          if (random() % 8 == 0) request.deadline = now + std::chrono::seconds(random() % 400);
          sent.emplace(next++, request);
          driven.add(std::move(request));
          break;
        }
        case 1:
          if (random() % 4 == 0) driven.core.cancel(1 + random() % next);
          break;
        case 2:
          driven.core.end_overdue(now + std::chrono::seconds(event));
          break;
        default:
          driven.step();
      }
      driven.deliver();
    }
    driven.finish();
    int complete = 0;
    for (const auto& [id, request] : sent) {
      CHECK(driven.last(id).is_final);
      if (driven.last(id).finish != FinishReason::kLength || request.session) continue;
      for (int index = 0; index < request.params.n; ++index) {
        CHECK(driven.tokens(id, index) == expected_tokens(request.input_ids, request.params.max_new_tokens));
      }
      ++complete;
    }
    CHECK(complete > 5);
    const EngineStats stats = driven.core.stats();
    CHECK_EQUAL(stats.completed + stats.cancelled + stats.failed, static_cast<int64_t>(sent.size()));
    CHECK_EQUAL(stats.blocks_used, 0);
  }
}

ENGINE_TEST(a_cached_prompt_is_found_by_requests_with_the_same_salt_alone) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  Driven driven(config);
  const std::vector<int32_t> prompt(40, 7);
  RequestId next = 1;
  const auto matched = [&](const std::string& salt) {
    const int64_t before = driven.core.stats().prefix_cache_hits;
    Request request = request_of(next++, prompt, 2);
    request.params.cache_salt = salt;
    driven.add(std::move(request));
    driven.finish();
    CHECK(driven.tokens(next - 1) == expected_tokens(prompt, 2));
    const int64_t found = driven.core.stats().prefix_cache_hits - before;
    CHECK_EQUAL(driven.last(next - 1).cached_token_len, found);
    return found;
  };
  for (const char* salt : {"", "ann", "bob"}) CHECK_EQUAL(matched(salt), 0);
  for (const char* salt : {"bob", "", "ann"}) CHECK(matched(salt) > 0);
}

PLAIN_ENGINE_TEST(a_cache_report_says_where_tokens_were_found_and_why_no_more_were) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.page_count = 30;
  std::mt19937 random(5);
  const std::vector<int32_t> prompt = random_prompt(random, 22);
  std::vector<int32_t> other = prompt;
  other[13] = (other[13] + 1) % kStubVocab;
  const std::vector<int32_t> whole(prompt.begin(), prompt.begin() + 21);
  const std::vector<int32_t> begun(prompt.begin(), prompt.begin() + 8);
  struct Case {
    const char* what;
    std::vector<int32_t> prompt;
    const char* salt;
    int others;  // prompts before it, which take the cache
    int found;
    HitEnd end;
    int token;
  };
  for (const int host_pages : {0, 60}) {
    config.host_page_count = host_pages;
    Driven driven(config);
    RequestId next = 1;
    const auto report_of = [&](Request request) {
      request.params.include_cache_report = true;
      driven.add(std::move(request));
      driven.finish();
      const Output& last = driven.last(next++);
      const PrefixReport report = last.cache_report.value();
      CHECK_EQUAL(report.device + report.host + report.disk, last.cached_token_len);
      CHECK(report.disk == 0 && report.snapshot == 0);
      return report;
    };
    const HitEnd evicted = host_pages > 0 ? HitEnd::kEnds : HitEnd::kEvicted;
    const std::vector<Case> cases = {
        {"nothing is known", prompt, "", 0, 0, HitEnd::kEnds, 0},
        {"all of it is known", whole, "", 0, 20, HitEnd::kNone, 20},
        {"a part of a block was not kept", prompt, "", 0, 20, HitEnd::kEnds, 20},
        {"a token differs", other, "", 0, 12, HitEnd::kDiffers, 13},
        {"another salt knows it", prompt, "bob", 0, 0, HitEnd::kEnds, 0},
        {"another salt knows how it begins", begun, "ann", 0, 0, HitEnd::kEnds, 0},
        {"its own salt knows how it begins", prompt, "ann", 0, 8, HitEnd::kEnds, 8},
        {"others took its place", prompt, "bob", 6, host_pages > 0 ? 20 : 0, evicted, host_pages > 0 ? 20 : 0},
        {"another salt's was evicted", prompt, "eve", 0, 0, HitEnd::kEnds, 0},
    };
    for (const Case& test : cases) {
      for (int i = 0; i < test.others; ++i) {
        driven.add(request_of(next++, random_prompt(random, 40), 2));
        driven.finish();
      }
      Request request = request_of(next, test.prompt, test.prompt.size() == 8 ? 1 : 2);
      request.params.cache_salt = test.salt;
      const PrefixReport report = report_of(std::move(request));
      if (report.end != test.end || report.token != test.token) {
        throw Failure(std::string(test.what) + ": end " + std::to_string(static_cast<int>(report.end)) + " at " +
                      std::to_string(report.token));
      }
      CHECK_EQUAL(report.device + report.host, test.found);
      CHECK_EQUAL(report.host, test.others > 0 ? test.found : 0);
    }
    Request scored = request_of(next, prompt, 1);
    scored.params.prompt_logprobs = 1;
    CHECK(report_of(std::move(scored)).end == HitEnd::kUnused);
    driven.add(request_of(next, prompt, 1));
    driven.finish();
    CHECK(!driven.last(next).cache_report);
  }
  config.enable_prefix_caching = false;
  Driven without(config);
  Request request = request_of(1, prompt, 1);
  request.params.include_cache_report = true;
  without.add(std::move(request));
  without.finish();
  CHECK(without.last(1).cache_report.value().end == HitEnd::kOff);
}

ENGINE_TEST(all_responses_to_a_prompt_look_for_it_and_no_more_is_found_than_looked_for) {
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  Driven driven(config);
  const std::vector<int32_t> prompt(40, 7);
  Request request = request_of(1, prompt, 2);
  request.params.n = 3;
  driven.add(std::move(request));
  driven.finish();
  const EngineStats stats = driven.core.stats();
  CHECK_EQUAL(stats.tokens_in, 40);
  CHECK_EQUAL(stats.prefix_cache_queries, 3 * 40);
  CHECK(stats.prefix_cache_hits > 40);  // two of the three find nearly all of it
  CHECK(stats.prefix_cache_hits < stats.prefix_cache_queries);
}

ENGINE_TEST(the_time_before_the_batch_is_counted_once_a_request) {
  EngineConfig config = small_config();
  config.max_batch_size = 1;
  Driven driven(config);
  for (RequestId id = 1; id <= 3; ++id) driven.add(request_of(id, {1, 2, 3}, 4));
  driven.step();
  CHECK_EQUAL(driven.core.stats().admitted, 1);
  const double first = driven.core.stats().queue_seconds;
  CHECK(first >= 0);
  driven.finish();
  const EngineStats stats = driven.core.stats();
  CHECK_EQUAL(stats.admitted, 3);
  CHECK(stats.queue_seconds > first);
  CHECK(stats.queue_seconds < stats.first_token_seconds);
}

TEST(the_salt_used_last_is_forgotten_last) {
  CacheScopes scopes(2);
  const uint64_t a = scopes.of("a");
  const uint64_t b = scopes.of("b");
  CHECK(a != b && a != CacheScopes::kShared && b != CacheScopes::kShared);
  CHECK_EQUAL(scopes.of("a"), a);
  scopes.of("c");
  CHECK_EQUAL(scopes.of("a"), a);
  CHECK(scopes.of("b") != b);
  CHECK_EQUAL(scopes.of(""), CacheScopes::kShared);
}

ENGINE_TEST(a_request_ends_at_its_deadline_and_no_other_does) {
  Driven driven(small_config());
  const auto now = Clock::now();
  for (RequestId id = 1; id <= 3; ++id) {
    Request request = request_of(id, {1, 2}, 10);
    request.params.n = 2;
    if (id < 3) request.deadline = now + std::chrono::hours(static_cast<int>(id));
    driven.add(std::move(request));
  }
  driven.step();
  driven.step();
  driven.core.end_overdue(now + std::chrono::minutes(59));
  CHECK_EQUAL(driven.core.stats().failed, 0);
  driven.core.end_overdue(now + std::chrono::minutes(61));
  driven.deliver();
  CHECK(driven.last(1).error_code == ErrorCode::kTimeout);
  CHECK(driven.last(1).is_final);
  CHECK_EQUAL(driven.core.stats().failed, 1);
  driven.core.end_overdue(now + std::chrono::minutes(121));
  driven.deliver();
  CHECK(driven.last(2).error_code == ErrorCode::kTimeout);
  driven.finish();
  CHECK(driven.tokens(3, 1) == expected_tokens({1, 2}, 10));
}

ENGINE_TEST(what_a_request_that_could_not_begin_asked_for_is_forgotten_with_it) {
  Driven driven(small_config());
  const auto now = Clock::now();
  Request first = request_of(1, {1, 2, 3, 4, 5, 6}, 2);
  first.session = SessionParams{7, true, false, false, -1};
  driven.add(std::move(first));
  driven.finish();
  for (RequestId id = 2; id <= 5; ++id) {
    Request request = request_of(id, {1}, 2);
    request.session = SessionParams{7, id % 2 == 0, id > 3, false, 2};
    request.deadline = now + std::chrono::hours(1);
    driven.add(std::move(request), std::make_shared<PatternGrammar>(8, 0));
    CHECK(driven.last(id).error_code == ErrorCode::kInternal);
  }
  Request next = request_of(6, {9}, 3);
  next.session = SessionParams{7, false, false, false, -1};
  driven.add(std::move(next));
  driven.core.end_overdue(now + std::chrono::hours(2));
  driven.finish();
  CHECK_EQUAL(driven.last(6).history_token_len, 8);
  CHECK(driven.last(6).finish == FinishReason::kLength);
}

// Each check refuses more requests, each with a salt of its own, than scopes and realms are remembered.
TEST(a_refused_request_changes_nothing_whichever_check_refuses_it) {
  const ScratchDirectory scratch;
  EngineConfig config = small_config();
  config.enable_prefix_caching = true;
  config.disk = {scratch.path(), uint64_t{1} << 28, "a stub"};
  stubs_cross_attention = true;
  Driven driven(config);
  stubs_cross_attention = false;
  RequestId next = 1;
  const auto salted = [&](std::vector<int32_t> prompt, std::optional<SessionParams> session = {}) {
    Request request = request_of(next, std::move(prompt), 2);
    request.params.cache_salt = "ann";
    request.params.include_cache_report = true;
    request.session = session;
    return request;
  };
  const auto serve = [&](Request request) {
    driven.add(std::move(request));
    driven.finish();
    CHECK(driven.last(next).finish == FinishReason::kLength);
    return driven.last(next++);
  };
  const std::vector<int32_t> prompt(40, 7);
  CHECK_EQUAL(serve(salted(prompt)).cached_token_len, 0);
  serve(salted({1, 2, 3, 4, 5, 6}, SessionParams{7, true, false, false, -1}));
  driven.add(salted({5}, SessionParams{8, true, false, false, -1}));  // it keeps its session busy
  const RequestId busy = next++;

  const auto adapter = [](std::string name, std::optional<Error> failure) {
    return std::make_shared<const LoadedAdapter>(
        LoadedAdapter{std::move(name), 5, 0, "its weights", std::move(failure)});
  };
  const Error broken(ErrorCode::kUnavailable, "broken");
  const auto turn = [](uint64_t id, bool start, int step = -1) { return SessionParams{id, start, true, false, step}; };
  struct Case {
    const char* check;
    ErrorCode code;
    std::function<void(Request&)> spoil;
    std::shared_ptr<const Grammar> grammar = nullptr;
    std::optional<Error> failure = {};
  };
  const EmbeddingRows rows{DType::kFloat32, 1, std::vector<std::byte>(4 * 400)};
  const EmbeddingRange image{0, 1, {}, std::make_shared<const EmbeddingRows>(rows)};
  const std::vector<Case> cases = {
      {"its grammar failed", ErrorCode::kUnavailable, [](Request&) {}, nullptr, broken},
      {"its adapter failed", ErrorCode::kUnavailable, [&](Request& r) { r.adapter = adapter("fails", broken); }},
      {"its session is busy", ErrorCode::kSessionBusy, [&](Request& r) { r.session = turn(8, true); }},
      {"its session is unknown", ErrorCode::kUnknownSession, [&](Request& r) { r.session = turn(9, false); }},
      {"its session has another adapter", ErrorCode::kInvalidArgument,
       [&](Request& r) { r.session = turn(7, false), r.adapter = adapter("other", {}); }},
      {"it has no token", ErrorCode::kInvalidArgument,
       [&](Request& r) { r.session = turn(7, false, 0), r.input_ids.clear(); }},
      {"it is too long", ErrorCode::kTooLong,
       [&](Request& r) { r.session = turn(7, false), r.input_ids.assign(125, 1); }},
      {"its images fill the cache", ErrorCode::kTooLong, [&](Request& r) { r.embeddings = {image}; }},
      {"its grammar cannot begin", ErrorCode::kInternal, [&](Request& r) { r.session = turn(7, true); },
       std::make_shared<PatternGrammar>(8, 0)},
  };
  const auto traces = [&] {
    const EngineStats stats = driven.core.stats();
    return std::vector<int64_t>{
        stats.sessions,         stats.running,   stats.waiting,   stats.blocks_used, stats.blocks_idle,
        stats.evictions,        stats.completed, stats.cancelled, stats.tokens_in,   stats.prefix_cache_queries,
        stats.prefix_cache_hits};
  };
  const std::vector<int64_t> before = traces();
  for (const Case& test : cases) {
    for (int i = 0; i < 1200; ++i, ++next) {
      Request request = request_of(next, {1}, 2);
      request.params.cache_salt = std::to_string(next);
      request.deadline = Clock::now() + std::chrono::hours(1);
      test.spoil(request);
      driven.add(std::move(request), test.grammar, test.failure);
      if (driven.last(next).error_code != test.code)
        throw Failure(std::string(test.check) + ": " + driven.last(next).error);
    }
    if (traces() != before) throw Failure(std::string(test.check) + ": it left traces");
  }
  CHECK(driven.core.next_deadline() == Clock::time_point::max());
  for (int i = 0; i < 6000; ++i) {
    std::optional<ErrorCode> rejected;
    CacheControl change;
    change.action = i % 2 == 0 ? CacheControl::Action::kPin : CacheControl::Action::kUnpin;
    change.tokens = prompt;
    change.salt = "of nobody " + std::to_string(i);
    change.on_done = [&](const CacheReport&, const Error* error) { rejected = error->code(); };
    driven.core.control(change);
    CHECK(rejected == (i % 2 == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kNotFound));
  }
  CHECK(traces() == before);

  driven.finish();
  CHECK(driven.tokens(busy) == expected_tokens({5}, 2));
  const Output& continued = serve(salted({9}, SessionParams{7, false, false, false, -1}));
  CHECK(continued.history_token_len == 8 && continued.cached_token_len > 0);
  CHECK(serve(salted(prompt)).cache_report->device >= 36);
  driven.core.finish_files();
  CacheControl drop;
  drop.action = CacheControl::Action::kDropMemory;
  drop.on_done = [](const CacheReport&, const Error*) {};
  driven.core.control(drop);
  CHECK(serve(salted(prompt)).cache_report->disk >= 36);
}

ENGINE_TEST(a_sibling_that_fails_ends_the_request_whichever_it_is) {
  for (int failing = 0; failing < 3; ++failing) {
    Driven driven(small_config());
    Request request = request_of(1, {1, 2}, 12);
    request.params.n = 3;
    int calls = 0;
    request.params.logits_hook = [&calls, failing](const std::vector<int32_t>& tokens, float*, int) {
      if (tokens.size() == 8 && calls++ == failing) throw std::runtime_error("broken");
    };
    driven.add(std::move(request));
    driven.finish();
    int finals = 0;
    std::set<int> ended;
    for (const Output& output : driven.outputs[1]) {
      finals += output.is_final;
      if (output.finish != FinishReason::kNone) ended.insert(output.index);
    }
    CHECK_EQUAL(finals, 1);
    CHECK_EQUAL(ended.size(), 3u);
    CHECK(driven.last(1).finish == FinishReason::kError);
    CHECK_EQUAL(driven.core.stats().failed, 1);
  }
}

ENGINE_TEST(a_session_takes_the_response_and_the_token_that_ended_it) {
  Driven driven(small_config());
  const std::vector<int32_t> likely = expected_tokens({5}, 6);
  Request first = request_of(1, {5}, 6);
  first.session = SessionParams{7, true, false, false, -1};
  first.params.stop_token_ids = {likely[4]};
  driven.add(std::move(first));
  driven.finish();
  const auto before = static_cast<int>(driven.tokens(1).size());
  Request second = request_of(2, {9}, 2);
  second.session = SessionParams{7, false, false, false, -1};
  driven.add(std::move(second));
  driven.finish();
  CHECK_EQUAL(driven.last(2).history_token_len, 1 + before + 1);
}

ENGINE_TEST(a_session_takes_tokens_without_a_response) {
  Driven driven(small_config());
  Request first = request_of(1, {5, 6, 7}, 0);
  first.session = SessionParams{7, true, false, false, -1};
  driven.add(std::move(first));
  CHECK(driven.last(1).finish == FinishReason::kStop);
  CHECK_EQUAL(driven.last(1).input_token_len, 3);
  CHECK(!driven.core.has_work());
  Request second = request_of(2, {8}, 4);
  second.session = SessionParams{7, false, false, false, -1};
  driven.add(std::move(second));
  driven.finish();
  CHECK(driven.tokens(2) == expected_tokens({5, 6, 7, 8}, 4));
}

ENGINE_TEST(the_prompt_comes_back_to_those_who_ask) {
  Driven driven(small_config());
  driven.add(request_of(1, {5, 6}, 2));
  Request with_prompt = request_of(2, {5, 6}, 2);
  with_prompt.returns_prompt = true;
  driven.add(std::move(with_prompt));
  driven.finish();
  CHECK(driven.last(1).prompt == nullptr);
  CHECK(*driven.last(2).prompt == std::vector<int32_t>({5, 6}));
}

namespace {

struct CopyCounter {
  explicit CopyCounter(int* count) : copies(count) {}
  CopyCounter(const CopyCounter& other) : copies(other.copies) { ++*copies; }
  CopyCounter(CopyCounter&& other) noexcept = default;
  void operator()(Output&&) const {}
  void operator()(const std::vector<int32_t>&, float*, int) const {}
  int* copies;
};

}  // namespace

ENGINE_TEST(a_request_is_moved_through_the_engine_not_copied) {
  int copies = 0;
  {
    Collector collector;
    Engine engine(small_config(), std::make_unique<StubRunner>(), letters());
    Request request = make_request(1, {1, 2, 3}, 4, CopyCounter(&copies));
    request.params.logits_hook = CopyCounter(&copies);
    request.params.n = 3;
    const int before = copies;
    engine.submit(std::move(request));
    engine.submit(make_request(2, {1, 2, 3}, 20, collector.callback()));
    collector.wait(2);
    CHECK_EQUAL(copies, before);
  }
}

ENGINE_TEST(a_grammar_that_fails_in_the_midst_of_a_response_ends_that_response_alone) {
  Driven driven(small_config());
  driven.add(request_of(1, {1, 2}, 20), std::make_shared<CostlyGrammar>(2));
  driven.add(request_of(2, {3, 4}, 10));
  driven.finish();
  CHECK(driven.last(1).finish == FinishReason::kError);
  CHECK_EQUAL(driven.last(1).error, std::string("it takes too much"));
  CHECK(driven.tokens(1).size() <= 2u);
  CHECK(driven.tokens(2) == expected_tokens({3, 4}, 10));
}

}  // namespace turbomind::testing
