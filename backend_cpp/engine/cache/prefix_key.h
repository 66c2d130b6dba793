// Prefix key: everything that determines keys and values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind {

// Separates contents with equal tokens. It excludes the model, which a cache never outlives.
struct PrefixScope {
  // `cache_namespace` stands for a cache salt and an adapter, or for one session or request alone.
  PrefixScope(uint64_t namespace_of = 0, int variant_of = 0,
              bool is_of_cross = false)  // NOLINT: a namespace is a scope
      : cache_namespace(namespace_of), variant(variant_of), is_cross(is_of_cross) {}

  uint64_t cache_namespace;
  int variant;    // ModelRunner::cache_variant
  bool is_cross;  // rows for cross-attention, which no prompt begins with

  bool operator==(const PrefixScope&) const = default;
};

// Sequences share blocks as far as their keys are equal.
struct PrefixKey {
  PrefixScope scope;
  const std::vector<int32_t>& tokens;
  std::span<const EmbeddingRange> images = {};  // embeddings in place of tokens
  // Source of the scope, for cache events.
  std::string_view lora_name = {};
  std::string_view salt = {};
};

// Cache namespaces of requests: those of one may find each other's blocks.
class CacheScopes {
 public:
  static constexpr uint64_t kShared = 0;              // of all requests without a salt
  static constexpr uint64_t kUnknown = ~uint64_t{0};  // of nobody

  // `limit` salts are remembered. An evicted one gets a new scope: what was cached in its name is not found.
  explicit CacheScopes(size_t limit = 4096) : max_count_(limit) {}

  // `adapter`: of the rows; 0: none. What adapters add is in the keys and values.
  uint64_t of(const std::string& salt, uint64_t adapter = 0) {
    uint64_t scope = find(salt, adapter);
    if (scope == kShared) return scope;
    if (scope == kUnknown) {
      if (known_.size() == max_count_)
        known_.erase(std::ranges::min_element(known_, {}, [](const auto& of) { return of.second.used; }));
      scope = fresh();
    }
    known_[{adapter, salt}] = {scope, ++clock_};
    return scope;
  }
  // The same for a salt that may be unknown, which then stays so.
  uint64_t find(const std::string& salt, uint64_t adapter) const {
    if (salt.empty() && adapter == 0) return kShared;
    const auto it = known_.find({adapter, salt});
    return it == known_.end() ? kUnknown : it->second.scope;
  }

  // One that nobody else has.
  uint64_t fresh() { return next_++; }

 private:
  struct Known {
    uint64_t scope = 0;
    uint64_t used = 0;  // by clock_
  };

  size_t max_count_;
  std::map<std::pair<uint64_t, std::string>, Known> known_;  // by adapter and salt
  uint64_t clock_ = 0;
  uint64_t next_ = kShared + 1;
};

}  // namespace turbomind
