// What keys and values follow from: the one key by which the cache finds content.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/embedding_range.h"

namespace turbomind {

// Keeps content apart that tokens do not. The model needs no place here: a cache never outlives it.
struct PrefixScope {
  // `realm` stands for a cache salt and an adapter, or for one session or request alone
  // (engine/schedule/cache_scopes.h).
  PrefixScope(uint64_t realm_of = 0, int variant_of = 0, bool is_of_cross = false)  // NOLINT: a realm is a scope
      : realm(realm_of), variant(variant_of), is_cross(is_of_cross) {}

  uint64_t realm;
  int variant;    // ModelRunner::cache_variant
  bool is_cross;  // rows that tokens attend to by cross-attention, which no prompt begins with

  bool operator==(const PrefixScope&) const = default;
};

// All that keys and values of a sequence follow from. Sequences share blocks as far as theirs are equal.
struct PrefixKey {
  PrefixScope scope;
  const std::vector<int32_t>& tokens;
  std::span<const EmbeddingRange> images = {};  // rows in place of tokens
  // What the scope was made from, for cache events.
  std::string_view lora_name = {};
  std::string_view salt = {};
};

}  // namespace turbomind
