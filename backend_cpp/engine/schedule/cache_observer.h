// Observes the contents of a block cache.
#pragma once

#include <cstdint>
#include <span>

#include "engine/schedule/prefix_key.h"
#include "engine/schedule/prefix_tree.h"

namespace turbomind {

enum class CacheTier { kDevice, kHost, kDisk };

// Called on the step thread in the order of the changes.
class CacheObserver {
 public:
  virtual ~CacheObserver() = default;

  // ---- what later requests can match: of one group, CacheContents::observed_group() ----

  // `content` identifies the content of a block; ids are never reused.
  // Block `index` of a sequence with this prefix is on the device. `parent` is the content of the preceding block; for
  // the first block, an id that no content has.
  virtual void stored(uint64_t /*content*/, uint64_t /*parent*/, const PrefixKey& /*prefix*/, int /*index*/) {}
  // It moved to another tier.
  virtual void moved(uint64_t /*content*/, std::span<const int32_t> /*tokens*/, CacheTier /*to*/) {}
  // It was removed. Its children, even if still cached, can no longer be matched.
  virtual void removed(uint64_t /*content*/) {}
  // All contents were removed.
  virtual void cleared() {}

  // ---- what no sequence uses: of the groups that prefix hits need ----

  // A node's content is complete, and idle.
  virtual void idle(NodeId /*node*/, int /*group*/) {}
  // It is about to be lost for lack of room.
  virtual void leaving(NodeId /*node*/, int /*group*/) {}
};

}  // namespace turbomind
