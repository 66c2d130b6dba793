// One response: its next token, its text, its end.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "engine/generation/generation.h"
#include "tests/engine_helpers.h"
#include "tests/stub_grammar.h"

namespace turbomind::testing {

namespace {

const std::vector<int32_t> kPrompt = {1, 2, 3};

// A response to kPrompt, whose model says what the test says. Token `id` is the character '0' + id.
struct Harness {
  explicit Harness(const std::function<void(GenerationParams&)>& change,
                   std::shared_ptr<const Grammar> grammar = nullptr)
      : rules(make_rules(change, std::move(grammar))), generation(rules, 0, 77, 5, tokens) {}

  static std::shared_ptr<const GenerationRules> make_rules(const std::function<void(GenerationParams&)>& change,
                                                           std::shared_ptr<const Grammar> grammar) {
    GenerationParams params;
    params.max_new_tokens = 20;
    change(params);
    return std::make_shared<const GenerationRules>(params, stub_space(), kPrompt, std::move(grammar));
  }

  // The model finds these tokens likely, the first one most.
  FinishReason advance(const std::vector<int32_t>& likely) {
    std::vector<float> logits(kStubVocab, 0.0f);
    for (size_t i = 0; i < likely.size(); ++i) logits[static_cast<size_t>(likely[i])] = 10.0f - static_cast<float>(i);
    const float hidden = 0.5f;
    return generation.advance(sampler, logits.data(), &hidden);
  }
  std::vector<int32_t> generated() const { return {tokens.begin() + 3, tokens.end()}; }

