#include "engine/block_pool.h"

#include <string>

#include "base/error.h"

namespace turbomind {

BlockPool::BlockPool(int block_count) : is_used_(static_cast<size_t>(block_count)) {
  for (int32_t block = block_count - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::allocate() {
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  is_used_[static_cast<size_t>(block)] = true;
  return block;
}

void BlockPool::release(std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    if (block < 0 || block >= block_count() || !is_used_[static_cast<size_t>(block)]) {
      throw internal_error("block " + std::to_string(block) + " was released but is not in use");
    }
    is_used_[static_cast<size_t>(block)] = false;
    free_.push_back(block);
  }
  blocks.clear();
}

}  // namespace turbomind
