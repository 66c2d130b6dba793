// The tokens that a text is likely written with: at each place the longest.
//
// Used by the step thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/generation/token_table.h"

namespace turbomind {

class LikelyTokens {
 public:
  // Of the first `vocab_size` of a table, which must outlive this.
  LikelyTokens(const TokenTable& table, int vocab_size) : table_(table), vocab_size_(vocab_size) {}

  // At most `most`; fewer where no token continues.
  std::vector<int32_t> of(std::string_view text, size_t most);

 private:
  void read_table();

  const TokenTable& table_;
  int vocab_size_;
  std::unordered_map<std::string_view, int32_t> token_of_;  // filled when first asked
  size_t longest_ = 0;
};

}  // namespace turbomind
