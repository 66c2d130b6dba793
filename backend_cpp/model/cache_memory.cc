#include "model/cache_memory.h"

#include <sys/mman.h>

#include <cstring>

namespace turbomind {

void CacheMemory::allocate(Operators& ops, size_t page_bytes, const CacheSize& size) {
  page_bytes_ = page_bytes;
  page_count_ = size.page_count;
  pages_ = {};  // first, so that there is room
  host_pages_ = {};
  pages_ = ops.allocate(page_bytes * static_cast<size_t>(size.page_count), MemoryUse::kCache);
  host_pages_ = ops.allocate_staging(page_bytes * static_cast<size_t>(size.host_page_count));
}

std::byte* CacheMemory::address_of(int32_t page) const {
  if (!is_of_host(page)) return pages_.as<std::byte>() + static_cast<size_t>(page) * page_bytes_;
  return host_pages_.as<std::byte>() + static_cast<size_t>(page - page_count_) * page_bytes_;
}

void CacheMemory::move(Operators& ops, const std::vector<PageMove>& moves) const {
  for (const auto [from, to] : moves) {
    if (is_of_host(to)) {
      ops.download_later(address_of(from), page_bytes_, address_of(to));
    } else if (is_of_host(from)) {
      ops.upload(address_of(from), page_bytes_, address_of(to));
    } else {
      ops.copy(address_of(from), page_bytes_, address_of(to));
    }
  }
}

void CacheMemory::read(Operators& ops, std::span<const int32_t> pages, std::byte* to) const {
  for (const int32_t page : pages) {
    if (is_of_host(page)) {
      ops.wait();  // it may have been asked for later
      std::memcpy(to, address_of(page), page_bytes_);
    } else {
      ops.download(address_of(page), page_bytes_, to);
    }
    to += page_bytes_;
  }
}

void CacheMemory::release(const Operators& ops) const {
  if (ops.shares_host_memory() && pages_.size() > 0) ::madvise(pages_.as<void>(), pages_.size(), MADV_DONTNEED);
}

void CacheMemory::write(Operators& ops, std::span<const int32_t> pages, const std::byte* from) const {
  for (const int32_t page : pages) {
    ops.upload(from, page_bytes_, address_of(page));
    from += page_bytes_;
  }
}

}  // namespace turbomind
