// Finds the longest suffix of a text that occurs in the texts added before.
//
// N-grams of `least` tokens are found by hash, the latest place first; among the few places compared, the one with the
// longest match is used, as in LZ77 (Ziv and Lempel, 1977). Places are compared token by token.
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
    int length = 0;  // of the match before it, at most `most`
  };

  NgramIndex(int least, int most) : least_(least), most_(most) {}

  int size() const { return static_cast<int>(tokens_.size()); }
  int32_t token(int place) const { return tokens_[static_cast<size_t>(place)]; }

  // Adds a token. Texts of other scopes are not found.
  void append(int32_t token, uint64_t scope = 0);
  // Ends a text: matches do not cross texts.
  void end_text();
  // The place where `text` may continue; its last tokens may be the last that were added.
  Match find(std::span<const int32_t> text, uint64_t scope = 0) const;
  // The number of tokens before `place` that match the end of `text`, at most `most`.
  int length_at(std::span<const int32_t> text, int place) const;
  void clear();

 private:
  uint64_t key_of(const int32_t* run, uint64_t scope) const;

  int least_;
  int most_;
  std::vector<int32_t> tokens_;  // kBetween is between texts
  std::vector<int> earlier_;     // by place, the previous place with the same n-gram before it; -1: none
  int text_begin_ = 0;
  std::unordered_map<uint64_t, int> latest_;  // by n-gram hash, the latest place after such an n-gram
};

}  // namespace turbomind
