// Finds one string in a stream of bytes (Knuth, Morris & Pratt, 1977).
#pragma once

#include <string>
#include <vector>

namespace turbomind {

class StringMatcher {
 public:
  explicit StringMatcher(std::string word);  // not empty

  void advance(char byte) { state_ = next(state_, byte); }
  // How many bytes are matched after `byte`, from `state` bytes matched before it.
  int next(int state, char byte) const;

  int length() const { return static_cast<int>(word_.size()); }
  // Bytes at the end of the stream that are the beginning of the word; length() when they are all of it.
  int state() const { return state_; }
  bool is_complete() const { return state_ == length(); }
  // The same, leaving out a complete match.
  int unfinished() const { return is_complete() ? failure_.back() : state_; }

 private:
  std::string word_;
  std::vector<int> failure_;  // failure_[i]: length of the longest border of the first i + 1 bytes
  int state_ = 0;
};

}  // namespace turbomind
