// Cache control for administrators: contents by tier, drops and pins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/cache/block_cache.h"
#include "engine/schedule/session_table.h"
#include "engine/stats.h"

namespace turbomind {

struct CacheReport {
  EngineStats stats;
  size_t page_bytes = 0;
  bool has_files = false;
  int pinned_prompts = 0;
  int pinned_pages = 0;  // that are in memory now
  int max_pinned_pages = 0;
  int tokens = 0;  // of the prompt that was pinned: how many of them are kept
};

struct CacheControl {
  enum class Action {
    kReport,
    kDropMemory,  // what no request uses, and all pins
    kDropFiles,   // in the background
    kPin,         // keep what the cache has of a prompt
    kUnpin,
    // Of an engine without requests:
    kRest,    // write contents to files, move them to the host's memory, and return the device's pages to the system
    kLeave,   // write contents to files, and hand over `sessions`
    kReturn,  // take over `sessions`
  };
  Action action = Action::kReport;
  std::shared_ptr<SessionTable::Sessions> sessions;
  // Of a prompt that is pinned or unpinned.
  std::vector<int32_t> tokens;
  std::string salt;
  std::string lora_name;    // empty: no adapter
  uint64_t adapter_id = 0;  // filled in by the engine
  // Called once, on the step thread; the error is null where there was none.
  std::function<void(const CacheReport&, const Error*)> on_done;
};

// Pinned prompts: their cached contents are evicted last among unreferenced contents.
//
// Requests have priority: if running requests need all pages, pinned contents are evicted too, so that a request that
// fits in the cache alone still completes. Pinned contents take at most a fourth of the pages.
//
// Used by the step thread only.
class CachePins {
 public:
  // `blocks` must outlive it.
  explicit CachePins(BlockCache& blocks) : blocks_(blocks) {}

  // Pins the cached leading blocks of a prompt. Returns their number of tokens. Throws Error (kInvalidArgument) if none
  // are cached, or if the pins would exceed their share.
  int pin(const PrefixKey& prefix);
  // False: it was not pinned.
  bool unpin(const PrefixKey& prefix);
  void clear();
  // Marks pinned contents as used; call before evictions.
  void refresh();

  int count() const { return static_cast<int>(pins_.size()); }
  // Pages of pinned contents.
  int page_count() const;
  int max_pages() const { return blocks_.pool().page_count() / 4; }

 private:
  struct Pin {
    PrefixScope scope;
    std::vector<int32_t> tokens;
    std::vector<NodeId> nodes;  // retained, from the first block on
  };

  std::vector<Pin>::iterator find(const PrefixKey& prefix);
  int pages_of(std::vector<NodeId> nodes) const;

  BlockCache& blocks_;
  std::vector<Pin> pins_;
  uint64_t seen_ = 0;  // EvictionOrder::last_use() when contents were touched last
};

}  // namespace turbomind
