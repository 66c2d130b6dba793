// The pages of a cache, on the device and in the host's memory, and what travels between them.
#pragma once

#include <vector>

#include "device/operators.h"
#include "model/cache_plan.h"

namespace turbomind {

class CacheMemory {
 public:
  void allocate(Operators& ops, size_t page_bytes, const CacheSize& size);
  // Does what was collected, one after the other.
  void move(Operators& ops, const std::vector<PageMove>& moves) const;
  // The first page of the device.
  std::byte* pages() const { return pages_.as<std::byte>(); }

 private:
  size_t page_bytes_ = 0;
  int page_count_ = 0;
  AlignedBuffer pages_;
  AlignedBuffer host_pages_;
};

}  // namespace turbomind
