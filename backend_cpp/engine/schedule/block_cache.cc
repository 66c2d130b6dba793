#include "engine/schedule/block_cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind {

BlockCache::BlockCache(const CacheSize& size, uint64_t hash_mask)
    : block_count_(size.block_count),
      block_len_(size.block_len),
      hash_mask_(hash_mask),
      blocks_(static_cast<size_t>(size.block_count + size.host_block_count)) {
  for (int32_t block = block_count_ - 1; block >= 0; --block) free_.push_back(block);
  for (auto block = static_cast<int32_t>(blocks_.size()) - 1; is_of_host(block); --block) host_free_.push_back(block);
}

int32_t BlockCache::allocate() {
  int32_t block = -1;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!idle_.empty()) {
    block = idle_.front();
    idle_.pop_front();
    blocks_[static_cast<size_t>(block)].is_idle = false;
    move_out(block);
  } else {
    return -1;
  }
  blocks_[static_cast<size_t>(block)].references = 1;
  return block;
}

void BlockCache::release(std::vector<int32_t>& blocks) {
  std::erase(blocks, kNoBlock);
  // Last block first, so that a chain loses its end before its beginning.
  std::for_each(blocks.rbegin(), blocks.rend(), [this](int32_t block) { drop(block, true); });
  blocks.clear();
}

void BlockCache::release_and_forget(std::vector<int32_t>& blocks) {
  std::erase(blocks, kNoBlock);
  std::for_each(blocks.rbegin(), blocks.rend(), [this](int32_t block) { drop(block, false); });
  blocks.clear();
}

void BlockCache::give_back(int32_t& block, bool keeps_content) {
  drop(block, keeps_content);
  block = kNoBlock;
}

void BlockCache::forget_all() {
  for (const int32_t block : idle_) {
    unpublish(block);
    blocks_[static_cast<size_t>(block)].is_idle = false;
    free_.push_back(block);
  }
  idle_.clear();
  while (!host_used_.empty()) {
    unpublish(host_used_.front());
    empty_host_block(host_used_.front());
  }
  if (observer_ != nullptr) observer_->cleared();
}

int BlockCache::match(const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks) {
  uint64_t parent = root(prefix);
  int covered = 0;
  for (int index = 0; covered + block_len_ <= limit; ++index) {
    const Content content = content_of(prefix, parent, index);
    int32_t block = find(content, key_of(content));
    if (block < 0) break;
    if (is_of_host(block)) {
      block = move_in(block);
      if (block < 0) break;
    } else {
      reference(block);
    }
    blocks.push_back(block);
    parent = blocks_[static_cast<size_t>(block)].content;
    covered += block_len_;
  }
  return covered;
}

void BlockCache::publish(const PrefixKey& prefix, int index, std::vector<int32_t>& blocks) {
  const auto at = static_cast<size_t>(index);
  const uint64_t parent = index == 0 ? root(prefix) : blocks_[static_cast<size_t>(blocks[at - 1])].content;
  if (parent == 0) throw internal_error("a block was published before the one it follows");
  Content content = content_of(prefix, parent, index);
  const uint64_t key = key_of(content);
  if (const int32_t twin = find(content, key); twin >= 0) {
    if (twin == blocks[at]) return;
    if (is_of_host(twin)) {  // computed again, since there was no place to bring it to
      hand_over(twin, blocks[at]);
      empty_host_block(twin);
      return;
    }
    reference(twin);
    drop(blocks[at], true);
    blocks[at] = twin;
    return;
  }
  Block& block = blocks_[static_cast<size_t>(blocks[at])];
  block.content = next_content_++;
  block.key = key;
  block.parent = parent;
  block.tokens.assign(content.tokens.begin(), content.tokens.end());
  block.pictures = std::move(content.pictures);
  index_.emplace(key, blocks[at]);
  if (observer_ != nullptr) observer_->stored(block.content, parent, prefix, index);
}

BlockCache::Content BlockCache::content_of(const PrefixKey& prefix, uint64_t parent, int index) const {
  const int begin = index * block_len_;
  const int end = begin + block_len_;
  Content content{
      parent, std::span(prefix.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(block_len_)), {}};
  if (prefix.pictures.empty()) return content;
  for (const EmbeddingRange& range : ranges_within(prefix.pictures, begin, end)) {
    const int first = std::max(begin, range.begin);
    content.pictures.push_back({first - begin, std::min(end, range.end()) - first, first - range.begin, range.count,
                                range.grid, range.digest});
  }
  return content;
}

uint64_t BlockCache::key_of(const Content& content) const {
  uint64_t hash = content.parent * 0x9E3779B97F4A7C15u;
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  };
  for (const int32_t token : content.tokens) mix(static_cast<uint32_t>(token));
  for (const PicturePart& part : content.pictures) {
    uint64_t digest;
    std::memcpy(&digest, part.digest.data(), sizeof(digest));
    mix(digest ^ static_cast<uint32_t>(part.first_row));
  }
  return hash & hash_mask_;
}

int32_t BlockCache::find(const Content& content, uint64_t key) const {
  const auto [first, last] = index_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const Block& block = blocks_[static_cast<size_t>(it->second)];
    if (block.parent == content.parent &&
        std::equal(block.tokens.begin(), block.tokens.end(), content.tokens.begin()) &&
        block.pictures == content.pictures) {
      return it->second;
    }
  }
  return -1;
}

