// Drafts: where they are found, which of them are worth a row, and that they change no response.
#include <algorithm>
#include <map>
#include <numeric>

#include "engine/speculative/speculator.h"
#include "tests/engine_helpers.h"

namespace turbomind::testing {

namespace {

SpeculativeConfig lookups(int drafts) {
  SpeculativeConfig config;
  config.num_speculative_tokens = drafts;
  return config;
}

}  // namespace

TEST(the_longest_of_the_latest_runs_is_found) {
  std::mt19937 random(3);
  for (int history = 0; history < 200; ++history) {
    const int min_length = 1 + static_cast<int>(random() % 3);
    const int max_length = min_length + static_cast<int>(random() % 6);
    NgramIndex index(min_length, max_length);
    std::vector<int32_t> read;
    int begin = 0;
    for (int i = 0; i < 120; ++i) {
      if (random() % 40 == 0) {
        index.end_text();
        read.push_back(-1);
        begin = static_cast<int>(read.size());
      }
      const std::vector<int32_t> text(read.begin() + begin, read.end());
      // Places after the last `min_length` tokens of the text, the latest first.
      NgramIndex::Match expected;
      int compared = 0;
      for (int position = static_cast<int>(read.size()) - 1; position >= 1; --position) {
        int length = 0;
        while (length < std::min({max_length, static_cast<int>(text.size()), position}) &&
               read[static_cast<size_t>(position - 1 - length)] ==
                   text[text.size() - 1 - static_cast<size_t>(length)]) {
          ++length;
        }
        if (length < min_length || read[static_cast<size_t>(position)] == -1 || ++compared > 16) continue;
        if (length > expected.length) expected = {position, length};
      }
      const NgramIndex::Match found = index.find(text);
      CHECK_EQUAL(found.position, expected.position);
      CHECK_EQUAL(found.length, expected.length);
      read.push_back(static_cast<int32_t>(random() % 3));
      index.append(read.back());
    }
  }
}

TEST(texts_that_ended_are_found_by_their_scope_until_newer_ones_take_their_place) {
  RecentTexts texts(40, 2, 8);
  const std::vector<int32_t> first{1, 2, 3, 4, 5};
  texts.add(first, 7);
  const std::vector<int32_t> end{2, 3};
  const RecentTexts::Match match = texts.find(end, 7);
  CHECK(match.texts != nullptr);
  CHECK_EQUAL(match.texts->token(match.at.position), 4);
  CHECK(texts.find(end, 8).texts == nullptr);
  const std::vector<int32_t> long_text(100, 9);
  texts.add(long_text, 7);
  CHECK(texts.find(end, 7).texts != nullptr);
  texts.add(long_text, 7);
  CHECK(texts.find(end, 7).texts == nullptr);
  RecentTexts none(0, 2, 8);
  none.add(first, 7);
  CHECK(none.find(end, 7).texts == nullptr);
}

TEST(a_draft_does_not_go_on_in_the_text_of_another_scope_that_took_the_place_of_its_own) {
  SpeculativeConfig config = lookups(8);
  config.shared_tokens = 24;
  SharedLookup shared(config);
  shared.texts.add(std::vector<int32_t>{1, 2, 3, 4, 5}, 7);
  PromptLookup lookup(shared, 7, 2);
  std::vector<int32_t> tokens{1, 2};
  lookup.read(tokens);
  CHECK_EQUAL(lookup.token(0), 3);
  const std::vector<int32_t> secret{40, 41, 42, 43, 44, 45, 46, 47, 48, 49};
  for (int i = 0; i < 2; ++i) shared.texts.add(secret, 8);
  lookup.read(tokens);
  CHECK(!lookup.has_draft());
  tokens.push_back(60);
  lookup.read(tokens);
  CHECK(!lookup.has_draft());
}

// The second of two equal requests: the response to the first holds all of its tokens.
TEST(draft_tokens_come_from_texts_of_the_same_caller_and_salt_alone) {
  const auto accepted = [](const std::string& caller, const std::string& salt) {
    EngineConfig config = small_config();
    config.enable_prefix_caching = true;
    config.speculation = lookups(5);
    config.speculation.is_adaptive = false;
    config.speculation.prompt_lookup_min = 3;
    config.speculation.shared_tokens = 400;
    Collector collector;
    Engine engine(config, std::make_unique<StubRunner>(), letters());
    int64_t before = 0;
    for (const bool is_second : {false, true}) {
      before = engine.stats().speculation.accepted;
      Request request = make_request(is_second ? 2 : 1, {1, 2, 3}, 40, collector.callback());
      request.params.caller = is_second ? caller : "ann";
      request.params.cache_salt = is_second ? salt : "salt";
      engine.submit(std::move(request));
      CHECK(collector.wait(is_second ? 2 : 1).tokens == expected_tokens({1, 2, 3}, 40));
    }
    return engine.stats().speculation.accepted - before;
  };
  CHECK(accepted("ann", "salt") > 20);
  CHECK_EQUAL(accepted("bob", "salt"), 0);
  CHECK_EQUAL(accepted("", "salt"), 0);
  CHECK_EQUAL(accepted("ann", ""), 0);
}

TEST(chances_follow_what_came) {
  MatchChances all;
  MatchChances chances(&all);
  for (int i = 0; i < 200; ++i) all.record(4, i % 4 == 0);
  CHECK(std::abs(all.of(4) - 0.25) < 0.06);
  CHECK(std::abs(chances.of(4) - all.of(4)) < 1e-12);
  CHECK_EQUAL(all.of(3), all.of(4));  // of a class
  CHECK(all.of(5) > 0.5);
  for (int i = 0; i < 200; ++i) chances.record(4, true);
  CHECK(chances.of(4) > 0.9);
  CHECK(std::abs(all.of(4) - 0.25) < 0.06);
}

TEST(the_cost_of_a_row_is_learned_from_steps_of_several_sizes) {
  StepCost cost;
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const int rows = 1 << random() % 4;
    cost.record(rows, (3.0 + 0.5 * rows) * (1 + 0.02 * (static_cast<double>(random() % 100) / 50 - 1)));
    if (i % 10 == 0) cost.record(4, 1000);   // waited for something else
    if (i % 10 == 1) cost.record(200, 900);  // of a prompt
  }
  CHECK(std::abs(cost.of(8) - 7.0) < 0.4);
  CHECK(std::abs(cost.of(1) - 3.5) < 0.4);
  CHECK_EQUAL(cost.of(5), cost.of(8));  // computed together
}

