// Incremental detokenization: turns the bytes of generated tokens into text that can be sent.
//
// Bytes are held back while they may still become a stop string or the rest of a UTF-8 character; what is released is
// always whole characters and never part of a stop string. Bytes that can no longer become a character are replaced by
// U+FFFD, one for each maximal ill-formed run (Unicode 15, section 3.9, as Python's decoder does).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace turbomind {

// A string to be found in a stream of bytes (Knuth, Morris & Pratt, 1977). Where the stream is is a number that the
// caller keeps, so any number of streams share one pattern.
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

// Text with U+FFFD for each maximal ill-formed run: what quotes a caller's bytes, or was cut, can be sent.
std::string valid_utf8(std::string_view text);

class TextStream {
 public:
  // `stop_strings` must outlive the stream.
  explicit TextStream(const std::vector<StringPattern>& stop_strings)
      : stop_strings_(stop_strings), states_(stop_strings.size(), 0) {}

  // Adds bytes. Returns true when they complete a stop string: the text before it stays, the rest is dropped, and the
  // stream takes no more bytes. While `may_stop` is false stop strings pass through as text.
  bool append(std::string_view bytes, bool may_stop);

  // Text that can be sent and was not taken before.
  std::string take();
  // The same at the end of the response, when nothing more can follow: text held back for a stop string is released, an
  // unfinished character is dropped. Before a stop string it becomes U+FFFD: what follows does not finish it.
  std::string take_rest() { return release(pending_.size(), true); }

  // The stop string that ended the text, the longest of those that end there; null: none has.
  const StringPattern* stopped_by() const { return stopped_by_; }

 private:
  std::string release(size_t count, bool at_end);

  const std::vector<StringPattern>& stop_strings_;
  std::vector<int> states_;  // of each stop string
  std::string pending_;
  const StringPattern* stopped_by_ = nullptr;
};

}  // namespace turbomind
