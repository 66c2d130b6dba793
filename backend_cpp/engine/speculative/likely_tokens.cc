#include "engine/speculative/likely_tokens.h"

#include <algorithm>

namespace turbomind {

void LikelyTokens::read_table() {
  const int count = std::min(vocab_size_, table_.size());
  for (int32_t token = 0; token < count; ++token) {
    const std::string_view bytes = table_.bytes(token);
    if (bytes.empty() || table_.is_special(token)) continue;
    token_of_.try_emplace(bytes, token);
    longest_ = std::max(longest_, bytes.size());
  }
}

std::vector<int32_t> LikelyTokens::of(std::string_view text, size_t most) {
  if (longest_ == 0) read_table();
  std::vector<int32_t> tokens;
  while (!text.empty() && tokens.size() < most) {
    size_t length = std::min(longest_, text.size());
    auto found = token_of_.find(text.substr(0, length));
    while (found == token_of_.end() && --length > 0) found = token_of_.find(text.substr(0, length));
    if (length == 0) break;
    tokens.push_back(found->second);
    text.remove_prefix(length);
  }
  return tokens;
}

}  // namespace turbomind