TEST(drafts_are_taken_while_they_bring_more_than_they_cost) {
  const auto drafted = [](double base, double row, int sequences, int room) {
    Speculator speculator(lookups(16));
    for (int i = 0; i < 300; ++i) speculator.record_step(1 << i % 4, base + row * (1 << i % 4));
    std::vector<int32_t> tokens;
    for (int token = 0; token < 48; ++token) tokens.push_back(1 + token % 9);  // ends with 3
    std::vector<Drafts> all(static_cast<size_t>(sequences));
    std::vector<Speculator::Candidate> candidates;
    for (Drafts& drafts : all) candidates.push_back({tokens, 48, 0, drafts, 90});
    speculator.draft(candidates, sequences, room);
    int count = 0;
    for (const Drafts& drafts : all) {
      const std::vector<int32_t> expected{4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1};
      CHECK(std::equal(drafts.tokens.begin(), drafts.tokens.end(), expected.begin()));
      count += drafts.count();
    }
    return count;
  };
  CHECK_EQUAL(drafted(1, 1e-4, 1, 100), 16);  // a row costs next to nothing
  CHECK_EQUAL(drafted(1, 1e-4, 1, 5), 5);     // as much as fits
  CHECK_EQUAL(drafted(1e-4, 1, 1, 100), 0);   // a step costs its rows: nothing is to be won
  const int some = drafted(1, 0.4, 1, 100);
  CHECK(some > 0 && some < 16);
  CHECK(drafted(1, 0.4, 8, 100) < 8 * some);  // a token more is worth less where many come
}

