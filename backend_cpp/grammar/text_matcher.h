// Finds texts in a text that comes byte by byte: the automaton of Aho and Corasick.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace turbomind {

class TextMatcher {
 public:
  static constexpr int32_t kNothing = -1;
  static constexpr int32_t kNever = -2;  // the meaning of what must not come, which goes before any other

  // `meaning`: at least 0, or kNever. False: there are too many, or two of one text.
  bool add(const std::string& text, int32_t meaning);
  // After the last one is added.
  void finish();

  // States; 0 is the first one.
  size_t size() const { return states_.size(); }
  // Meaning of the longest text that ends at a state.
  int32_t ends(size_t state) const { return states_[state].meaning; }
  // The states after it, and the bytes that lead there: first and last of each range.
  std::map<size_t, std::vector<int32_t>> ways(size_t state) const;

 private:
  struct State {
    State() { next.fill(0); }
    std::array<uint32_t, 256> next;  // 0: none yet, and the first one once finished
    int32_t meaning = kNothing;
  };

  std::vector<State> states_{State()};
};

}  // namespace turbomind
