// The vocabulary as a byte trie, so that tokens with a common prefix are processed together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/grammar/automaton.h"

namespace turbomind {

// Special tokens and their texts, which structural tags may name.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

// Sets a token's bit.
void allow(std::vector<int32_t>& mask, int32_t token);
// The only token that a mask allows; -1: none or several.
int32_t only_token(const std::vector<int32_t>& mask);

class TokenTrie {
 public:
  // The bytes of each token; empty: no text.
  explicit TokenTrie(std::vector<std::string> vocabulary);

  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  const std::string& bytes_of(int32_t token) const { return vocabulary_[static_cast<size_t>(token)]; }
  // Bytes of the longest token.
  size_t max_token_bytes() const { return max_token_bytes_; }
  // The tokens of a text, by byte-pair encoding with ids as ranks, which is how most vocabularies were made. Tokens
  // that pairs do not make are taken whole. Empty if the vocabulary lacks a byte.
  std::vector<int32_t> encode(std::string_view text) const;
  // Sets the bits of the tokens allowed at the beginning of a token.
  void find_allowed(Automaton& automaton, Automaton::State state, std::vector<int32_t>& mask) const;

 private:
  struct Node {
    uint8_t byte;
    uint32_t depth;   // bytes before it
    uint32_t end;     // the node after all that begin with it
    uint32_t tokens;  // the first of the tokens that end here; they end where the next node's begin
  };

  int32_t token_at(size_t node) const;  // that ends there; -1: none
  // The longest token that a text begins with; -1: none.
  int32_t longest(std::string_view text) const;
  int32_t token_of(std::string_view text) const;  // the whole text; -1: none
  bool is_made_of_pairs(int32_t token) const;
  // Adds where the character at `at` begins, or each of its bytes if it is no token. Returns where it ends.
  size_t add_character(std::string_view text, size_t at, std::vector<size_t>& pieces) const;
  // Merges neighbors of `pieces`, which are the beginnings of tokens in `text`.
  std::vector<int32_t> merge(std::string_view text, std::vector<size_t> pieces) const;

  const std::vector<std::string> vocabulary_;
  std::vector<Node> nodes_;  // in the order of their texts; the last is none
  std::vector<int32_t> tokens_;
  mutable std::unordered_map<int32_t, bool> made_of_pairs_;  // filled by the step thread when it asks
  size_t max_token_bytes_ = 0;
};

}  // namespace turbomind
