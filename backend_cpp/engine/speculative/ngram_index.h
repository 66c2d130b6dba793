// Finds where a text has gone on from the same words before: the longest run of tokens that ends a text and is
// somewhere in the texts that were read.
//
// Runs of `least` tokens are found by their hash, the latest place first; of the few places looked at, the one with the
// longest run counts, as in LZ77 (Ziv and Lempel, 1977). Places are compared token by token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace turbomind {

class NgramIndex {
 public:
  struct Match {
    int place = -1;  // of the token that followed; -1: none
    int length = 0;  // of the run before it, at most `most`
  };

  NgramIndex(int least, int most) : least_(least), most_(most) {}

  int size() const { return static_cast<int>(tokens_.size()); }
  int32_t token(int place) const { return tokens_[static_cast<size_t>(place)]; }

  // Reads on. What was read under another scope is not found.
  void append(int32_t token, uint64_t scope = 0);
  // Ends a text: no run reaches from one text into the next.
  void end_text();
  // Where `text` may continue; its last tokens may be the last that were read.
  Match find(std::span<const int32_t> text, uint64_t scope = 0) const;
  // How many tokens before `place` are the last of `text`, at most `most`.
  int length_at(std::span<const int32_t> text, int place) const;
  void clear();

 private:
  uint64_t key_of(const int32_t* run, uint64_t scope) const;

  int least_;
  int most_;
  std::vector<int32_t> tokens_;  // kBetween is between texts
  std::vector<int> earlier_;     // where the run that ends before a place has ended before; -1: nowhere
  int text_begin_ = 0;
  std::unordered_map<uint64_t, int> latest_;  // where the runs with a key ended, as a place after
};

}  // namespace turbomind
