// Receives what later requests can find in a block cache.
#pragma once

#include <cstdint>
#include <span>

namespace turbomind {

struct PrefixKey;

enum class CacheTier { kDevice, kHost, kDisk };

// Calls come in the order of the changes, on the step thread. `content` numbers what a block holds; no number comes
// twice.
class CacheObserver {
 public:
  virtual ~CacheObserver() = default;

  // Block number `index` of a sequence with this prefix is on the device. `parent` is the content of the block before
  // it; of the first block, a number that no content has.
  virtual void stored(uint64_t content, uint64_t parent, const PrefixKey& prefix, int index) = 0;
  // It is there, and nowhere else, now.
  virtual void moved(uint64_t content, std::span<const int32_t> tokens, CacheTier to) = 0;
  // It is gone; and what follows it, though it may still be held, is never found again.
  virtual void removed(uint64_t content) = 0;
  // Everything is gone.
  virtual void cleared() = 0;
};

}  // namespace turbomind
