// The pages of a cache, on the device and in the host's memory, and what travels between them.
#pragma once

#include <span>
#include <vector>

#include "device/operators.h"
#include "model/cache_plan.h"

namespace turbomind {

class CacheMemory {
 public:
  void allocate(Operators& ops, size_t page_bytes, const CacheSize& size);
  // Does what was collected, one after the other.
  void move(Operators& ops, const std::vector<PageMove>& moves) const;
  // Copies what pages hold to the host's memory, or from there, one after the other.
  void read(Operators& ops, std::span<const int32_t> pages, std::byte* to) const;
  void write(Operators& ops, std::span<const int32_t> pages, const std::byte* from) const;
  size_t page_bytes() const { return page_bytes_; }
  // The first page of the device.
  std::byte* pages() const { return pages_.as<std::byte>(); }

 private:
  bool is_of_host(int32_t page) const { return page >= page_count_; }
  std::byte* place(int32_t page) const;

  size_t page_bytes_ = 0;
  int page_count_ = 0;
  AlignedBuffer pages_;
  AlignedBuffer host_pages_;
};

}  // namespace turbomind
