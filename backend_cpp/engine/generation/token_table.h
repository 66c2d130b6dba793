// The bytes each token stands for (token_bytes.bin, docs/internals/interfaces.md).
#pragma once

#include <cstdint>
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

  explicit TokenTable(std::vector<Token> tokens);
  static TokenTable from_file(const std::string& path);  // throws Error for a missing or malformed file

  int size() const { return static_cast<int>(tokens_.size()); }
  // Empty for ids beyond the table, which models with padded vocabularies can produce.
  std::string_view bytes(int32_t token) const;
  bool is_special(int32_t token) const;
  // Whether the tokens that both have are the same; a model may have some that its tokenizer does not name.
  bool begins_like(const TokenTable& other) const;
  // The special token whose literal text this is, or -1.
  int32_t find_special(std::string_view text) const;

 private:
  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> specials_;
};

}  // namespace turbomind
