// The KV cache's blocks: which are free and which are in use.
#pragma once

#include <cstdint>
#include <vector>

namespace turbomind {

class BlockPool {
 public:
  explicit BlockPool(int block_count);

  int block_count() const { return static_cast<int>(is_used_.size()); }
  int free_block_count() const { return static_cast<int>(free_.size()); }
  int used_block_count() const { return block_count() - free_block_count(); }

  // A free block, now in use; -1 when there is none.
  int32_t allocate();
  // Gives back blocks got from allocate() and empties the list. Throws Error(kInternal) for a block not in use.
  void release(std::vector<int32_t>& blocks);

 private:
  std::vector<int32_t> free_;   // last in, first out: what was used last is warm
  std::vector<bool> is_used_;   // [block_count]
};

}  // namespace turbomind
