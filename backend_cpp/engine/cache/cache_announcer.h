// KV event source: reports changes of the block cache.
//
// A block is identified by its hash: FNV-1a (64 bits; Fowler, Noll and Vo) of
//
//   the hash of the preceding block, 8 bytes, 0 for the first | its tokens, 4 bytes each | its extra keys, if any
//
// numbers are little-endian, extra keys are compact JSON. So equal contents have equal hashes in all replicas. A
// content that is cached twice (an adapter was loaded again, or positions are scaled differently) is reported once, and
// as removed with its last copy.
//
// A file is reported as long as it is known to exist, even when files of preceding blocks are removed.
//
// Used by the step thread only.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/cache_observer.h"
#include "engine/disk/block_files.h"
#include "engine/events/cache_event.h"

namespace turbomind {

class CacheAnnouncer final : public CacheObserver {
 public:
  // `sink` must outlive the announcer.
  CacheAnnouncer(int block_len, CacheEventSink& sink) : block_len_(block_len), sink_(sink) {}

  void stored(uint64_t content, uint64_t parent, const PrefixKey& prefix, int index) override;
  void moved(uint64_t content, std::span<const int32_t> tokens, CacheTier to) override;
  void removed(uint64_t content) override;
  void cleared() override;

  // Adds file changes.
  void record_files(const std::vector<FileChange>& changes);
  // The label of a cached content; null: its parents are unknown.
  std::shared_ptr<const FileLabel> label(uint64_t content, std::span<const int32_t> tokens, int index) const;
  // The label of the next block of a prefix, after `before` (null: the first), and of one that has only tokens.
  std::shared_ptr<const FileLabel> label_after(const FileLabel* before, const PrefixKey& prefix) const;
  static std::shared_ptr<const FileLabel> label_after(const FileLabel* before, std::span<const int32_t> tokens);

  // Passes the events since the last call to the sink, or all contents of the cache if the sink asks for them.
  void end_step(CacheSource& cache);

 private:
  // A content of the cache.
  struct Node : BlockLabel {
    uint64_t before = 0;
    bool is_known = true;                         // its parent, and so its hash
    std::set<uint64_t, std::greater<>> children;  // contents
    CacheTier tier = CacheTier::kDevice;
    bool can_be_found = true;
  };
  // Files of one hash.
  struct Filed {
    std::shared_ptr<const FileLabel> label;
    int count = 0;
  };
  using Tiers = std::array<int, 2>;  // of memory

  void report_stored(const BlockLabel& block, std::span<const int32_t> tokens, CacheTier tier);
  void report_removed(uint64_t hash, CacheTier tier);
  void add_ref(const Node& node, std::span<const int32_t> tokens);
  void drop_ref(const Node& node);
  void lose(uint64_t content);
  void report_everything(CacheSource& cache);
  void report_files();

  const int block_len_;
  CacheEventSink& sink_;
  std::unordered_map<uint64_t, Node> nodes_;     // by content
  std::unordered_map<uint64_t, Tiers> holders_;  // number of matchable contents, by hash and tier
  std::unordered_map<uint64_t, Filed> files_;    // by hash
  std::vector<CacheEvent> events_;
};

}  // namespace turbomind
