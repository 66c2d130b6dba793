#include "engine/request.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kMaxStopWords = 1024;
constexpr size_t kMaxStopWordBytes = 16384;

template <class T>
void require(bool holds, const char* field, const char* expected, T given) {
  if (holds) return;
  std::ostringstream message;
  message << field << " must be " << expected << ", got " << given;
  throw invalid_argument(message.str());
}

}  // namespace

void GenerationParams::validate(int vocab_size) const {
  require(max_new_tokens >= 1 || max_new_tokens == kAllThatIsLeft, "max_new_tokens", ">= 1", max_new_tokens);
  require(min_new_tokens >= 0 && (min_new_tokens <= max_new_tokens || max_new_tokens == kAllThatIsLeft), "min_new_tokens",
          "between 0 and max_new_tokens", min_new_tokens);
  require(std::isfinite(temperature) && temperature >= 0 && temperature <= 100, "temperature", "between 0 and 100", temperature);
  require(top_p > 0 && top_p <= 1, "top_p", "in (0, 1]", top_p);
  require(top_k >= 0, "top_k", ">= 0", top_k);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "> 0", repetition_penalty);
  require(stop_words.size() <= kMaxStopWords, "stop_words", "at most 1024 strings", stop_words.size());
  for (const std::string& word : stop_words) {
    require(!word.empty() && word.size() <= kMaxStopWordBytes, "each of stop_words", "1 to 16384 bytes long", word.size());
  }
  for (const int32_t id : stop_token_ids) {
    require(id >= 0 && id < vocab_size, "each of stop_token_ids", "a token of the vocabulary", id);
  }
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "";
}

}  // namespace turbomind
