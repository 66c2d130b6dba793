// A read of a prefix's blocks from disk: which blocks may exist, and which of them are worth reading.
#pragma once

#include <string>
#include <vector>

#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_tree.h"
#include "engine/disk/block_transfers.h"
#include "model/cache_plan.h"

namespace turbomind {

class PrefixRead final : public DiskRead {
 public:
  // `plan` must outlive it.
  PrefixRead(const CachePlan& plan, const PrefixKey& prefix);

  // ---- before it is queued ----

  struct Block {
    Item item;
    bool is_in_memory = false;
  };
  // A snapshot between two block boundaries.
  struct Part {
    int tokens = 0;             // of the prefix, up to the snapshot
    std::vector<Block> groups;  // that bound hits
  };
  std::vector<Block> blocks;  // [index, group]; of groups that bound no hits, empty
  std::vector<Part> parts;    // from the last to the first
  double tokens_per_second = 0;
  // Computes the hit in memory. False: files could not extend it.
  bool compare_with_memory();
  // The first block that is not in memory; null: none.
  const Item* first_missing() const;
  // Tokens of the hit in memory.
  int memory_tokens() const { return memory_tokens_; }

  Choice choose(const std::function<bool(const Item&)>& is_there) const override;

  // ---- the step thread's ----

  PrefixKey prefix() const { return {scope_, tokens_, images_, lora_name_, salt_}; }
  // The last node is retained by the disk tier.
  std::vector<NodeId> path;
  int restored_tokens = 0;  // leading tokens whose blocks are in memory now
  bool is_done = false;
  bool is_broken = false;  // further blocks cannot be attached

 private:
  struct Reach {
    int tokens = 0;
    const Part* part = nullptr;  // at its end
  };
  template <class IsThere>
  Reach reach(IsThere is_there) const;

  const CachePlan& plan_;
  const PrefixScope scope_;
  const std::vector<int32_t> tokens_;
  const std::vector<EmbeddingRange> images_;
  const std::string lora_name_;
  const std::string salt_;
  int memory_tokens_ = 0;
};

}  // namespace turbomind
