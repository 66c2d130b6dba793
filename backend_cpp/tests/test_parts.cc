// Text stream, sampler, JSON, thread pool.
#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/bad_text.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

struct Streamed {
  std::string text;
  bool is_stopped = false;
  bool all_whole = true;  // every piece was whole characters
};

bool is_whole(const std::string& piece) {
  return piece.empty() || ((piece[0] & 0xC0) != 0x80 && [&] {
           size_t i = piece.size();
           while (i > 0 && (piece[i - 1] & 0xC0) == 0x80) --i;
           const auto lead = static_cast<unsigned char>(piece[i - 1]);
           const size_t need = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
           return piece.size() - (i - 1) == need;
         }());
}

Streamed stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  TextStream text(stops);
  Streamed result;
  for (const std::string& piece : pieces) {
    result.is_stopped = text.append(piece, true);
    const std::string shown = text.take();
    result.all_whole = result.all_whole && is_whole(shown);
    result.text += shown;
    if (result.is_stopped) return result;
  }
  result.text += text.take_rest();
  return result;
}

}  // namespace

TEST(a_stop_string_split_over_any_pieces_never_leaks) {
  const std::string answer = "one two aabaabaac three";
  const std::vector<std::string> stops = {"aabaac", "never"};
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> pieces;
    for (size_t position = 0; position < answer.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(answer.substr(position, length));
      position += length;
    }
    const Streamed result = stream(pieces, stops);
    CHECK(result.is_stopped);
    CHECK_EQUAL(result.text, "one two aab");
  }
}

TEST(text_that_only_began_like_a_stop_string_is_released) {
  CHECK_EQUAL(stream({"say ST", "O", "W it"}, {"STOP"}).text, "say STOW it");
  CHECK_EQUAL(stream({"ends in STO"}, {"STOP"}).text, "ends in STO");
  CHECK_EQUAL(stream({"x"}, {}).text, "x");
}

TEST(the_earliest_stop_string_counts_and_of_those_the_longest) {
  CHECK_EQUAL(stream({"a b c d"}, {"c", "b"}).text, "a ");
  CHECK_EQUAL(stream({"hello END"}, {"END", "lo END"}).text, "hel");
}

TEST(characters_split_over_bytes_come_out_whole) {
  const std::string answer = "h\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x99\x82!";
  std::vector<std::string> bytes;
  for (const char c : answer) bytes.emplace_back(1, c);
  const Streamed result = stream(bytes, {"zzz"});
  CHECK_EQUAL(result.text, answer);
  CHECK(result.all_whole);
}

TEST(ill_formed_bytes_become_replacement_characters_and_an_unfinished_end_is_dropped) {
  const std::string replacement = "\xEF\xBF\xBD";
  CHECK_EQUAL(stream({"a\xFF", "b"}, {}).text, "a" + replacement + "b");
  CHECK_EQUAL(stream({"\xE4\xBD", "x"}, {}).text, replacement + "x");
  CHECK_EQUAL(stream({"\xED\xA0\x80"}, {}).text, replacement + replacement + replacement);
  CHECK_EQUAL(stream({"ok\xF0\x9F\x99"}, {}).text, "ok");
}

TEST(stop_strings_wait_until_stopping_is_allowed) {
  TextStream text({"no"});
  CHECK(!text.append("no, ", false));
  CHECK_EQUAL(text.take(), "no, ");
  CHECK(text.append("no!", true));
  CHECK_EQUAL(text.take(), "");
}

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

