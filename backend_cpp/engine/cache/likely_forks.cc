#include "engine/cache/likely_forks.h"

namespace turbomind {

std::vector<int> likely_forks(const std::vector<int32_t>& tokens, const TokenTable& table, int block_len) {
  std::vector<int> forks;
  int last_special = -kSpecialTokensApart;
  const auto end = static_cast<int>(tokens.size());
  for (int i = 0; i < end; ++i) {
    if (!table.is_special(tokens[static_cast<size_t>(i)])) continue;
    if (forks.empty() || i - last_special >= kSpecialTokensApart) {
      forks.push_back(i + 1);
    } else {
      forks.back() = i + 1;
    }
    last_special = i;
  }
  // The response, which the tokens at the end begin, is found by the last block.
  if (!forks.empty() && end - forks.back() < kSpecialTokensApart) forks.pop_back();
  // Of a long last message, a question at its end.
  if (end - (forks.empty() ? 0 : forks.back()) > 8 * block_len) {
    for (const int blocks : {4, 2, 1}) forks.push_back(end - blocks * block_len);
  }
  if (const auto count = static_cast<std::ptrdiff_t>(forks.size()); count > kMaxForks) {
    forks.erase(forks.begin() + 2, forks.end() - (kMaxForks - 2));
  }
  return forks;
}

}  // namespace turbomind