  std::shared_ptr<const GenerationRules> rules;
  std::vector<int32_t> tokens = kPrompt;
  Generation generation;
  Sampler sampler{kStubVocab};
};

void change_nothing(GenerationParams&) {}

}  // namespace

TEST(a_response_takes_tokens_until_it_is_long_enough) {
  Harness harness([](GenerationParams& params) { params.max_new_tokens = 2; });
  CHECK(harness.advance({4}) == FinishReason::kNone);
  const std::optional<Output> first = harness.generation.take_output(FinishReason::kNone);
  CHECK_EQUAL(first->text, "4");
  CHECK_EQUAL(first->generate_token_len, 1);
  CHECK(harness.advance({5}) == FinishReason::kLength);
  const std::optional<Output> last = harness.generation.take_output(FinishReason::kLength);
  CHECK_EQUAL(last->text, "5");
  CHECK(last->token_ids == std::vector<int32_t>{5});
  CHECK_EQUAL(last->stop_token, -1);
  CHECK_EQUAL(last->stop_string, "");
  CHECK(harness.generated() == std::vector<int32_t>({4, 5}));
}

TEST(the_token_that_ends_a_response_is_reported_and_no_part_of_it) {
  Harness harness([](GenerationParams& params) {
    params.stop_token_ids = {7};
    params.logprobs = 1;
  });
  harness.advance({4});
  CHECK(harness.advance({7}) == FinishReason::kStop);
  CHECK(harness.generated() == std::vector<int32_t>{4});
  const std::optional<Output> output = harness.generation.take_output(FinishReason::kStop);
  CHECK_EQUAL(output->stop_token, 7);
  CHECK_EQUAL(output->text, "4");
  CHECK_EQUAL(output->logprobs.size(), 1u);
}

TEST(a_stop_string_ends_a_response_before_it_and_special_tokens_show_only_if_wanted) {
  Harness harness([](GenerationParams& params) { params.stop_words = {"56"}; });
  for (const int32_t token : {4, kStubVocab - 1, 5}) CHECK(harness.advance({token}) == FinishReason::kNone);
  CHECK(harness.advance({6}) == FinishReason::kStop);
  const std::optional<Output> last = harness.generation.take_output(FinishReason::kStop);
  CHECK_EQUAL(last->text, "4");
  CHECK_EQUAL(last->stop_string, "56");
  Harness raw([](GenerationParams& params) { params.skip_special_tokens = false; });
  raw.advance({kStubVocab - 1});
  CHECK_EQUAL(raw.generation.take_output(FinishReason::kNone)->text, std::string(1, static_cast<char>('0' + 63)));
}

TEST(nothing_ends_a_response_before_its_least_length) {
  Harness harness([](GenerationParams& params) {
    params.stop_token_ids = {7};
    params.stop_words = {"4"};
    params.min_new_tokens = 2;
  });
  CHECK(harness.advance({7, 4}) == FinishReason::kNone);  // 7 cannot be chosen, the text "4" goes through
  CHECK(harness.advance({7, 5}) == FinishReason::kNone);
  CHECK(harness.generated() == std::vector<int32_t>({4, 5}));
  CHECK(harness.advance({7, 5}) == FinishReason::kStop);
}

TEST(what_must_not_come_about_is_not_chosen) {
  Harness harness([](GenerationParams& params) {
    params.bad_tokens = {{9}, {4, 5}};
    params.bad_words = {"46"};
  });
  CHECK(harness.generation.needs_known_tokens());
  for (int i = 0; i < 2; ++i) harness.advance({9, 4, 5, 6, 8});
  CHECK(harness.generated() == std::vector<int32_t>({4, 4}));
  harness.advance({5, 6, 8});
  CHECK(harness.generated() == std::vector<int32_t>({4, 4, 8}));
  Harness simple([](GenerationParams& params) { params.bad_tokens = {{9}}; });
  CHECK(!simple.generation.needs_known_tokens());
}

TEST(logits_that_allow_no_token_are_an_error) {
  Harness harness(change_nothing);
  std::vector<float> logits(kStubVocab, NAN);
  CHECK(error_of([&] { harness.generation.advance(harness.sampler, logits.data(), nullptr); }) == ErrorCode::kInternal);
  CHECK(error_of([&] { harness.generation.advance(SampledToken{}); }) == ErrorCode::kInternal);
  CHECK_EQUAL(harness.generation.generated(), 0);
}

TEST(a_request_that_leaves_no_token_is_refused) {
  Harness harness(
      [](GenerationParams& params) {
        for (int32_t token = 0; token < kStubVocab; ++token) params.bad_tokens.push_back({token});
      },
      std::make_shared<PatternGrammar>(4));
  CHECK(error_of([&] { harness.advance({3}); }) == ErrorCode::kInvalidArgument);
}

TEST(a_grammar_chooses_what_may_come_and_tokens_without_an_alternative_need_no_logits) {
  Harness harness([](GenerationParams& params) { params.stop_token_ids = {60}; }, std::make_shared<PatternGrammar>(4));
  CHECK(harness.generation.needs_known_tokens());
  CHECK(harness.advance({50, 3}) == FinishReason::kNone);
  CHECK(harness.generated() == std::vector<int32_t>({3, 11}));
  CHECK(harness.advance({50, 5}) == FinishReason::kNone);
  CHECK(harness.advance({50}) == FinishReason::kStop);
  CHECK(harness.generated() == std::vector<int32_t>({3, 11, 5, 11}));
  CHECK_EQUAL(harness.generation.take_output(FinishReason::kStop)->stop_token, 60);
}

TEST(a_jump_forward_ends_with_the_response) {
  Harness harness([](GenerationParams& params) { params.max_new_tokens = 2; }, std::make_shared<PatternGrammar>(8));
  CHECK(harness.advance({3}) == FinishReason::kLength);
  CHECK(harness.generated() == std::vector<int32_t>({3, 11}));
}

TEST(each_token_has_its_row_where_rows_are_wanted_so_none_is_jumped_over) {
  Harness harness([](GenerationParams& params) { params.logits = RequestedLogits::kGeneration; },
                  std::make_shared<PatternGrammar>(8));
  harness.advance({3});
  CHECK_EQUAL(harness.generation.generated(), 1);
  CHECK_EQUAL(harness.generation.take_output(FinishReason::kNone)->logits.size(), size_t{kStubVocab});
}

TEST(a_token_that_a_grammar_does_not_know_is_an_error) {
  Harness harness(change_nothing, std::make_shared<PatternGrammar>(8));
  CHECK(error_of([&] { harness.generation.advance(SampledToken{50, 0, nullptr, nullptr}); }) == ErrorCode::kInternal);
}

TEST(log_probabilities_and_logits_are_the_models_own_before_any_penalty) {
  Harness harness([](GenerationParams& params) {
    params.logprobs = 2;
    params.logits = RequestedLogits::kGeneration;
    params.hidden_states = RequestedLogits::kGeneration;
    params.logit_bias = {{5, 100.0f}};
    params.logits_hook = [](const std::vector<int32_t>& tokens, float* logits, int) {
      CHECK(tokens == kPrompt);
      logits[6] = 50.0f;
    };
  });
  harness.advance({4});
  CHECK(harness.generated() == std::vector<int32_t>{5});
  const Output output = *harness.generation.take_output(FinishReason::kNone);
  const double normaliser = std::log(std::exp(10.0) + kStubVocab - 1);
  CHECK(std::abs(output.logprobs.at(0).chosen - (0 - normaliser)) < 1e-5);
  CHECK_EQUAL(output.logprobs[0].top.at(0).first, 4);
  CHECK_EQUAL(output.logits.at(5), 0.0f);
  CHECK_EQUAL(output.hidden_states.at(0), 0.5f);
}

TEST(a_response_that_is_not_streamed_comes_at_its_end) {
  Harness harness([](GenerationParams& params) { params.stream = false; });
  harness.advance({4});
  CHECK(!harness.generation.take_output(FinishReason::kNone));
  harness.advance({5});
  const std::optional<Output> output = harness.generation.take_output(FinishReason::kCancelled);
  CHECK_EQUAL(output->text, "45");
  CHECK(output->token_ids == std::vector<int32_t>({4, 5}));
}

TEST(a_choice_says_what_the_request_said_and_where_the_response_stands) {
  Harness harness([](GenerationParams& params) {
    params.do_sample = true;
    params.top_k = 9;
    params.stop_token_ids = {7};
    params.min_new_tokens = 3;
    params.logprobs = 4;
  });
  const SamplingMetadata& choice = harness.generation.choice(2);
  CHECK(!choice.is_greedy);
  CHECK_EQUAL(choice.top_k, 9);
  CHECK_EQUAL(choice.seed, uint64_t{77});
  CHECK_EQUAL(choice.draw, uint64_t{2});
  CHECK_EQUAL(choice.in_flight, 2);
  CHECK_EQUAL(choice.sequence, uint64_t{5});
  CHECK_EQUAL(choice.prompt_len, 3);
  CHECK_EQUAL(choice.logprobs, 4);
  CHECK(choice.tokens == &harness.tokens);
  CHECK(choice.forbidden == std::vector<int32_t>{7});
  CHECK(harness.generation.choice(3).forbidden.empty());
  const std::vector<int32_t> top = {8, 9, 1, 2};
  const std::vector<float> of_top = {-0.5f, -1.0f, -2.0f, -3.0f};
  harness.generation.advance(SampledToken{9, -1.0f, top.data(), of_top.data()});
  const Output output = *harness.generation.take_output(FinishReason::kNone);
  CHECK_EQUAL(output.logprobs.at(0).chosen, -1.0f);
  CHECK_EQUAL(output.logprobs[0].top.at(3).first, 2);
}

// Reasoning end with "23"; the tokens that end them are 9, 2 and 3.
Harness thinking(int budget, const std::string& begin) {
  return Harness([&](GenerationParams& params) {
    params.thinking_budget = budget;
    params.thinking_begin = begin;
    params.thinking_end = "23";
    params.thinking_end_ids = {9, 2, 3};
  });
}

TEST(reasoning_ends_when_its_budget_is_spent) {
  for (const char* begin : {"", "1"}) {
    Harness harness = thinking(3, begin);
    CHECK(harness.generation.needs_known_tokens());
    for (const int32_t token : {1, 4, 5, 6, 6, 6, 7}) harness.advance({token});
    CHECK(harness.generated() == std::vector<int32_t>({1, 4, 5, 9, 2, 3, 7}));
    CHECK(!harness.generation.needs_known_tokens());
  }
  Harness at_once = thinking(0, "");
  for (int i = 0; i < 4; ++i) at_once.advance({8});
  CHECK(at_once.generated() == std::vector<int32_t>({9, 2, 3, 8}));
}

// By comparing all of the last tokens.
bool ends_in_repetitions(const std::vector<int32_t>& tokens) {
  if (tokens.size() < 256) return false;
  for (ptrdiff_t span = 1; span <= 64; ++span) {
    if (std::equal(tokens.end() - 256 + span, tokens.end(), tokens.end() - 256)) return true;
  }
  return false;
}

TEST(a_span_that_came_often_enough_is_noticed_with_its_last_token_and_nothing_else_is) {
  std::mt19937 random(5);
  int found = 0, periodic = 0;
  for (int round = 0; round < 300; ++round) {
    const size_t span = 1 + random() % 80;
    const int vocabulary = 1 + static_cast<int>(random() % 4);
    std::vector<int32_t> tokens;
    RepetitionDetector detector;
    for (int size = 0; size < 600; ++size) {
      const bool is_new = tokens.size() < span || random() % 400 == 0;
      tokens.push_back(is_new ? static_cast<int32_t>(random() % vocabulary) : tokens[tokens.size() - span]);
      const bool repeats = detector.advance(tokens.back());
      CHECK_EQUAL(repeats, ends_in_repetitions(tokens));
      found += repeats;
      ++periodic;
    }
  }
  CHECK(found > periodic / 10 && found < periodic * 9 / 10);
}

Harness repeating(const std::string& detection, const std::string& begin) {
  return Harness([&](GenerationParams& params) {
    params.max_new_tokens = 2000;
    params.repetition_detection = detection;
    params.thinking_begin = begin;
    params.thinking_end = "23";
    params.thinking_end_ids = {9, 2, 3};
  });
}

TEST(reasoning_that_repeats_itself_ends_as_by_its_budget_and_the_answer_only_if_wanted) {
  for (const char* detection : {"reasoning", "all"}) {
    Harness harness = repeating(detection, "1");
    CHECK(!harness.generation.needs_known_tokens());
    harness.advance({1});
    for (int i = 0; i < 300 && !harness.generation.needs_known_tokens(); ++i) harness.advance({4 + i % 3});
    CHECK_EQUAL(harness.generated().size(), size_t{257});
    for (int i = 0; i < 3; ++i) harness.advance({8});
    const std::vector<int32_t> so_far = harness.generated();
    CHECK(std::vector<int32_t>(so_far.end() - 3, so_far.end()) == std::vector<int32_t>({9, 2, 3}));
    CHECK(!harness.generation.needs_known_tokens());
    FinishReason finish = FinishReason::kNone;
    int answer = 0;
    while (finish == FinishReason::kNone && answer < 400) finish = harness.advance({4 + answer++ % 3});
    const bool ends = std::string(detection) == "all";
    CHECK_EQUAL(answer, ends ? 256 : 400);
    CHECK(finish == (ends ? FinishReason::kRepetition : FinishReason::kNone));
  }
  for (const char* detection : {"off", "reasoning"}) {  // of a response without reasoning
    Harness harness = repeating(detection, "7");
    for (int i = 0; i < 400; ++i) CHECK(harness.advance({4}) == FinishReason::kNone);
  }
  Harness off = repeating("off", "");
  for (int i = 0; i < 400; ++i) CHECK(off.advance({4}) == FinishReason::kNone);
  CHECK(off.generated() == std::vector<int32_t>(400, 4));
}

TEST(tokens_on_their_way_when_reasoning_is_ended_belong_to_it) {
  Harness harness = repeating("reasoning", "");
  for (int i = 0; i < 258; ++i) harness.generation.advance(SampledToken{4, 0, nullptr, nullptr});  // two were in flight
  CHECK(harness.generation.needs_known_tokens());
  for (int i = 0; i < 4; ++i) harness.advance({8});
  std::vector<int32_t> expected(258, 4);
  expected.insert(expected.end(), {9, 2, 3, 8});
  CHECK(harness.generated() == expected);
}

TEST(reasoning_that_ends_in_time_and_responses_without_reasoning_are_left_alone) {
  for (const std::vector<int32_t>& ends : {std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {1, 2, 2, 3, 4, 5}}) {
    Harness harness = thinking(4, "1");
    for (const int32_t token : ends) harness.advance({token});
    CHECK(harness.generated() == ends);
  }
  Harness without = thinking(2, "12");
  for (const int32_t token : {1, 4, 5, 6}) without.advance({token});
  CHECK(without.generated() == std::vector<int32_t>({1, 4, 5, 6}));
}

TEST(a_runner_is_reported_the_only_token_that_ends_reasoning) {
  Harness harness = thinking(1, "");
  CHECK(harness.generation.choice(0).mask == nullptr);
  harness.generation.advance(SampledToken{4, 0, nullptr, nullptr});
  const SamplingMetadata& choice = harness.generation.choice(0);
  for (int token = 0; token < kStubVocab; ++token) {
    CHECK_EQUAL((static_cast<uint32_t>(choice.mask[token / 32]) >> (token % 32) & 1u) != 0, token == 9);
  }
}

TEST(responses_to_one_prompt_draw_from_streams_of_their_own) {
  const auto rules = Harness::make_rules(change_nothing, nullptr);
  std::vector<int32_t> tokens = kPrompt;
  Generation first(rules, 0, 77, 0, tokens);
  Generation second(rules, 1, 77, 1, tokens);
  CHECK_EQUAL(first.choice(0).seed, uint64_t{77});
  CHECK(second.choice(0).seed != first.choice(0).seed);
}

TEST(rows_of_the_prompt_are_taken_once_and_the_last_is_the_responses) {
  Harness harness([](GenerationParams& params) { params.hidden_states = RequestedLogits::kAll; });
  const std::vector<float> logits(3 * kStubVocab, 0.0f);
  const std::vector<float> hidden = {10, 11, 12};
  harness.generation.take_prompt_outputs(0, 2, logits.data(), hidden.data());
  harness.generation.take_prompt_outputs(0, 3, logits.data(), hidden.data());  // again, after a preemption
  CHECK(harness.generation.take_output(FinishReason::kNone)->hidden_states == std::vector<float>({10, 11}));
}

}  // namespace turbomind::testing
