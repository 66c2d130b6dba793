// Choice of a token: random numbers, distributions, penalties; and log probabilities.
#include <cmath>
#include <functional>
#include <limits>

#include "engine/generation/generation.h"
#include "engine/generation/sampler.h"
#include "kernels/sampling.h"
#include "tests/check.h"

namespace turbomind::testing {

TEST(uniform_numbers_are_uniform_and_repeat) {
  int buckets[10] = {};
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = uniform(42, i);
    CHECK(u >= 0 && u < 1);
    ++buckets[static_cast<int>(u * 10)];
  }
  double chi_square = 0;
  for (const int count : buckets) chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
  CHECK(chi_square < 33.7);  // 9 degrees of freedom, p = 0.0001
  CHECK_EQUAL(uniform(1, 5), uniform(1, 5));
  CHECK(uniform(1, 5) != uniform(2, 5));
}

TEST(a_mask_forbids_the_tokens_whose_bits_are_zero_and_changes_no_other) {
  constexpr int kVocab = 32 * 5 + 13;
  const std::vector<uint32_t> words = {0x00000000u, 0xFFFFFFFFu, 0x80000001u, 0x5A5A00FFu, 0x7FFFFFFEu, 0x00001555u};
  const std::vector<int32_t> mask(words.begin(), words.end());
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i) logits[static_cast<size_t>(i)] = static_cast<float>(i) - 80.0f;
  logits[100] = std::numeric_limits<float>::quiet_NaN();  // its bit is 1
  apply_mask(mask.data(), kVocab, logits.data());
  for (int i = 0; i < kVocab; ++i) {
    const float found = logits[static_cast<size_t>(i)];
    if ((words[static_cast<size_t>(i / 32)] >> (i % 32) & 1u) == 0) {
      CHECK_EQUAL(found, -std::numeric_limits<float>::infinity());
    } else {
      CHECK(i == 100 ? std::isnan(found) : found == static_cast<float>(i) - 80.0f);
    }
  }
}

namespace {

const TokenTable& no_tokens() {
  static const TokenTable table({});
  return table;
}

// Frequencies of 40,000 draws against the distribution computed in double.
void check_distribution(GenerationParams params, const std::vector<double>& expected,
                        const std::vector<float>& logits) {
  const OutputSpace space{no_tokens(), static_cast<int>(logits.size()), 1};
  params.do_sample = true;
  const GenerationRules rules(params, space, {});
  SamplingParams rule = rules.sampling;
  rule.seed = 99;
  Sampler sampler(space.vocab_size);
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    rule.draw = draw;
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row.data(), rule))];
  }
  double chi_square = 0;
  int degrees = -1;
  for (size_t token = 0; token < logits.size(); ++token) {
    if (expected[token] == 0) {
      CHECK_EQUAL(counts[token], 0);
      continue;
    }
    const double mean = expected[token] * kDraws;
    chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
    ++degrees;
  }
  CHECK(chi_square < degrees + 5 * std::sqrt(2.0 * degrees) + 10);  // beyond p = 1e-5 for these sizes
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature, const std::vector<bool>& keep) {
  std::vector<double> p(logits.size());
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += p[i] = keep[i] ? std::exp(logits[i] / temperature) : 0;
  for (double& value : p) value /= total;
  return p;
}

const std::vector<float> kLogits = {2.0f, 1.0f, 0.5f, 0.0f, -1.0f, 1.5f, 0.25f, -3.0f};

}  // namespace

TEST(temperature_top_k_and_top_p_give_the_textbook_distributions) {
  GenerationParams params;
  params.top_k = 0;
  params.temperature = 0.7f;
  check_distribution(params, softmax(kLogits, 0.7, std::vector<bool>(8, true)), kLogits);
  params.top_k = 3;
  check_distribution(params, softmax(kLogits, 0.7, {true, true, false, false, false, true, false, false}), kLogits);
  params.top_k = 0;
  params.temperature = 1.0f;
  params.top_p = 0.6f;  // probabilities .40 .24 .15 ...: two tokens reach .6 (.40 + .24)
  check_distribution(params, softmax(kLogits, 1.0, {true, false, false, false, false, true, false, false}), kLogits);
}

