#include "grammar/text_matcher.h"

#include <deque>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kMaxStates = 20'000;  // of 1 KiB each

}  // namespace

bool TextMatcher::add(const std::string& text, int32_t meaning) {
  size_t state = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (states_[state].next[byte] == 0) {
      if (states_.size() >= kMaxStates) return false;
      states_[state].next[byte] = static_cast<uint32_t>(states_.size());
      states_.emplace_back();
    }
    state = states_[state].next[byte];
  }
  int32_t& known = states_[state].meaning;
  if (known != kNothing && known != meaning && meaning != kNever) return known == kNever;
  known = meaning;
  return true;
}

// In the order of their lengths: what a state does not continue is continued by the longest end of its text that is a
// state too.
void TextMatcher::finish() {
  std::deque<std::pair<uint32_t, uint32_t>> todo;  // a state, and the one of that end
  for (const uint32_t state : states_[0].next) {
    if (state != 0) todo.emplace_back(state, 0);
  }
  for (; !todo.empty(); todo.pop_front()) {
    const auto [number, end] = todo.front();
    State& state = states_[number];
    const State& shorter = states_[end];
    if (state.meaning == kNothing || shorter.meaning == kNever) state.meaning = shorter.meaning;
    for (size_t byte = 0; byte < state.next.size(); ++byte) {
      if (state.next[byte] != 0) {
        todo.emplace_back(state.next[byte], shorter.next[byte]);
      } else {
        state.next[byte] = shorter.next[byte];
      }
    }
  }
}

std::map<size_t, std::vector<int32_t>> TextMatcher::ways(size_t state) const {
  std::map<size_t, std::vector<int32_t>> ways;
  for (int32_t byte = 0; byte < 256; ++byte) {
    std::vector<int32_t>& pairs = ways[states_[state].next[static_cast<size_t>(byte)]];
    if (!pairs.empty() && pairs.back() == byte - 1) {
      pairs.back() = byte;
    } else {
      pairs.insert(pairs.end(), {byte, byte});
    }
  }
  return ways;
}

}  // namespace turbomind
