// Everything that determines keys and values: the key for prefix matching.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind {

// Separates contents with equal tokens. It excludes the model, which a cache never outlives.
struct PrefixScope {
  // `realm` stands for a cache salt and an adapter, or for one session or request alone.
  PrefixScope(uint64_t realm_of = 0, int variant_of = 0, bool is_of_cross = false)  // NOLINT: a realm is a scope
      : realm(realm_of), variant(variant_of), is_cross(is_of_cross) {}

  uint64_t realm;
  int variant;    // ModelRunner::cache_variant
  bool is_cross;  // rows for cross-attention, which no prompt begins with

  bool operator==(const PrefixScope&) const = default;
};

// Sequences share blocks as far as their keys are equal.
struct PrefixKey {
  PrefixScope scope;
  const std::vector<int32_t>& tokens;
  std::span<const EmbeddingRange> images = {};  // embeddings in place of tokens
  // What the scope was made from, for cache events.
  std::string_view lora_name = {};
  std::string_view salt = {};
};

// The realms of requests: those of one realm may find each other's blocks.
class CacheScopes {
 public:
  static constexpr uint64_t kShared = 0;  // of all requests without a salt

  // `most` salts are remembered. One that was forgotten gets a new scope: what was cached in its name is not found.
  explicit CacheScopes(size_t most = 4096) : most_(most) {}

  // `adapter`: of the rows; 0: none. What adapters add is in the keys and values.
  uint64_t of(const std::string& salt, uint64_t adapter = 0) {
    if (salt.empty() && adapter == 0) return kShared;
    const std::string key = std::to_string(adapter) + ":" + salt;
    if (const auto it = places_.find(key); it != places_.end()) {
      used_.splice(used_.end(), used_, it->second);
      return it->second->scope;
    }
    if (places_.size() == most_) {
      places_.erase(used_.front().key);
      used_.pop_front();
    }
    used_.push_back({key, fresh()});
    places_.emplace(key, std::prev(used_.end()));
    return used_.back().scope;
  }

  // One that nobody else has.
  uint64_t fresh() { return next_++; }

 private:
  struct Salted {
    std::string key;
    uint64_t scope;
  };

  size_t most_;
  std::list<Salted> used_;  // least recently used first
  std::unordered_map<std::string, std::list<Salted>::iterator> places_;
  uint64_t next_ = kShared + 1;
};

}  // namespace turbomind