TEST(where_one_token_was_exchanged_the_text_after_it_is_expected) {
  SharedLookup shared(lookups(8));
  PromptLookup lookup(shared, 0, 12);
  std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (const int32_t token : {1, 2, 3, 50, 5, 6, 51, 52, 8}) {  // 4 and 7 were exchanged, 52 was added
    tokens.push_back(token);
    lookup.read(tokens);
    if (token == 3) CHECK_EQUAL(lookup.token(0), 4);
    if (token == 50) CHECK_EQUAL(lookup.token(0), 5);
    if (token == 50) CHECK_EQUAL(lookup.token(1), 6);
    if (token == 51) CHECK_EQUAL(lookup.token(0), 8);
    if (token == 8) CHECK_EQUAL(lookup.token(0), 9);
  }
}

TEST(a_draft_ends_where_the_response_must) {
  Speculator speculator(lookups(16));
  const std::vector<int32_t> tokens(40, 5);
  for (const int max_drafts : {0, 1, 3}) {
    Drafts drafts;
    const Speculator::Candidate candidate{tokens, 40, 0, drafts, max_drafts};
    speculator.draft({&candidate, 1}, 1, 100);
    CHECK_EQUAL(drafts.count(), max_drafts);
  }
}

ENGINE_TEST(drafts_bring_the_same_responses_in_fewer_steps) {
  EngineConfig config = small_config();
  config.session_len = 400;
  config.page_count = pages_of(120);
  std::map<int, int64_t> steps;
  for (const int drafts : {0, 5}) {
    config.speculation.num_speculative_tokens = engines_draft ? drafts : 0;
    Collector collector;
    Engine engine(config, std::make_unique<StubRunner>(), letters());
    engine.submit(make_request(1, {1, 2, 3}, 300, collector.callback()));
    CHECK(collector.wait(1).tokens == expected_tokens({1, 2, 3}, 300));
    const EngineStats stats = engine.stats();
    steps[drafts] = stats.steps;
    const SpeculationStats& drafting = stats.speculation;
    CHECK_EQUAL(drafting.drafted > 0, engines_draft && drafts > 0);
    CHECK_EQUAL(drafting.accepted > 20, engines_draft && drafts > 0);
    CHECK(drafting.accepted < drafting.drafted || drafting.drafted == 0);
    CHECK_EQUAL(std::accumulate(drafting.accepted_at.begin(), drafting.accepted_at.end(), int64_t{0}),
                drafting.accepted);
    CHECK_EQUAL(stats.steps, 300 - drafting.accepted);
    CHECK_EQUAL(stats.later_tokens, 299);
  }
  CHECK_EQUAL(steps[5] < steps[0], engines_draft);
}

TEST(what_a_speculative_config_may_not_hold_is_named) {
  const auto problem = [](const char* text) -> std::string {
    try {
      SpeculativeConfig::of(Json::parse(text), true);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(problem(R"({"num_speculative_tokens": 0})").find("num_speculative_tokens must be 1 to 32, got 0") !=
        std::string::npos);
  CHECK(problem(R"({"method": "medusa"})").find("medusa") != std::string::npos);
  CHECK(problem(R"({"prompt_lookup_min": 9, "prompt_lookup_max": 8})").find("larger") != std::string::npos);
  CHECK(!SpeculativeConfig::of(Json(), true).is_on());
  CHECK(!SpeculativeConfig::of(Json::parse(R"("none")"), true).is_on());
  CHECK(!SpeculativeConfig::of(Json::parse(R"("auto")"), false).is_on());
  const SpeculativeConfig automatic = SpeculativeConfig::of(Json::parse(R"("auto")"), true);
  CHECK(automatic.is_on() && automatic.is_adaptive && !automatic.has_model);
  const SpeculativeConfig config = SpeculativeConfig::of(Json::parse(R"({"num_speculative_tokens": 4})"), true);
  CHECK_EQUAL(config.num_speculative_tokens, 4);
  CHECK_EQUAL(config.prompt_lookup_min, 1);
}

}  // namespace turbomind::testing
