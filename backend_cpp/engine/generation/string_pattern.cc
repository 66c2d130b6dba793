#include "engine/generation/string_pattern.h"

#include <utility>

namespace turbomind {

StringPattern::StringPattern(std::string text) : text_(std::move(text)), failure_(text_.size(), 0) {
  for (size_t i = 1; i < text_.size(); ++i) failure_[i] = next(failure_[i - 1], text_[i]);
}

int StringPattern::next(int state, char byte) const {
  while (state > 0 && (state == length() || text_[static_cast<size_t>(state)] != byte))
    state = failure_[static_cast<size_t>(state) - 1];
  return text_[static_cast<size_t>(state)] == byte ? state + 1 : 0;
}

std::vector<StringPattern> string_patterns(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace turbomind
