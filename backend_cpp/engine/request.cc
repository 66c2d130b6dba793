#include "engine/request.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaxStopWords = 1024;
constexpr size_t kMaxStopWordBytes = 16384;
constexpr size_t kMaxBadWords = 64;
constexpr size_t kMaxBadWordBytes = 256;
constexpr size_t kMaxBadTokens = 10000;
constexpr int kMaxAnswers = 128;

template <class T>
void require(bool holds, const char* field, const char* expected, T given) {
  if (holds) return;
  std::ostringstream message;
  message << field << " must be " << expected << ", got " << given;
  throw invalid_argument(message.str());
}

}  // namespace

void GenerationParams::validate(int vocab_size) const {
  const auto is_token = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  require(max_new_tokens >= 0 || max_new_tokens == kAllThatIsLeft, "max_new_tokens", ">= 1", max_new_tokens);
  require(min_new_tokens >= 0 && (min_new_tokens <= max_new_tokens || max_new_tokens == kAllThatIsLeft),
          "min_new_tokens", "between 0 and max_new_tokens", min_new_tokens);
  require(std::isfinite(temperature) && temperature >= 0 && temperature <= 100, "temperature", "between 0 and 100",
          temperature);
  require(top_p > 0 && top_p <= 1, "top_p", "in (0, 1]", top_p);
  require(top_k >= 0, "top_k", ">= 0", top_k);
  require(min_p >= 0 && min_p <= 1, "min_p", "in [0, 1]", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "> 0", repetition_penalty);
  require(presence_penalty >= -2 && presence_penalty <= 2, "presence_penalty", "in [-2, 2]", presence_penalty);
  require(frequency_penalty >= -2 && frequency_penalty <= 2, "frequency_penalty", "in [-2, 2]", frequency_penalty);
  require(n >= 1 && n <= kMaxAnswers, "n", "between 1 and 128", n);
  if (logprobs) require(*logprobs >= 0 && *logprobs <= kMaxTopLogprobs, "logprobs", "between 0 and 20", *logprobs);
  if (prompt_logprobs) {
    require(*prompt_logprobs >= 0 && *prompt_logprobs <= kMaxTopLogprobs, "prompt_logprobs", "between 0 and 20",
            *prompt_logprobs);
  }
  require(stop_words.size() <= kMaxStopWords, "stop_words", "at most 1024 strings", stop_words.size());
  for (const std::string& word : stop_words) {
    require(!word.empty() && word.size() <= kMaxStopWordBytes, "each of stop_words", "1 to 16384 bytes long",
            word.size());
  }
  for (const int32_t id : stop_token_ids)
    require(is_token(id), "each of stop_token_ids", "a token of the vocabulary", id);
  require(bad_words.size() <= kMaxBadWords, "bad_words", "at most 64 strings", bad_words.size());
  for (const std::string& word : bad_words) {
    require(!word.empty() && word.size() <= kMaxBadWordBytes, "each of bad_words", "1 to 256 bytes long", word.size());
  }
  require(bad_tokens.size() <= kMaxBadTokens, "bad_token_ids", "at most 10000 tokens", bad_tokens.size());
  for (const std::vector<int32_t>& word : bad_tokens) {
    require(!word.empty(), "each of bad_token_ids", "at least one token long", word.size());
    for (const int32_t id : word) require(is_token(id), "each of bad_token_ids", "a token of the vocabulary", id);
  }
  for (const auto& [id, bias] : logit_bias) {
    require(is_token(id), "each token of logit_bias", "in the vocabulary", id);
    require(!std::isnan(bias), "each value of logit_bias", "a number", bias);
  }
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace turbomind