namespace {

// Frequencies of 40,000 draws against the distribution computed in double.
void check_distribution(GenerationParams params, const std::vector<double>& expected,
                        const std::vector<float>& logits) {
  params.do_sample = true;
  Sampler sampler(params, 99, static_cast<int>(logits.size()));
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    std::vector<float> row = logits;
    ++counts[static_cast<size_t>(sampler.sample(row.data(), draw, {}, nullptr))];
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

TEST(the_repetition_penalty_divides_positive_and_multiplies_negative_logits) {
  GenerationParams params;
  params.repetition_penalty = 2.0f;
  Sampler sampler(params, 0, 3);
  sampler.note_prompt(0);
  std::vector<float> row = {1.9f, 1.0f, -1.0f};
  CHECK_EQUAL(sampler.sample(row.data(), 0, {}, nullptr), 1);
  sampler.note_prompt(1);
  row = {-0.4f, -0.3f, -0.5f};
  CHECK_EQUAL(sampler.sample(row.data(), 0, {}, nullptr), 2);
}

TEST(forbidden_tokens_are_never_chosen_and_nothing_left_is_reported) {
  GenerationParams params;
  Sampler sampler(params, 0, 2);
  std::vector<float> row = {2.0f, 1.0f};
  CHECK_EQUAL(sampler.sample(row.data(), 0, {0}, nullptr), 1);
  row = {2.0f, 1.0f};
  CHECK_EQUAL(sampler.sample(row.data(), 0, {0, 1}, nullptr), -1);
}

TEST(penalties_and_bias_act_on_logits_as_documented) {
  GenerationParams params;
  params.presence_penalty = 1.0f;
  params.frequency_penalty = 0.5f;
  params.logit_bias = {{2, 0.75f}};
  Sampler sampler(params, 0, 3);
  sampler.note_prompt(0);  // the prompt does not count
  sampler.note_answer(1);
  sampler.note_answer(1);
  std::vector<float> row = {1.0f, 3.5f, 1.0f};
  CHECK_EQUAL(sampler.sample(row.data(), 0, {}, nullptr), 2);
  CHECK_EQUAL(row[0], 1.0f);
  CHECK_EQUAL(row[1], 3.5f - 1.0f - 2 * 0.5f);
  CHECK_EQUAL(row[2], 1.75f);
}

TEST(bad_token_sequences_forbid_their_last_token_where_the_rest_has_come) {
  GenerationParams params;
  params.bad_tokens = {{0}, {1, 2}};
  Sampler sampler(params, 0, 4);
  const auto choose = [&sampler](const std::vector<int32_t>& tokens) {
    std::vector<float> row = {9.0f, 1.0f, 5.0f, 2.0f};
    std::vector<int32_t> forbidden;
    sampler.append_forbidden(tokens, forbidden);
    return sampler.sample(row.data(), 0, forbidden, nullptr);
  };
  CHECK_EQUAL(choose({3}), 2);
  CHECK_EQUAL(choose({3, 1}), 3);
}

TEST(bad_text_forbids_every_token_that_would_complete_it) {
  const TokenTable table(
      {{"th", false}, {"e", false}, {"the", false}, {" bathe", false}, {"t", false}, {"he", false}, {"x", false}});
  BadText bad({"the"}, table);
  const auto forbidden = [&] {
    std::vector<int32_t> tokens;
    bad.append_forbidden(tokens);
    return tokens;
  };
  CHECK((forbidden() == std::vector<int32_t>{2, 3}));
  bad.advance("x th");
  CHECK((forbidden() == std::vector<int32_t>{1, 2, 3}));
  bad.advance("t");
  CHECK((forbidden() == std::vector<int32_t>{2, 3, 5}));
}

TEST(a_mask_leaves_only_its_tokens) {
  GenerationParams params;
  Sampler sampler(params, 0, 40);
  std::vector<float> row(40, 1.0f);
  row[0] = 9.0f;
  const std::vector<int32_t> mask = {0, 1 << 3};  // token 35 only
  CHECK_EQUAL(sampler.sample(row.data(), 0, {}, mask.data()), 35);
}

TEST(min_p_drops_what_is_far_less_likely_than_the_likeliest) {
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

TEST(json_reads_what_it_should_and_refuses_the_rest) {
  const Json json = Json::parse(R"({"a": [1, -2.5e3, true, null], "s": "q\"\u00e9\ud83d\ude42\n"})");
  CHECK_EQUAL(json.at("a").as_array().size(), 4u);
  CHECK_EQUAL(json.at("a").as_array()[1].as_double(), -2500.0);
  CHECK_EQUAL(json.at("s").as_string(), "q\"\xC3\xA9\xF0\x9F\x99\x82\n");
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "1 2", "nan", "\"\\x\"", "tru", "{1:2}", "1e999"}) {
    bool refused = false;
    try {
      Json::parse(bad);
    } catch (const Error&) {
      refused = true;
    }
    CHECK(refused);
  }
  bool refused = false;
  try {
    Json::parse(std::string(100000, '['));
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(a_parallel_loop_runs_every_chunk_once) {
  ThreadPool pool(4);
  for (int round = 0; round < 3000; ++round) {
    const int chunks = round % 37;
    std::vector<std::atomic<int>> hits(static_cast<size_t>(chunks));
    pool.parallel_for(chunks, [&](int chunk) { ++hits[static_cast<size_t>(chunk)]; });
    for (const auto& count : hits) CHECK_EQUAL(count.load(), 1);
    if (round % 500 == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long enough for workers to sleep
  }
}

}  // namespace turbomind::testing
