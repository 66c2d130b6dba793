// A string to be found in a stream of bytes (Knuth, Morris & Pratt, 1977). Where the stream is is a number that the
// caller keeps, so any number of streams share one pattern.
#pragma once

#include <string>
#include <vector>

namespace turbomind {

class StringPattern {
 public:
  explicit StringPattern(std::string text);  // not empty

  // A state is how many bytes at the end of the stream are the beginning of the string; length() when they are all of
  // it. A stream begins with 0.
  int next(int state, char byte) const;
  bool is_complete(int state) const { return state == length(); }
  // Bytes that may still grow into a match: the state, leaving out a complete one.
  int unfinished(int state) const { return is_complete(state) ? failure_.back() : state; }
  int length() const { return static_cast<int>(text_.size()); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<int> failure_;  // failure_[i]: length of the longest border of the first i + 1 bytes
};

std::vector<StringPattern> string_patterns(const std::vector<std::string>& texts);

}  // namespace turbomind
