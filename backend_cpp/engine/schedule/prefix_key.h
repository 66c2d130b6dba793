// Everything that determines keys and values: the key for prefix matching.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind {

// Separates contents with equal tokens. It excludes the model, which a cache never outlives.
struct PrefixScope {
  // `realm` stands for a cache salt and an adapter, or for one session or request alone
  // (engine/schedule/cache_scopes.h).
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

}  // namespace turbomind
