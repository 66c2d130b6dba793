// The block cache's disk tier: files that outlive the process (engine/disk/block_files.h).
//
//   block cache -- queued contents -> exchange() -- pages --> BlockTransfers --> files
//   waiting sequence -- waits_for_load() -- keys ------------> BlockTransfers <-- files
//   block cache <-- restored, idle -- exchange() <- pages -------'
//
// Unreferenced contents are written once, parents first; a content that is about to be evicted is written before
// others. For a waiting sequence, the tier reads the blocks of its prefix that are on disk and not in memory. They are
// attached to the cache as idle contents, and then the sequence starts and matches them. Contents read from disk follow
// the same rules as computed ones: eviction, matching, events.
//
// A content's key has everything that determines it: the model and its settings (a fingerprint), the adapter's weights,
// the salt, the position variant, all tokens and images before it (their digest), its own tokens, and the cache group.
//
// Not stored: groups that do not bound prefix hits (engine/cache/prefix_hits.h).
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/cache_announcer.h"
#include "engine/cache/cache_observer.h"
#include "engine/cache/prefix_read.h"
#include "engine/disk/block_files.h"
#include "engine/disk/block_transfers.h"
#include "engine/engine_config.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

// One sequence's read.
struct DiskLookup {
  std::shared_ptr<const PrefixRead> read;  // null: nothing; cancelled when its last sequence drops it
  bool is_owner = false;                   // started for this sequence, not for one with the same prefix
  bool is_finished = false;                // no further read is needed
  int read_begin = 0;                      // tokens of the prompt that were read for it or for another sequence
  int read_end = 0;
};

class DiskTier final : private CacheObserver {
 public:
  // `cache` and `runner` must outlive it. `wake` is called on another thread when exchange() has work.
  // Throws Error (kInvalidArgument) for a directory that cannot be used, or a limit that is too small.
  DiskTier(const DiskTierConfig& config, CacheSource& cache, ModelRunner& runner, std::function<void()> wake);

  // Registers the namespace of requests with this salt and adapter (LoadedAdapter::content); empty: none.
  void record_namespace(uint64_t cache_namespace, const std::string& salt, const std::string& adapter);
  // Whether a sequence should wait because blocks of the first `limit` tokens of its prefix are being read; starts the
  // read. `anchors`: those of SequenceMemory.
  bool waits_for_load(const PrefixKey& prefix, int limit, const std::vector<int>& anchors, DiskLookup& lookup);
  // Records that a step computed this many tokens in `seconds`, to estimate the cost of recomputation.
  void record_step(int tokens, double seconds);

  // Sets the source of event labels, which must outlive the tier. Existing files of no salt and adapter count too.
  void label_with(const CacheAnnouncer& labels);
  // Returns the file changes since the last call, for the announcer.
  std::vector<FileChange> take_changes() { return files_.take_changes(); }

  // Attaches blocks that were read and passes on blocks to write. `is_busy`: only as many as a step can hide.
  void exchange(bool is_busy);
  bool has_work() const;
  // Writes all idle contents and waits for it, up to a time limit.
  void finish();

  // Removes all files, in the background.
  void drop_files() { transfers_.drop_all(); }

  DiskStats stats() const { return {files_.counts(), transfers_.counts()}; }

 private:
  void idle(NodeId node, int group) override;
  void leaving(NodeId node, int group) override;
  // Reads the keys of some files that existed at start, on the transfer thread. False: no files are left.
  bool describe_files();
  static Sha256 namespace_of(const std::string& salt, const std::string& adapter);
  Sha256 root_of(const Sha256& cache_namespace, int variant) const;
  std::optional<Sha256> root_of(const PrefixScope& scope) const;
  DiskRead::Item item_of(const Sha256& parent, const std::string& content, int index, int tokens, int group) const;
  std::shared_ptr<PrefixRead> make_read(const PrefixKey& prefix, int limit, const std::vector<int>& anchors,
                                        const Sha256& root);
  void add_parts(const PrefixKey& prefix, int limit, const std::vector<int>& anchors,
                 const std::vector<Sha256>& digests, const std::vector<NodeId>& path, PrefixRead& read) const;
  size_t bytes_of(const CacheGroup& group) const {
    return static_cast<size_t>(group.pages) * runner_.kept_page_bytes();
  }
  void load_part(const BlockTransfers::Part& part);
  // Returns the number of bytes copied; 0: it is stored already, or cannot be stored.
  size_t send_out(NodeId node, int group);
  // The same for the content that was queued last and still exists.
  size_t send_next();
  void flush_moves();

  CacheSource& cache_;
  const CachePlan& plan_;
  ModelRunner& runner_;
  const CacheAnnouncer* labels_ = nullptr;                 // null: no events
  std::map<Sha256, std::vector<std::string>> found_keys_;  // of describe_files(), by parent
  const std::string fingerprint_;
  size_t largest_ = 0;                     // bytes of a group's block
  std::map<uint64_t, Sha256> namespaces_;  // digests of salts and adapters
  double tokens_per_second_ = 0;           // 0: unknown
  size_t leaving_bytes_ = 0;               // copied since the last exchange() because they were about to be evicted
  struct Queued {
    NodeId node;
    uint64_t number;
    int group;
  };
  std::vector<Queued> queue_;                     // idle contents to be written, those used last at the end
  std::set<std::pair<uint64_t, int>> is_queued_;  // their nodes' numbers and groups
  std::vector<std::weak_ptr<const PrefixRead>> open_;
  BlockFiles files_;
  BlockTransfers transfers_;  // destroyed first
};

}  // namespace turbomind
