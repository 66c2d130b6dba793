#include "engine/cache/block_pool.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace turbomind {

BlockPool::BlockPool(CachePlan plan, const CacheSize& size)
    : plan_(std::move(plan)),
      page_count_(size.page_count),
      blocks_(static_cast<size_t>(size.page_count + size.host_page_count)) {
  for (int32_t page = page_count_ - 1; page >= 0; --page) free_.push_back(page);
  for (auto page = static_cast<int32_t>(blocks_.size()) - 1; is_of_host(page); --page) host_free_.push_back(page);
}

int32_t BlockPool::make(int index, bool in_host) {
  std::vector<int32_t>& from = in_host ? host_free_ : free_;
  const int pages = group(index).pages;
  if (std::ssize(from) < pages) return kNoBlock;
  const int32_t block = from.back();
  at(block).group = index;
  at(block).pages.assign(from.rbegin(), from.rbegin() + pages);
  from.resize(from.size() - static_cast<size_t>(pages));
  return block;
}

void BlockPool::free(int32_t block) {
  std::vector<int32_t>& to = is_of_host(block) ? host_free_ : free_;
  std::vector<int32_t>& pages = at(block).pages;
  to.insert(to.end(), pages.rbegin(), pages.rend());
  pages.clear();
  at(block).group = -1;
}

void BlockPool::reference(int32_t block) {
  if (++at(block).references == 1) referenced_pages_ += pages_of(block);
}

bool BlockPool::drop(int32_t block) {
  if (block < 0 || !is_referenced(block)) {
    throw internal_error("block " + std::to_string(block) + " was released but is not in use");
  }
  if (--at(block).references > 0) return false;
  referenced_pages_ -= pages_of(block);
  return true;
}

void BlockPool::copy(int32_t from, int32_t to) {
  for (size_t i = 0; i < pages(from).size(); ++i) moves_.push_back({pages(from)[i], pages(to)[i]});
}

void BlockPool::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("block pool: ") + what);
  };
  std::vector<int> owners(blocks_.size());
  for (const std::vector<int32_t>* pages : {&free_, &host_free_}) {
    for (const int32_t page : *pages) {
      ++owners[static_cast<size_t>(page)];
      require(at(page).group < 0, "a free page is a block");
    }
  }
  int referenced = 0;
  for (auto number = int32_t{0}; const Block& block : blocks_) {
    const int32_t id = number++;
    require(block.references == 0 || (block.group >= 0 && !is_of_host(id)), "what is no block of the device is in use");
    if (block.group < 0) continue;
    for (const int32_t page : pages(id)) {
      ++owners[static_cast<size_t>(page)];
      require(is_of_host(page) == is_of_host(id), "a block is in both memories");
    }
    if (block.references > 0) referenced += pages_of(id);
  }
  require(std::ranges::all_of(owners, [](int count) { return count == 1; }), "a page is lost, or is used twice");
  require(referenced == referenced_pages_, "pages are referenced that nobody counts");
}

}  // namespace turbomind
