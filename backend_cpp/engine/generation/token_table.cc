#include "engine/generation/token_table.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"

namespace turbomind {

TokenTable::TokenTable(std::vector<Token> tokens, int rows)
    : tokens_(std::move(tokens)), size_(std::min(static_cast<int>(tokens_.size()), rows)) {
  for (int32_t id = 0; id < size_; ++id) {
    const Token& token = tokens_[static_cast<size_t>(id)];
    if (token.is_special) specials_.emplace(token.bytes, id);
  }
}

TokenTable TokenTable::from_file(const std::string& path, int rows) {
  constexpr char kMagic[] = "TMTOK001";
  constexpr size_t kHeaderBytes = 16;
  const MappedFile file(path);
  const auto fail = [&path] { throw invalid_argument(path + " is not a token table; convert the model again"); };
  if (file.size() < kHeaderBytes || std::memcmp(file.data(), kMagic, 8) != 0) fail();
  uint32_t count = 0;
  std::memcpy(&count, file.data() + 8, sizeof(count));
  const size_t offsets_bytes = (static_cast<size_t>(count) + 1) * sizeof(uint32_t);
  if (file.size() < kHeaderBytes + offsets_bytes + count) fail();
  std::vector<uint32_t> offsets(static_cast<size_t>(count) + 1);
  std::memcpy(offsets.data(), file.data() + kHeaderBytes, offsets_bytes);
  const std::byte* flags = file.data() + kHeaderBytes + offsets_bytes;
  const auto* blob = reinterpret_cast<const char*>(flags + count);
  const size_t blob_bytes = file.size() - kHeaderBytes - offsets_bytes - count;
  std::vector<Token> tokens(count);
  for (uint32_t id = 0; id < count; ++id) {
    if (offsets[id] > offsets[id + 1] || offsets[id + 1] > blob_bytes) fail();
    tokens[id].bytes.assign(blob + offsets[id], offsets[id + 1] - offsets[id]);
    tokens[id].is_special = (flags[id] & std::byte{1}) != std::byte{0};
  }
  return TokenTable(std::move(tokens), rows);
}

std::string_view TokenTable::bytes(int32_t token) const {
  return token >= 0 && static_cast<size_t>(token) < tokens_.size()
             ? std::string_view(tokens_[static_cast<size_t>(token)].bytes)
             : std::string_view();
}

std::string TokenTable::quoted(int32_t token) const {
  const std::string text(token >= size_ ? bytes(token) : std::string_view());
  return std::to_string(token) + (text.empty() ? "" : " (" + text + ", a token that this model has no embedding of)");
}

bool TokenTable::is_special(int32_t token) const {
  return token >= 0 && token < size() && tokens_[static_cast<size_t>(token)].is_special;
}

bool TokenTable::begins_like(const TokenTable& other) const {
  const auto count = std::min(tokens_.size(), other.tokens_.size());
  return std::equal(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(count), other.tokens_.begin(),
                    [](const Token& a, const Token& b) { return a.bytes == b.bytes; });
}

int32_t TokenTable::find_special(std::string_view text) const {
  const auto it = specials_.find(std::string(text));
  return it == specials_.end() ? -1 : it->second;
}

}  // namespace turbomind
