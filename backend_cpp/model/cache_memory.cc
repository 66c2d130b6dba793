#include "model/cache_memory.h"

namespace turbomind {

void CacheMemory::allocate(Operators& ops, size_t page_bytes, const CacheSize& size) {
  page_bytes_ = page_bytes;
  page_count_ = size.page_count;
  pages_ = {};  // first, so that there is room
  host_pages_ = {};
  pages_ = ops.allocate(page_bytes * static_cast<size_t>(size.page_count), MemoryUse::kCache);
  host_pages_ = ops.allocate_staging(page_bytes * static_cast<size_t>(size.host_page_count));
}

void CacheMemory::move(Operators& ops, const std::vector<PageMove>& moves) const {
  const auto is_of_host = [this](int32_t page) { return page >= page_count_; };
  const auto place = [&](int32_t page) {
    if (!is_of_host(page)) return pages_.as<std::byte>() + static_cast<size_t>(page) * page_bytes_;
    return host_pages_.as<std::byte>() + static_cast<size_t>(page - page_count_) * page_bytes_;
  };
  for (const auto [from, to] : moves) {
    if (is_of_host(to)) {
      ops.download_later(place(from), page_bytes_, place(to));
    } else if (is_of_host(from)) {
      ops.upload(place(from), page_bytes_, place(to));
    } else {
      ops.copy(place(from), page_bytes_, place(to));
    }
  }
}

}  // namespace turbomind
