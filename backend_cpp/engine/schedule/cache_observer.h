// Observes which contents of a block cache later requests can match.
#pragma once

#include <cstdint>
#include <span>

namespace turbomind {

struct PrefixKey;

enum class CacheTier { kDevice, kHost, kDisk };

// Called on the step thread in the order of the changes. `content` identifies the content of a block; ids are never
// reused.
class CacheObserver {
 public:
  virtual ~CacheObserver() = default;

  // Block `index` of a sequence with this prefix is on the device. `parent` is the content of the preceding block; for
  // the first block, an id that no content has.
  virtual void stored(uint64_t content, uint64_t parent, const PrefixKey& prefix, int index) = 0;
  // It moved to another tier.
  virtual void moved(uint64_t content, std::span<const int32_t> tokens, CacheTier to) = 0;
  // It was removed. Its children, even if still cached, can no longer be matched.
  virtual void removed(uint64_t content) = 0;
  // All contents were removed.
  virtual void cleared() = 0;
};

}  // namespace turbomind
