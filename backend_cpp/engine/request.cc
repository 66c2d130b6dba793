#include "engine/request.h"

#include <sstream>

#include "base/error.h"
#include "engine/generation/token_table.h"

namespace turbomind {

namespace {

constexpr size_t kMaxBadTokens = 10000;

template <class T>
void require(bool holds, const char* field, const char* expected, T given) {
  if (holds) return;
  std::ostringstream message;
  message << field << " must be " << expected << ", got " << given;
  throw invalid_argument(message.str());
}

}  // namespace

void GenerationParams::validate(int vocab_size, const TokenTable& tokens) const {
  visit_fields(*this,
               [](const char* name, const auto& field, const Limits& limits) { check_limits(name, field, limits); });
  const auto require_token = [&](int32_t id, const char* field, const char* expected) {
    if (id < 0 || id >= vocab_size) require(false, field, expected, tokens.refused(id));
  };
  require(min_new_tokens <= max_new_tokens || max_new_tokens == kAllThatIsLeft, "min_new_tokens",
          "at most max_new_tokens", min_new_tokens);
  for (const int32_t id : stop_token_ids) require_token(id, "each of stop_token_ids", "a token of the vocabulary");
  for (const int32_t id : thinking_end_ids) require_token(id, "each of thinking_end_ids", "a token of the vocabulary");
  for (const int32_t id : bad_token_ids) require_token(id, "each of bad_token_ids", "a token of the vocabulary");
  require(bad_tokens.size() <= kMaxBadTokens, "bad_words_list", "at most 10000 words", bad_tokens.size());
  for (const std::vector<int32_t>& word : bad_tokens) {
    require(!word.empty(), "each of bad_words_list", "at least one token long", word.size());
    for (const int32_t id : word) require_token(id, "each of bad_words_list", "made of tokens of the vocabulary");
  }
  for (const auto& [id, bias] : logit_bias) require_token(id, "each token of logit_bias", "in the vocabulary");
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kRepetition:
      return "repetition";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace turbomind