void BlockCache::unpublish(int32_t id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  const auto [first, last] = index_.equal_range(block.key);
  const auto it = std::find_if(first, last, [id](const auto& entry) { return entry.second == id; });
  if (it == last) throw internal_error("a published block is missing from the index");
  index_.erase(it);
  if (observer_ != nullptr) observer_->removed(block.content);
  block.content = 0;
  block.parent = 0;
  block.tokens.clear();
  block.pictures.clear();
}

void BlockCache::hand_over(int32_t from, int32_t to) {
  Block& old = blocks_[static_cast<size_t>(from)];
  Block& block = blocks_[static_cast<size_t>(to)];
  const auto [first, last] = index_.equal_range(old.key);
  const auto it = std::find_if(first, last, [from](const auto& entry) { return entry.second == from; });
  if (it == last) throw internal_error("a published block is missing from the index");
  it->second = to;
  block.content = std::exchange(old.content, 0);
  block.key = old.key;
  block.parent = std::exchange(old.parent, 0);
  block.tokens = std::exchange(old.tokens, {});
  block.pictures = std::exchange(old.pictures, {});
  if (observer_ != nullptr) {
    observer_->moved(block.content, block.tokens, is_of_host(to) ? CacheTier::kHost : CacheTier::kDevice);
  }
}

void BlockCache::move_out(int32_t block) {
  if (host_free_.empty() && !host_used_.empty()) {
    unpublish(host_used_.front());
    empty_host_block(host_used_.front());
    ++evictions_;
  }
  if (host_free_.empty()) {
    unpublish(block);
    ++evictions_;
    return;
  }
  const int32_t to = host_free_.back();
  host_free_.pop_back();
  hand_over(block, to);
  blocks_[static_cast<size_t>(to)].place = host_used_.insert(host_used_.end(), to);
  moves_.push_back({block, to});
  ++swapped_out_;
}

int32_t BlockCache::move_in(int32_t host_block) {
  // Not in the list meanwhile: making room for it must not cost its own content.
  std::list<int32_t> own;
  own.splice(own.end(), host_used_, blocks_[static_cast<size_t>(host_block)].place);
  const int32_t block = allocate();
  host_used_.splice(host_used_.end(), own);
  if (block < 0) return -1;
  hand_over(host_block, block);
  empty_host_block(host_block);
  moves_.push_back({host_block, block});
  ++swapped_in_;
  return block;
}

void BlockCache::empty_host_block(int32_t host_block) {
  host_used_.erase(blocks_[static_cast<size_t>(host_block)].place);
  host_free_.push_back(host_block);
}

void BlockCache::reference(int32_t id) {
  Block& block = blocks_[static_cast<size_t>(id)];
  if (block.is_idle) {
    idle_.erase(block.place);
    block.is_idle = false;
  }
  ++block.references;
}

void BlockCache::drop(int32_t id, bool keeps_content) {
  if (id < 0 || is_of_host(id) || blocks_[static_cast<size_t>(id)].references == 0) {
    throw internal_error("block " + std::to_string(id) + " was released but is not in use");
  }
  Block& block = blocks_[static_cast<size_t>(id)];
  if (--block.references > 0) return;
  if (block.content != 0 && !keeps_content) unpublish(id);
  if (block.content != 0) {
    block.place = idle_.insert(idle_.end(), id);
    block.is_idle = true;
  } else {
    free_.push_back(id);
  }
}

std::vector<BlockCache::Held> BlockCache::contents() const {
  std::vector<Held> held;
  for (int32_t number = 0; const Block& block : blocks_) {
    if (block.content != 0) held.push_back({block.content, block.parent, is_of_host(number), block.tokens});
    ++number;
  }
  // A parent was published first.
  std::ranges::sort(held, {}, &Held::content);
  return held;
}

void BlockCache::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(what);
  };
  int idle = 0;
  int referenced = 0;
  int host_used = 0;
  size_t published = 0;
  for (int32_t number = 0; const Block& block : blocks_) {
    require(block.references >= 0, "negative references");
    require(!(block.is_idle && block.references > 0), "an idle block is referenced");
    require(!block.is_idle || block.content != 0, "an idle block holds nothing known");
    idle += block.is_idle;
    referenced += block.references > 0;
    published += block.content != 0;
    if (block.content != 0) {
      require(block.is_idle || block.references > 0 || is_of_host(number), "a free block is published");
      require(static_cast<int>(block.tokens.size()) == block_len_, "a published block is not full");
    }
    if (is_of_host(number)) {
      require(block.references == 0 && !block.is_idle, "a block of the host is in use");
      host_used += block.content != 0;
    }
    ++number;
  }
  require(host_used == host_used_count(), "blocks of the host and the list of those in use differ");
  require(host_used_.size() + host_free_.size() == static_cast<size_t>(host_count()), "blocks of the host are lost");
  require(idle == idle_count(), "idle blocks and the idle list differ");
  require(referenced == referenced_count(), "free, idle and referenced blocks do not add up");
  require(published == index_.size(), "published blocks and the index differ");
  for (const int32_t id : free_) {
    const Block& block = blocks_[static_cast<size_t>(id)];
    require(block.references == 0 && !block.is_idle && block.content == 0, "a free block is in use");
  }
}

}  // namespace turbomind
