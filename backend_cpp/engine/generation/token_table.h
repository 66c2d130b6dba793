// Token-to-bytes table (token_bytes.bin, docs/internals/interfaces.md).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace turbomind {

class TokenTable {
 public:
  struct Token {
    std::string bytes;
    bool is_special = false;
  };

  // Tokens from `rows` on are those of a tokenizer that is larger than its model's embedding: never generated, found by
  // no search, and here for messages alone.
  explicit TokenTable(std::vector<Token> tokens, int rows = std::numeric_limits<int>::max());
  // Throws Error for a missing or malformed file.
  static TokenTable from_file(const std::string& path, int rows = std::numeric_limits<int>::max());

  int size() const { return size_; }
  // Empty for ids beyond the table, which models with padded vocabularies can produce.
  std::string_view bytes(int32_t token) const;
  // An id that is refused, with the text of a token that the model has no embedding of.
  std::string quoted(int32_t token) const;
  bool is_special(int32_t token) const;
  // Whether the tokens that both have are the same; a model may have some that its tokenizer does not name.
  bool begins_like(const TokenTable& other) const;
  // The special token whose literal text this is, or -1.
  int32_t find_special(std::string_view text) const;

 private:
  std::vector<Token> tokens_;
  int size_;
  std::unordered_map<std::string, int32_t> specials_;
};

}  // namespace turbomind
