#include "engine/grammar/grammar.h"

#include <cstddef>

namespace turbomind {

int32_t only_token(const std::vector<int32_t>& mask) {
  int32_t only = -1;
  for (size_t word = 0; word < mask.size(); ++word) {
    const auto bits = static_cast<uint32_t>(mask[word]);
    if (bits == 0) continue;
    if (only >= 0 || (bits & (bits - 1)) != 0) return -1;
    only = static_cast<int32_t>(word) * 32 + __builtin_ctz(bits);
  }
  return only;
}

}  // namespace turbomind
