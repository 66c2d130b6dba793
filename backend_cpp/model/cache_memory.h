// Cache pages on the device and in host memory, and copies between them.
#pragma once

#include <span>
#include <vector>

#include "device/operators.h"
#include "kernels/paged_attention.h"
#include "model/model_runner.h"

namespace turbomind {

// That of one layer's keys and values, in blocks, or in pages of several layers.
inline CacheLayout with_layout(CacheLayout layout, int block_len, int layers = 1, size_t page_bytes = 0) {
  layout.block_len = block_len;
  layout.num_layers = layers;
  layout.page_bytes = page_bytes;
  return layout;
}

// Cache of the layers of one kind: a part of the arena.
class LayerMemory {
 public:
  virtual ~LayerMemory() = default;
  virtual std::vector<CacheGroup> cache_groups(const StepLimits& limits) const = 0;
  // From now on it is in these pages. Its groups begin with number `first_group` of the plan's; returns their count.
  virtual size_t use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) = 0;
  // Prepares where the memory of the step's sequences is, and what else its layers share.
  virtual void begin_step(Operators& ops, const StepInput& input) = 0;
};

class CacheMemory {
 public:
  void allocate(Operators& ops, size_t page_bytes, const CacheSize& size);
  // Does what was collected, one after the other.
  void move(Operators& ops, const std::vector<PageMove>& moves) const;
  // Copies what pages hold to the host's memory, or from there, one after the other.
  void read(Operators& ops, std::span<const int32_t> pages, std::byte* to) const;
  void write(Operators& ops, std::span<const int32_t> pages, const std::byte* from) const;
  // Returns the device's pages to the system, where its memory is the host's.
  void release(const Operators& ops) const;
  size_t page_bytes() const { return page_bytes_; }
  // The first page of the device.
  std::byte* pages() const { return pages_.as<std::byte>(); }

 private:
  bool is_of_host(int32_t page) const { return page >= page_count_; }
  std::byte* address_of(int32_t page) const;

  size_t page_bytes_ = 0;
  int page_count_ = 0;
  AlignedBuffer pages_;
  AlignedBuffer host_pages_;
};

}  // namespace turbomind
