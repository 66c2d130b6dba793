// The tier of the block cache that outlives memory and the process: files (engine/disk/block_files.h).
//
//   block cache -- noted contents --> exchange() -- pages --> BlockTransfers --> files
//   waiting sequence -- holds_up() ---------------- keys ---> BlockTransfers <-- files
//   block cache <-- restored, idle -- exchange() <- pages -------'
//
// What nobody references any more is written once, from the beginning of a prefix on; what is about to be lost before
// it was written goes first. A sequence that waits for its turn asks what files have of its prefix, beyond what memory
// has; what comes is attached to the cache like any content that is idle, and then the sequence begins and finds it
// there. So what is read needs no rules of its own: it is evicted, matched and announced as what was computed.
//
// A content's key is everything that it follows from: the model and how it runs (a fingerprint), the adapter's numbers,
// the salt, the variant of the positions, all tokens and images before it (their digest), its own, and the cache group.
//
// Not kept: groups that bound no prefix hit (engine/schedule/prefix_hits.h).
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/disk/block_files.h"
#include "engine/disk/block_transfers.h"
#include "engine/disk/disk_config.h"
#include "engine/schedule/block_cache.h"
#include "engine/schedule/prefix_read.h"
#include "model/model_runner.h"

namespace turbomind {

// Somebody waits for what files have of a prefix.
struct DiskTicket {
  explicit DiskTicket(std::shared_ptr<PrefixRead> of) : read(std::move(of)) {}
  DiskTicket(const DiskTicket&) = delete;
  ~DiskTicket() { read->is_wanted = false; }

  const std::shared_ptr<PrefixRead> read;
};

// What one sequence has asked for.
struct DiskQuestion {
  std::shared_ptr<DiskTicket> ticket;  // null: nothing
  bool is_own = false;                 // not another's, which begins alike
  bool is_settled = false;             // nothing is to be asked any more
};

class DiskTier {
 public:
  // `blocks` and `runner` must outlive it. `wake` is called on another thread when exchange() has something to do.
  // Throws Error (kInvalidArgument) for a directory that cannot be used, or that is too small.
  DiskTier(const DiskTierConfig& config, BlockCache& blocks, ModelRunner& runner, std::function<void()> wake);

  // The contents of a realm are those of requests with this salt and this adapter (LoadedAdapter::content); empty:
  // none.
  void note_realm(uint64_t realm, const std::string& salt, const std::string& adapter);
  // Whether a sequence had better wait: what files have of the first `limit` tokens of its prefix is being read.
  // `anchors`: as SequenceMemory has them.
  bool holds_up(const PrefixKey& prefix, int limit, const std::vector<int>& anchors, DiskQuestion& question);
  // A step has computed this many tokens in `seconds`.
  void note_step(int tokens, double seconds);

  // What events call blocks by; `labels` must outlive the tier. Files that are there already are reported too, of
  // requests without salts and adapters.
  void label_with(const FileLabels& labels);
  // What has happened to files since the last call, for the announcer.
  std::vector<FileChange> take_changes() { return files_.take_changes(); }

  // Takes what was read, and hands out what is to be written. `is_busy`: not more than a step hardly notices.
  void exchange(bool is_busy);
  bool has_work() const;
  // Has everything written that is idle; waits for it, for some time at most.
  void finish();

  // Removes all files, in the background.
  void drop_files() { transfers_.drop_all(); }

  DiskStats stats() const;

 private:
  // Reads some of the files that were there at the start, by the thread that reads. False: that was all.
  bool describe_files();
  static Sha256 realm_of(const std::string& salt, const std::string& adapter);
  Sha256 root_of(const Sha256& realm, int variant) const;
  const Sha256* root_of(const PrefixScope& scope);
  DiskRead::Item item_of(const Sha256& parent, const std::string& content, int index, int tokens, int group) const;
  std::shared_ptr<PrefixRead> make_read(const PrefixKey& prefix, int limit, const std::vector<int>& anchors,
                                        const Sha256& root);
  size_t bytes_of(int group) const;
  void bring_in(const BlockTransfers::Part& part);
  // Returns how many bytes were copied; 0: it need not be written, or cannot be.
  size_t send_out(const BlockCache::Content& content);
  void flush_moves();
  std::vector<int32_t> pages_of(int32_t block) const;

  BlockCache& blocks_;
  ModelRunner& runner_;
  const FileLabels* labels_ = nullptr;                     // null: no events
  std::map<Sha256, std::vector<std::string>> found_keys_;  // describe_files()'s, by what they follow
  const std::string fingerprint_;
  size_t largest_ = 0;                 // bytes of a group's block
  std::map<uint64_t, Sha256> realms_;  // digests of salts and adapters
  Sha256 root_{};
  double tokens_per_second_ = 0;  // 0: nobody knows
  size_t leaving_bytes_ = 0;      // copied since the last exchange() since they were about to be lost
  std::vector<std::weak_ptr<DiskTicket>> open_;
  BlockFiles files_;
  BlockTransfers transfers_;  // goes first
};

}  // namespace turbomind