TEST(of_equal_logits_the_lower_ids_are_among_the_top_k) {
  GenerationParams params;
  params.top_k = 3;
  params.temperature = 1.0f;
  const std::vector<float> logits = {0.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  check_distribution(params, softmax(logits, 1.0, {true, true, false, true, false, false, false, false}), logits);
}

TEST(the_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_seen_tokens_once) {
  SamplingParams rule;
  rule.repetition_penalty = 2.0f;
  const PromptTokens prompt(rule, {0, 0, 2}, 5);
  const Penalties::Biases none;
  Penalties penalties(rule, prompt, none);
  for (const int32_t token : {2, 3, 3}) penalties.record(token);
  std::vector<float> row = {1.0f, 1.0f, -1.0f, 3.0f, -1.0f};
  penalties.apply(row.data());
  CHECK(row == std::vector<float>({0.5f, 1.0f, -2.0f, 1.5f, -1.0f}));
}

TEST(penalties_and_bias_act_on_logits_as_documented) {
  SamplingParams rule;
  rule.presence_penalty = 1.0f;
  rule.frequency_penalty = 0.5f;
  const PromptTokens prompt(rule, {0}, 3);  // the prompt does not count
  const Penalties::Biases biases = {{2, 0.75f}};
  Penalties penalties(rule, prompt, biases);
  penalties.record(1);
  penalties.record(1);
  std::vector<float> row = {1.0f, 3.5f, 1.0f};
  penalties.apply(row.data());
  CHECK(row == std::vector<float>({1.0f, 3.5f - 1.0f - 2 * 0.5f, 1.75f}));
}

TEST(responses_share_a_prompt_and_count_their_own_tokens) {
  SamplingParams rule;
  rule.repetition_penalty = 4.0f;
  const PromptTokens prompt(rule, {0}, 3);
  const Penalties::Biases none;
  Penalties one(rule, prompt, none);
  Penalties other(rule, prompt, none);
  one.record(1);
  other.record(2);
  std::vector<float> row = {4.0f, 4.0f, 4.0f};
  one.apply(row.data());
  CHECK(row == std::vector<float>({1.0f, 1.0f, 4.0f}));
}

TEST(what_asks_for_greedy_is_greedy) {
  const auto is_greedy = [](const std::function<void(GenerationParams&)>& change) {
    GenerationParams params;
    params.do_sample = true;
    change(params);
    return GenerationRules(params, {no_tokens(), 3, 1}, {}).sampling.is_greedy;
  };
  CHECK(!is_greedy([](GenerationParams&) {}));
  CHECK(is_greedy([](GenerationParams& params) { params.do_sample = false; }));
  CHECK(is_greedy([](GenerationParams& params) { params.temperature = 0; }));
  CHECK(is_greedy([](GenerationParams& params) { params.top_k = 1; }));
}

TEST(nothing_left_to_choose_is_reported) {
  Sampler sampler(2);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {-infinity, std::nanf("")}) {
    std::vector<float> row = {bad, bad};
    CHECK_EQUAL(sampler.sample(row.data(), SamplingParams{}), -1);
  }
}

TEST(min_p_drops_what_is_far_less_likely_than_the_most_likely) {
  GenerationParams params;
  params.top_k = 0;
  params.temperature = 1.0f;
  params.min_p = 0.3f;  // exp(-1) = .37 stays, exp(-1.5) = .22 goes; logits are 2, 1, .5, 0, -1, 1.5, .25, -3
  check_distribution(params, softmax(kLogits, 1.0, {true, true, false, false, false, true, false, false}), kLogits);
}

TEST(log_probabilities_are_those_of_the_whole_distribution) {
  const TokenLogprobs got = log_probabilities(kLogits.data(), 8, 3, 2);
  const std::vector<double> p = softmax(kLogits, 1.0, std::vector<bool>(8, true));
  CHECK(std::fabs(got.chosen - std::log(p[3])) < 1e-6);
  CHECK_EQUAL(got.top.size(), 2u);
  CHECK_EQUAL(got.top[0].first, 0);
  CHECK_EQUAL(got.top[1].first, 5);
  CHECK(std::fabs(got.top[1].second - std::log(p[5])) < 1e-6);
}

}  // namespace turbomind::testing
