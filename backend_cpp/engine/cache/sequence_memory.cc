#include "engine/cache/sequence_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/cache/prefix_hits.h"

namespace turbomind {

namespace {

// Whether a node has a block of each group that a prefix hit needs.
bool has_all_groups(const BlockCache& cache, NodeId node) {
  for (int group = 0; group < cache.group_count(); ++group) {
    if (bounds_hits(cache.group(group)) && cache.stored(node, group) == kNoBlock) return false;
  }
  return true;
}

}  // namespace

std::vector<int> branch_points(const std::vector<int32_t>& tokens, const TokenTable& table, int block_len) {
  std::vector<int> branch_points;
  int last_special = -kMinSpecialDistance;
  const auto end = static_cast<int>(tokens.size());
  for (int i = 0; i < end; ++i) {
    if (!table.is_special(tokens[static_cast<size_t>(i)])) continue;
    if (branch_points.empty() || i - last_special >= kMinSpecialDistance) {
      branch_points.push_back(i + 1);
    } else {
      branch_points.back() = i + 1;
    }
    last_special = i;
  }
  // The response, which the tokens at the end begin, is found by the last block.
  if (!branch_points.empty() && end - branch_points.back() < kMinSpecialDistance) branch_points.pop_back();
  // Of a long last message, a question at its end.
  if (end - (branch_points.empty() ? 0 : branch_points.back()) > 8 * block_len) {
    for (const int blocks : {4, 2, 1}) branch_points.push_back(end - blocks * block_len);
  }
  if (const auto count = static_cast<std::ptrdiff_t>(branch_points.size()); count > kMaxBranchPoints) {
    branch_points.erase(branch_points.begin() + 2, branch_points.end() - (kMaxBranchPoints - 2));
  }
  return branch_points;
}

void SequenceMemory::begin(const BlockCache& cache, int prompt_len, const std::vector<int>& branch_points) {
  groups_.resize(static_cast<size_t>(cache.group_count()));
  tables_.resize(static_cast<size_t>(cache.plan().table_count()));
  prompt_len_ = prompt_len;
  // The last token of a prompt is always computed.
  const int len = cache.block_len();
  const bool has_state = cache.plan().group_of(MemoryKind::kState) >= 0;
  for (const int branch_point : branch_points) {
    const int tokens = std::min(branch_point, prompt_len - 1);
    add_anchor(has_state ? tokens : tokens / len * len);
  }
  // A snapshot takes a step that ends there: a mark shortly before the last border stands for it.
  const int border = (prompt_len - 1) / len * len;
  const bool is_marked = has_state && !anchors_.empty() && anchors_.back() > border - len / 2;
  if (!is_marked || anchors_.back() > border) add_anchor(border);
}

void SequenceMemory::match(BlockCache& cache, const PrefixKey& prefix, int limit, int prompt_len,
                           const std::vector<int>& branch_points) {
  begin(cache, prompt_len, branch_points);
  PrefixTree& tree = cache.tree();
  const NodeId root = tree.find_root(prefix.scope);
  if (root == kNoNode) return;
  std::vector<NodeId> path = tree.path_of(prefix, limit);
  // Making pages free for what the host holds must not end what is looked for.
  const NodeId last = path.empty() ? root : path.back();
  tree.ref(last);
  const auto known = static_cast<int>(path.size());
  Found found;
  found.blocks = longest_valid(cache, path, known);
  found.tokens = found.blocks * cache.block_len();
  const Found part = find_part(cache, prefix, path, found.tokens, limit);
  bool is_taken = false;
  if (part.part != kNoNode) {
    tree.ref(part.part);
    is_taken = take(cache, path, part) == part.blocks;
    tree.unref(part.part);
    found = is_taken ? part : Found{longest_valid(cache, path, known)};
  }
  while (!is_taken && found.blocks > 0) {
    const int taken = take(cache, path, found);
    if (taken == found.blocks) break;
    found.blocks = longest_valid(cache, path, taken);
  }
  // Shortly after what was found, another snapshot is not worth a step.
  const int cached = is_taken ? part.tokens : found.blocks * cache.block_len();
  std::erase_if(anchors_, [&](int anchor) {
    return anchor % cache.block_len() != 0 && anchor > cached && anchor <= cached + cache.block_len() / 2;
  });
  // Where the cache knows more of the prompt than it can give, others will part from it too.
  fork_ = found.blocks < known ? known * cache.block_len() : 0;
  add_anchor(fork_);
  path.resize(static_cast<size_t>(found.blocks));
  path_ = std::move(path);
  if (!path_.empty()) tree.ref(path_.back());
  tree.unref(last);
  published_ = found.blocks;
  cached_ = matched_ = cached;
}

SequenceMemory::Found SequenceMemory::find_part(BlockCache& cache, const PrefixKey& prefix,
                                                const std::vector<NodeId>& path, int min_tokens, int limit) const {
  const int len = cache.block_len();
  const auto node_before = [&](int blocks) {
    return blocks > 0 ? path[static_cast<size_t>(blocks) - 1] : cache.tree().find_root(prefix.scope);
  };
  if (cache.plan().group_of(MemoryKind::kState) < 0) {
    // Of the blocks before, a window needs no more than after `min_tokens` tokens.
    const auto is_whole = [&](NodeId node) { return has_all_groups(cache, node); };
    const int blocks = min_tokens / len;
    const auto [part, shared] =
        cache.tree().find_longest(node_before(blocks), prefix, blocks, limit - min_tokens, is_whole);
    return shared < cache.snapshots().limits.min_copied ? Found{} : Found{blocks, part, min_tokens + shared};
  }
  for (auto anchor = anchors_.rbegin(); anchor != anchors_.rend() && *anchor > min_tokens; ++anchor) {
    const int blocks = *anchor / len;
    if (*anchor > limit || *anchor % len == 0 || blocks > static_cast<int>(path.size())) continue;
    const NodeId before = node_before(blocks);
    const NodeId part = cache.tree().find(before, prefix, blocks, *anchor % len);
    if (part == kNoNode || !has_all_groups(cache, part)) continue;
    const bool is_whole = has_blocks_before_part(cache.plan(), *anchor, [&](int index, int group) {
      return cache.stored(path[static_cast<size_t>(index)], group) != kNoBlock;
    });
    if (is_whole) return {blocks, part, *anchor};
  }
  return {};
}

int SequenceMemory::longest_valid(const BlockCache& cache, const std::vector<NodeId>& path, int max_blocks) {
  return longest_hit(cache.plan(), max_blocks, [&](int index, int group) {
    return cache.stored(path[static_cast<size_t>(index)], group) != kNoBlock;
  });
}

int SequenceMemory::take(BlockCache& cache, const std::vector<NodeId>& path, const Found& found) {
  const int count = found.blocks;
  int missing = count;
  const NodeId end = found.part != kNoNode ? found.part : path[static_cast<size_t>(count) - 1];
  bool is_whole = true;
  for (int index = 0; index < cache.group_count() && is_whole; ++index) {
    const MemoryKind kind = cache.group(index).kind;
    if (kind == MemoryKind::kPaged || kind == MemoryKind::kWindow) {
      missing = take_chain(cache, path, found, index);
      is_whole = missing == count && (found.part == kNoNode || take_copy(cache, index, count, found.part));
    } else if (kind == MemoryKind::kState) {
      is_whole = take_copy(cache, index, 0, end);
      if (!is_whole) missing = count - 1;
    } else if (kind == MemoryKind::kDraft) {
      published_drafts_ = 0;
      while (published_drafts_ < count && take_block(cache, path, index, published_drafts_)) ++published_drafts_;
    }
  }
  if (is_whole) {
    if (cache.plan().group_of(MemoryKind::kState) >= 0) record_snapshot(cache, end);
    return count;
  }
  release_match(cache);
  return std::min(missing, count - 1);
}

void SequenceMemory::release_match(BlockCache& cache) {
  for (GroupBlocks& group_blocks : groups_) {
    cache.release(group_blocks.blocks);
    group_blocks.first = 0;
  }
  for (std::vector<int32_t>& table : tables_) table.clear();
  published_drafts_ = 0;
}

// References the blocks of a match that a group of tokens needs. Returns as take() does.
int SequenceMemory::take_chain(BlockCache& cache, const std::vector<NodeId>& path, const Found& found, int group) {
  const int tokens = found.part != kNoNode ? found.tokens : found.blocks * cache.block_len();
  const int first = std::min(cache.group(group).first_block_seen(tokens), found.blocks);
  for (int i = 0; i < first; ++i) set_block(cache, group, i, kNoBlock);
  groups_[static_cast<size_t>(group)].first = first;
  int taken = first;
  while (taken < found.blocks && take_block(cache, path, group, taken)) ++taken;
  return taken;
}

bool SequenceMemory::take_block(BlockCache& cache, const std::vector<NodeId>& path, int group, int index) {
  const int32_t stored = cache.stored(path[static_cast<size_t>(index)], group);
  const int32_t block = stored == kNoBlock ? kNoBlock : cache.take(stored);
  if (block != kNoBlock) set_block(cache, group, index, block);
  return block != kNoBlock;
}

// Makes block `index` of a group a copy of what is stored for a node.
bool SequenceMemory::take_copy(BlockCache& cache, int group, int index, NodeId node) {
  const int32_t allocated = cache.allocate(group);
  if (allocated != kNoBlock) set_block(cache, group, index, allocated);
  // Making pages free may have cost it.
  const int32_t stored = cache.stored(node, group);
  if (allocated == kNoBlock || stored == kNoBlock) return false;
  cache.snapshots().use_copy(stored, allocated);
  return true;
}

void SequenceMemory::set_block(const BlockCache& cache, int group, int index, int32_t block) {
  const auto slot = static_cast<size_t>(index);
  const auto set = [slot](std::vector<int32_t>& list, int32_t value) {
    list.resize(std::max(list.size(), slot + 1), -1);
    list[slot] = value;
  };
  set(groups_[static_cast<size_t>(group)].blocks, block);
  const CacheGroup& of = cache.group(group);
  for (int i = 0; i < of.pages; ++i) {
    set(tables_[static_cast<size_t>(of.first_table + i)],
        block == kNoBlock ? -1 : cache.pages(block)[static_cast<size_t>(i)]);
  }
}

void SequenceMemory::add_anchor(int tokens) {
  const auto slot = std::ranges::lower_bound(anchors_, tokens);
  if (tokens > 0 && (slot == anchors_.end() || *slot != tokens)) anchors_.insert(slot, tokens);
}

bool SequenceMemory::grow(BlockCache& cache, int tokens) {
  for (int index = 0; index < cache.group_count(); ++index) {
    const CacheGroup& group = cache.group(index);
    if (group.kind == MemoryKind::kCross) continue;
    const int needed = group.kind == MemoryKind::kState ? 1 : group.blocks_for(tokens);
    for (auto count = static_cast<int>(groups_[static_cast<size_t>(index)].blocks.size()); count < needed; ++count) {
      const int32_t block = cache.allocate(index);
      if (block == kNoBlock) return false;
      set_block(cache, index, count, block);
    }
  }
  return true;
}

int SequenceMemory::capacity(const BlockCache& cache) const {
  int tokens = cache.block_len() * (1 << 20);
  for (int index = 0; index < cache.group_count(); ++index) {
    const auto count = static_cast<int>(groups_[static_cast<size_t>(index)].blocks.size());
    if (cache.group(index).follows_tokens()) tokens = std::min(tokens, count * cache.block_len());
  }
  return tokens;
}

int SequenceMemory::missing_pages(const BlockCache& cache, int tokens) const {
  int pages = 0;
  for (int index = 0; index < cache.group_count(); ++index) {
    const CacheGroup& group = cache.group(index);
    if (group.kind == MemoryKind::kCross) continue;
    int needed = group.kind == MemoryKind::kState ? 1 : group.blocks_for(tokens);
    if (group.kind == MemoryKind::kWindow) needed = std::min(needed, group.blocks_for(group.window) + 1);
    if (!groups_.empty()) {
      const GroupBlocks& group_blocks = groups_[static_cast<size_t>(index)];
      needed -= static_cast<int>(group_blocks.blocks.size()) - group_blocks.first;
    }
    pages += std::max(0, needed) * group.pages;
  }
  return pages;
}

int SequenceMemory::next_stop(const BlockCache& cache, int end) const {
  if (cache.plan().group_of(MemoryKind::kState) < 0) return end;
  const int len = cache.block_len();
  const int interval = cache.snapshots().limits.interval;
  int stop = end;
  if (interval > 0) stop = std::min(stop, (cached_ / interval + 1) * interval);
  for (const int anchor : anchors_) {
    if (anchor > cached_) return std::min(stop, anchor);
  }
  // Of a response, a snapshot is made at each border.
  return cached_ < prompt_len_ ? stop : std::min(stop, (cached_ / len + 1) * len);
}

void SequenceMemory::advance(BlockCache& cache, const PrefixKey& prefix, int count, Keep keep) {
  if (has_backup()) {
    computed_ += count;
    return;
  }
  cached_ += count;
  while ((published_ + 1) * cache.block_len() <= cached_) publish_block(cache, prefix);
  make_snapshot(cache, prefix);
  pass_windows(cache, keep);
}

NodeId SequenceMemory::next_node(BlockCache& cache, const PrefixKey& prefix, int count) const {
  const NodeId parent = path_.empty() ? cache.tree().get_root(prefix.scope) : path_.back();
  return cache.tree().get(parent, prefix, published_, count);
}

void SequenceMemory::attach(BlockCache& cache, const PrefixKey& prefix, NodeId node, int group, int index) {
  const int32_t private_block = groups_[static_cast<size_t>(group)].blocks[static_cast<size_t>(index)];
  const int32_t block = cache.attach(prefix, index, node, private_block);
  if (block != private_block) set_block(cache, group, index, block);
}

void SequenceMemory::publish_block(BlockCache& cache, const PrefixKey& prefix) {
  PrefixTree& tree = cache.tree();
  const NodeId node = next_node(cache, prefix, cache.block_len());
  tree.ref(node);
  if (!path_.empty()) tree.unref(path_.back());
  path_.push_back(node);
  for (int index = 0; index < cache.group_count(); ++index) {
    const MemoryKind kind = cache.group(index).kind;
    if (kind != MemoryKind::kPaged && kind != MemoryKind::kWindow) continue;
    attach(cache, prefix, node, index, published_);
  }
  ++published_;
}

void SequenceMemory::make_snapshot(BlockCache& cache, const PrefixKey& prefix) {
  const int group = cache.plan().group_of(MemoryKind::kState);
  if (group < 0) return;
  const bool is_anchor = std::ranges::binary_search(anchors_, cached_);
  if (published_ * cache.block_len() != cached_) {
    if (is_anchor) make_part(cache, prefix);
    return;
  }
  if (published_ == 0) return;
  const int32_t state = groups_[static_cast<size_t>(group)].blocks.front();
  const int interval = cache.snapshots().limits.interval;
  const bool is_to_stay = is_anchor || (cached_ < prompt_len_ && interval > 0 && cached_ % interval == 0);
  const bool follows_prompt = cached_ >= prompt_len_;
  if (!is_to_stay && !follows_prompt) return;
  if (!cache.snapshots().make(path_.back(), state, !is_to_stay)) return;
  record_snapshot(cache, path_.back());
  if (is_to_stay) return;
  if (rolling_ > 0) cache.snapshots().clear_rolling(path_[static_cast<size_t>(rolling_) - 1], group);
  rolling_ = published_;
}

// A snapshot between two borders of blocks.
void SequenceMemory::make_part(BlockCache& cache, const PrefixKey& prefix) {
  PrefixTree& tree = cache.tree();
  const NodeId node = next_node(cache, prefix, cached_ % cache.block_len());
  tree.ref(node);
  bool is_whole = true;
  for (int index = 0; index < cache.group_count() && is_whole; ++index) {
    const CacheGroup& group = cache.group(index);
    if (!bounds_hits(group)) continue;
    const size_t slot = group.kind == MemoryKind::kState ? 0 : static_cast<size_t>(published_);
    is_whole = cache.snapshots().make(node, groups_[static_cast<size_t>(index)].blocks[slot]);
  }
  if (is_whole) {
    record_snapshot(cache, node);
  } else {
    cache.contents().evict_node(node);
  }
  tree.unref(node);
}

void SequenceMemory::record_snapshot(BlockCache& cache, NodeId node) {
  if (node == snapshot_ || (fork_ > 0 && cached_ == fork_)) return;
  cache.tree().ref(node);
  if (snapshot_ != kNoNode) {
    cache.snapshots().pass(snapshot_);
    cache.tree().unref(snapshot_);
  }
  snapshot_ = node;
}

void SequenceMemory::pass_windows(BlockCache& cache, Keep keep) {
  for (int index = 0; index < cache.group_count(); ++index) {
    const CacheGroup& group = cache.group(index);
    if (group.kind != MemoryKind::kWindow) continue;
    GroupBlocks& group_blocks = groups_[static_cast<size_t>(index)];
    for (const int first = group.first_block_seen(cached_); group_blocks.first < first; ++group_blocks.first) {
      int32_t block = group_blocks.blocks[static_cast<size_t>(group_blocks.first)];
      const bool is_anchored = std::ranges::any_of(anchors_, [&](int anchor) {
        return group_blocks.first * group.block_len < anchor && group_blocks.first >= group.first_block_seen(anchor);
      });
      cache.release(block, keep != Keep::kContent || is_anchored ? keep : Keep::kUntilNeeded);
      set_block(cache, index, group_blocks.first, kNoBlock);
    }
  }
}

bool SequenceMemory::back_up(BlockCache& cache) {
  const int group = cache.plan().group_of(MemoryKind::kState);
  if (group < 0) return true;
  const int32_t state = groups_[static_cast<size_t>(group)].blocks.front();
  backup_ = cache.allocate(group);
  if (backup_ == kNoBlock) return false;
  cache.pool().copy(state, backup_);
  return true;
}

void SequenceMemory::roll_back(BlockCache& cache) {
  if (!has_backup()) return;
  const int group = cache.plan().group_of(MemoryKind::kState);
  int32_t state = groups_[static_cast<size_t>(group)].blocks.front();
  set_block(cache, group, 0, std::exchange(backup_, kNoBlock));
  cache.release(state, Keep::kNothing);
  computed_ = 0;
}

int SequenceMemory::drop_backup(BlockCache& cache) {
  if (has_backup()) cache.release(backup_, Keep::kNothing);
  return std::exchange(computed_, 0);
}

void SequenceMemory::publish_drafts(BlockCache& cache, const PrefixKey& prefix, int count) {
  const int group = cache.plan().group_of(MemoryKind::kDraft);
  if (group < 0 || cache.group(group).is_separate_pool) return;
  for (; published_drafts_ < published_ && (published_drafts_ + 1) * cache.block_len() <= count; ++published_drafts_) {
    attach(cache, prefix, path_[static_cast<size_t>(published_drafts_)], group, published_drafts_);
  }
}

// Who continues from here begins at its last border.
void SequenceMemory::keep_end(BlockCache& cache, const PrefixKey& prefix) {
  for (int index = 0; index < cache.group_count(); ++index) {
    const CacheGroup& group = cache.group(index);
    if (group.kind == MemoryKind::kState && rolling_ > 0) {
      cache.snapshots().commit(path_[static_cast<size_t>(rolling_) - 1], index);
    }
    if (group.kind != MemoryKind::kWindow) continue;
    for (int i = group.first_block_seen(published_ * cache.block_len()); i < published_; ++i) {
      cache.keep_content(path_[static_cast<size_t>(i)], index);
    }
  }
  const bool has_state = cache.plan().group_of(MemoryKind::kState) >= 0;
  const int in_last = cached_ % cache.block_len();
  if (!has_state && cached_ > matched_ && in_last >= cache.snapshots().limits.min_copied) publish_part(cache, prefix);
}

// The last block, which is not full.
void SequenceMemory::publish_part(BlockCache& cache, const PrefixKey& prefix) {
  PrefixTree& tree = cache.tree();
  const NodeId node = next_node(cache, prefix, cached_ % cache.block_len());
  tree.ref(node);
  for (int index = 0; index < cache.group_count(); ++index) {
    if (bounds_hits(cache.group(index))) attach(cache, prefix, node, index, published_);
  }
  tree.unref(node);
}

void SequenceMemory::release(BlockCache& cache, const PrefixKey& prefix, Keep keep) {
  drop_backup(cache);
  if (keep == Keep::kContent) keep_end(cache, prefix);
  for (size_t index = 0; index < groups_.size(); ++index) cache.release(groups_[index].blocks, keep);
  if (!path_.empty()) {
    if (keep == Keep::kNothing) {
      std::for_each(path_.rbegin(), path_.rend(), [&](NodeId node) { cache.contents().evict_node(node); });
    }
    cache.tree().unref(path_.back());
  }
  if (snapshot_ != kNoNode) cache.tree().unref(snapshot_);
  *this = {};
}

void SequenceMemory::add_blocks(std::vector<int32_t>& blocks) const {
  for (const GroupBlocks& group_blocks : groups_)
    blocks.insert(blocks.end(), group_blocks.blocks.begin() + group_blocks.first, group_blocks.blocks.end());
  if (has_backup()) blocks.push_back(backup_);
}

void SequenceMemory::check_invariants(const BlockCache& cache) const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("memory of a sequence: ") + what);
  };
  require(published_ * cache.block_len() <= cached_, "a block was published before it was full");
  require(static_cast<int>(path_.size()) == published_, "published blocks and their path differ");
  for (size_t index = 0; index < groups_.size(); ++index) {
    const CacheGroup& group = cache.plan().groups[index];
    const GroupBlocks& group_blocks = groups_[index];
    const auto count = static_cast<int>(group_blocks.blocks.size());
    require(group_blocks.first <= count, "a group gave back more blocks than it had");
    for (int i = 0; i < count; ++i) {
      require((group_blocks.blocks[static_cast<size_t>(i)] == kNoBlock) == (i < group_blocks.first),
              "a block is missing, or is left");
      for (int page = 0; page < group.pages; ++page) {
        const int32_t block = group_blocks.blocks[static_cast<size_t>(i)];
        const int32_t entry = tables_[static_cast<size_t>(group.first_table + page)].at(static_cast<size_t>(i));
        require(entry == (block == kNoBlock ? -1 : cache.pages(block)[static_cast<size_t>(page)]),
                "a table has another page");
      }
    }
    if (!group.follows_tokens() || group.kind == MemoryKind::kDraft) continue;
    require(group.blocks_for(cached_) <= count, "cached tokens have no block");
    require(group_blocks.first == std::min(group.first_block_seen(cached_), count), "a window is wider, or narrower");
  }
}

}  // namespace turbomind
