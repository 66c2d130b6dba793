// Constant-time comparison of secrets.
#pragma once

#include <string_view>

namespace turbomind {

// Whether two texts are equal, in a time that depends on their lengths alone and not on where they differ.
inline bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;  // volatile: no early end
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace turbomind
