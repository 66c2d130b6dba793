// What files may have of a prefix, and what of it is worth reading.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/disk/block_transfers.h"
#include "engine/schedule/prefix_key.h"
#include "engine/schedule/prefix_tree.h"
#include "model/cache_plan.h"

namespace turbomind {

class PrefixRead final : public DiskRead {
 public:
  // `plan` must outlive it.
  PrefixRead(const CachePlan& plan, const PrefixKey& prefix);

  // ---- before it is asked for ----

  struct Block {
    Item item;
    bool is_in_memory = false;
  };
  // A snapshot between two borders of blocks.
  struct Part {
    int tokens = 0;             // in front of its end
    std::vector<Block> groups;  // of those that bound hits
  };
  std::vector<Block> blocks;  // [index, group]; of groups that bound no hits, empty
  std::vector<Part> parts;    // the last one first
  double tokens_per_second = 0;
  // Notes how far memory goes. False: files could add nothing.
  bool compare_with_memory();
  // The first block that memory lacks; null: none.
  const Item* first_missing() const;

  Choice choose(const std::function<bool(const Item&)>& is_there) const override;

  // ---- the step thread's ----

  PrefixKey prefix() const { return {scope_, tokens_, images_, lora_name_, salt_}; }
  // The last of these is held by who fills it.
  std::vector<NodeId> path;
  bool is_done = false;
  bool is_broken = false;  // what comes finds no place any more

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
