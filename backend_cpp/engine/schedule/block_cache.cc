#include "engine/schedule/block_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/schedule/prefix_hits.h"

namespace turbomind {

namespace {

// Whether a node's block of such a group is of use only with those of all nodes before it.
bool is_chain(const CacheGroup& group) {
  return group.kind == MemoryKind::kPaged || group.kind == MemoryKind::kCross;
}

// What is announced of a cache: where all tokens are kept, or, if nowhere, what a window keeps.
int group_to_observe(const CachePlan& plan) {
  const int paged = plan.group_of(MemoryKind::kPaged);
  return paged >= 0 ? paged : plan.group_of(MemoryKind::kWindow);
}

}  // namespace

BlockCache::BlockCache(CachePlan plan, const CacheSize& size, uint64_t hash_mask)
    : plan_(std::move(plan)),
      page_count_(size.page_count),
      observed_group_(group_to_observe(plan_)),
      tree_(plan_.block_len, hash_mask),
      blocks_(static_cast<size_t>(size.page_count + size.host_page_count)),
      most_snapshot_pages_(size.page_count / 4) {
  for (int32_t page = page_count_ - 1; page >= 0; --page) free_.push_back(page);
  for (auto page = static_cast<int32_t>(blocks_.size()) - 1; is_of_host(page); --page) host_free_.push_back(page);
}

// ---- blocks ----

int32_t BlockCache::allocate(int index) {
  const auto pages = static_cast<size_t>(group(index).pages);
  if (static_cast<size_t>(available_count()) < pages) return kNoBlock;
  while (free_.size() < pages) evict_one();
  const int32_t block = take_pages(free_, index);
  at(block).place = Place::kReferenced;
  at(block).references = 1;
  return block;
}

int32_t BlockCache::page(int32_t block, int index) const {
  return index == 0 ? block : at(block).more_pages[static_cast<size_t>(index) - 1];
}

void BlockCache::release(std::vector<int32_t>& blocks, Keep keep) {
  std::erase(blocks, kNoBlock);
  // Last block first, so that a chain loses its end before its beginning.
  std::for_each(blocks.rbegin(), blocks.rend(), [&](int32_t block) { drop(block, keep); });
  blocks.clear();
}

void BlockCache::give_back(int32_t& block, Keep keep) {
  drop(block, keep);
  block = kNoBlock;
}

// ---- content ----

int32_t& BlockCache::attached(NodeId node, int group) {
  const size_t groups = plan_.groups.size();
  if (attached_.size() < tree_.id_bound() * groups) attached_.resize(tree_.id_bound() * groups, kNoBlock);
  return attached_[static_cast<size_t>(node) * groups + static_cast<size_t>(group)];
}

int32_t BlockCache::stored(NodeId node, int group) const {
  const size_t place = static_cast<size_t>(node) * plan_.groups.size() + static_cast<size_t>(group);
  return place < attached_.size() ? attached_[place] : kNoBlock;
}

bool BlockCache::is_in_host(NodeId node) const {
  for (int group = 0; group < group_count(); ++group) {
    if (const int32_t block = stored(node, group); block != kNoBlock && is_of_host(block)) return true;
  }
  return false;
}

int32_t BlockCache::take(int32_t block) {
  if (!is_of_host(block)) {
    reference(block);
    return block;
  }
  // Not in the list meanwhile: making room for it must not cost its own content.
  remove(block);
  const int32_t to = allocate(at(block).group);
  if (to == kNoBlock) {
    put(block, Place::kHost);
    return kNoBlock;
  }
  hand_over(block, to);
  move_pages(block, to);
  free_pages(block);
  ++swapped_in_;
  return to;
}

int32_t BlockCache::attach(const PrefixKey& prefix, int index, NodeId node, int group, int32_t block) {
  const int32_t twin = attached(node, group);
  if (twin == block) return block;
  if (twin != kNoBlock && is_of_host(twin)) {  // computed again, since there was no place to bring it to
    hand_over(twin, block);
    remove(twin);
    free_pages(twin);
    return block;
  }
  if (twin != kNoBlock) {
    reference(twin);
    drop(block, Keep::kContent);
    return twin;
  }
  attached(node, group) = block;
  at(block).node = node;
  tree_.hold(node);
  if (observer_ != nullptr && is_observed(node, group)) {
    observer_->stored(tree_.number(node), tree_.number(tree_.parent(node)), prefix, index);
  }
  return block;
}

int BlockCache::match(const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks, int group) {
  NodeId node = tree_.find_root(prefix.scope);
  int covered = 0;
  for (int index = 0; node != kNoNode && covered + block_len() <= limit; ++index) {
    node = tree_.find(node, prefix, index);
    if (node == kNoNode || stored(node, group) == kNoBlock) break;
    const int32_t block = take(stored(node, group));
    if (block == kNoBlock) break;
    blocks.push_back(block);
    covered += block_len();
  }
  return covered;
}

void BlockCache::publish(const PrefixKey& prefix, int index, std::vector<int32_t>& blocks, int group) {
  const auto place = static_cast<size_t>(index);
  const NodeId parent = index == 0 ? tree_.get_root(prefix.scope) : at(blocks[place - 1]).node;
  if (parent == kNoNode) throw internal_error("a block was published before the one it follows");
  const NodeId node = tree_.get(parent, prefix, index);
  tree_.hold(node);
  blocks[place] = attach(prefix, index, node, group, blocks[place]);
  tree_.let_go(node);
}

// ---- snapshots ----

bool BlockCache::make_snapshot(NodeId node, int group, int32_t block, bool is_rolling) {
  if (const int32_t known = stored(node, group); known != kNoBlock) {
    if (!is_rolling) settle_snapshot(node, group);
    return true;
  }
  if (!make_room_for_snapshot(group)) return false;
  const int32_t copy = allocate(group);
  if (copy == kNoBlock) return false;
  attached(node, group) = copy;
  at(copy).node = node;
  at(copy).is_rolling = is_rolling;
  tree_.hold(node);
  move_pages(block, copy);
  at(copy).references = 0;
  put(copy, Place::kLatestSnapshot);
  if (!is_rolling) note_content(copy);
  return true;
}

bool BlockCache::make_room_for_snapshot(int index) {
  const int pages = group(index).pages;
  while (snapshot_pages_ + pages > most_snapshot_pages_) {
    const auto kinds = {Place::kPassedSnapshot, Place::kLatestSnapshot, Place::kSharedSnapshot};
    const auto* const kind = std::ranges::find_if(kinds, [this](Place place) { return !list(place).empty(); });
    if (kind == kinds.end()) return false;
    move_out(list(*kind).front());
  }
  return true;
}

void BlockCache::use_copy(int32_t stored, int32_t block) {
  move_pages(stored, block);
  Place place = at(stored).place;
  if (place == Place::kReferenced) return;
  ++at(stored).uses;
  if (is_snapshot(place)) place = at(stored).uses > 1 ? Place::kSharedSnapshot : Place::kLatestSnapshot;
  remove(stored);
  put(stored, place);
}

void BlockCache::pass_snapshots(NodeId node) {
  for (int group = 0; group < group_count(); ++group) {
    const int32_t snapshot = stored(node, group);
    if (snapshot == kNoBlock || at(snapshot).place != Place::kLatestSnapshot) continue;
    remove(snapshot);
    put(snapshot, Place::kPassedSnapshot);
  }
}

void BlockCache::forget_rolling_snapshot(NodeId node, int group) {
  const int32_t snapshot = stored(node, group);
  if (snapshot == kNoBlock) return;
  if (at(snapshot).is_rolling && at(snapshot).uses == 0 && is_snapshot(at(snapshot).place)) lose(snapshot);
}

// ---- what outlives the process ----

void BlockCache::note_content(int32_t block) {
  Block& held = at(block);
  if (!leaving_ || held.is_noted || !bounds_hits(group(held.group))) return;
  held.is_noted = true;
  noted_.push_back({held.node, tree_.number(held.node), held.group});
  // Where far more leaves than anybody takes, the oldest have gone by now.
  if (noted_.size() > 4 * blocks_.size()) noted_.erase(noted_.begin(), noted_.begin() + std::ssize(noted_) / 2);
}

BlockCache::Content BlockCache::take_content() {
  while (!noted_.empty()) {
    const auto [node, number, group] = noted_.back();
    noted_.pop_back();
    const bool is_there = static_cast<size_t>(node) < tree_.id_bound() && tree_.number(node) == number;
    const int32_t block = is_there ? stored(node, group) : kNoBlock;
    if (block == kNoBlock) continue;
    at(block).is_noted = false;
    return {node, group, block};
  }
  return {};
}

void BlockCache::touch(NodeId node, bool is_pinned) {
  std::vector<int32_t> blocks;
  add_unused(node, blocks);
  for (const int32_t block : blocks) {
    const Place place = at(block).place;
    remove(block);
    put(block, is_pinned && is_snapshot(place)             ? Place::kSharedSnapshot
               : is_pinned && place == Place::kUntilNeeded ? Place::kNeededLast
                                                           : place);
  }
}

void BlockCache::keep_content(NodeId node, int group) {
  const int32_t block = stored(node, group);
  if (block == kNoBlock || at(block).place != Place::kUntilNeeded) return;
  remove(block);
  put(block, Place::kNeededLast);
  note_content(block);
}

void BlockCache::settle_snapshot(NodeId node, int group) {
  const int32_t snapshot = stored(node, group);
  if (snapshot == kNoBlock) return;
  at(snapshot).is_rolling = false;
  note_content(snapshot);
}

int32_t BlockCache::restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group_index) {
  const bool is_snapshot_of = count < block_len() || group(group_index).kind == MemoryKind::kState;
  const NodeId node = tree_.get(parent, prefix, index, count);
  tree_.hold(node);
  int32_t block = kNoBlock;
  if (stored(node, group_index) == kNoBlock && (!is_snapshot_of || make_room_for_snapshot(group_index))) {
    block = allocate(group_index);
  }
  if (block != kNoBlock) {
    at(block).references = 0;
    if (is_snapshot_of) {
      attached(node, group_index) = block;
      at(block).node = node;
      tree_.hold(node);
      put(block, Place::kLatestSnapshot);
    } else {
      attach(prefix, index, node, group_index, block);
      put(block, Place::kNeededLast);
    }
  }
  tree_.let_go(node);
  return block;
}

// ---- what is forgotten ----

void BlockCache::forget(NodeId node) {
  std::vector<int32_t> lost;
  add_unused(node, lost);
  forget(lost);
}

void BlockCache::forget_realm(uint64_t realm) {
  std::vector<NodeId> roots;
  tree_.add_roots(realm, roots);
  std::vector<NodeId> nodes;
  for (const NodeId root : roots) tree_.add_subtree(root, nodes);
  std::vector<int32_t> lost;
  for (const NodeId node : nodes) add_unused(node, lost);
  forget(lost);
}

void BlockCache::forget_unused() {
  std::vector<int32_t> unused;
  for (const std::list<int32_t>& blocks : lists_) unused.insert(unused.end(), blocks.begin(), blocks.end());
  forget(unused);
}

void BlockCache::forget(const std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    if (is_listed(block)) lose(block);  // it may have gone with one before it
  }
}

void BlockCache::forget_all() {
  for (std::list<int32_t>& blocks : lists_) {
    while (!blocks.empty()) {
      const int32_t block = blocks.front();
      remove(block);
      unpublish(block);
      free_pages(block);
    }
  }
  if (observer_ != nullptr) observer_->cleared();
}

void BlockCache::unpublish(int32_t block) {
  Block& held = at(block);
  const NodeId node = std::exchange(held.node, kNoNode);
  attached(node, held.group) = kNoBlock;
  if (observer_ != nullptr && is_observed(node, held.group)) observer_->removed(tree_.number(node));
  tree_.let_go(node);
}

void BlockCache::lose(int32_t block) {
  std::vector<int32_t> lost = {block};
  if (is_chain(group(at(block).group)) || tree_.is_part(at(block).node)) {
    std::vector<NodeId> nodes;
    tree_.add_subtree(at(block).node, nodes);
    for (const NodeId node : nodes) add_unused(node, lost);
  }
  for (size_t i = 0; i < lost.size(); ++i) {
    if (i > 0 && lost[i] == block) continue;
    if (is_listed(lost[i])) remove(lost[i]);
    unpublish(lost[i]);
    free_pages(lost[i]);
  }
}

void BlockCache::add_unused(NodeId node, std::vector<int32_t>& blocks) const {
  for (int group = 0; group < group_count(); ++group) {
    const int32_t block = stored(node, group);
    if (block != kNoBlock && is_listed(block)) blocks.push_back(block);
  }
}

// ---- pages and lists ----

int32_t BlockCache::take_pages(std::vector<int32_t>& from, int index) {
  const auto next = [&from] {
    const int32_t page = from.back();
    from.pop_back();
    return page;
  };
  const int32_t block = next();
  Block& taken = at(block);
  taken.group = index;
  for (int i = 1; i < group(index).pages; ++i) taken.more_pages.push_back(next());
  return block;
}

void BlockCache::free_pages(int32_t block) {
  std::vector<int32_t>& to = is_of_host(block) ? host_free_ : free_;
  std::vector<int32_t>& more = at(block).more_pages;
  to.insert(to.end(), more.rbegin(), more.rend());
  more.clear();
  to.push_back(block);
  at(block).is_rolling = false;
  at(block).is_noted = false;
  at(block).uses = 0;
  at(block).place = Place::kNone;
}

void BlockCache::put(int32_t block, Place place) {
  Block& held = at(block);
  held.place = place;
  held.stamp = next_stamp_++;
  held.position = list(place).insert(list(place).end(), block);
  count(block, 1);
}

void BlockCache::remove(int32_t block) {
  Block& held = at(block);
  count(block, -1);
  list(held.place).erase(held.position);
  held.place = Place::kNone;
}

void BlockCache::count(int32_t block, int sign) {
  const Place place = at(block).place;
  if (place == Place::kHost) return;
  const int pages = sign * pages_of(block);
  idle_pages_ += pages;
  if (is_snapshot(place)) snapshot_pages_ += pages;
}

void BlockCache::reference(int32_t block) {
  if (is_listed(block)) {
    remove(block);
    at(block).place = Place::kReferenced;
  }
  ++at(block).references;
}

void BlockCache::drop(int32_t block, Keep keep) {
  if (block < 0 || is_of_host(block) || at(block).place != Place::kReferenced) {
    throw internal_error("block " + std::to_string(block) + " was released but is not in use");
  }
  Block& held = at(block);
  if (--held.references > 0) return;
  held.place = Place::kNone;
  if (held.node == kNoNode) return free_pages(block);
  if (keep == Keep::kNothing) return lose(block);
  put(block, keep == Keep::kContent ? Place::kNeededLast : Place::kUntilNeeded);
  if (keep == Keep::kContent && !tree_.is_part(held.node)) note_content(block);
}

void BlockCache::evict_one() {
  if (std::list<int32_t>& first = list(Place::kUntilNeeded); !first.empty()) {
    lose(first.front());
    ++evictions_;
    return;
  }
  int32_t oldest = kNoBlock;
  for (const Place place :
       {Place::kNeededLast, Place::kPassedSnapshot, Place::kLatestSnapshot, Place::kSharedSnapshot}) {
    if (list(place).empty()) continue;
    const int32_t block = list(place).front();
    if (oldest == kNoBlock || at(block).stamp < at(oldest).stamp) oldest = block;
  }
  if (oldest == kNoBlock) throw internal_error("pages are idle, but no block is");
  move_out(oldest);
}

void BlockCache::move_out(int32_t block) {
  remove(block);
  const int index = at(block).group;
  const auto pages = static_cast<size_t>(group(index).pages);
  while (host_free_.size() < pages && !list(Place::kHost).empty()) {
    const int32_t last = list(Place::kHost).front();
    if (at(last).is_noted) leaving_({at(last).node, at(last).group, last});
    lose(last);
    ++evictions_;
  }
  if (host_free_.size() < pages) {
    if (at(block).is_noted) leaving_({at(block).node, index, block});
    lose(block);
    ++evictions_;
    return;
  }
  const int32_t to = take_pages(host_free_, index);
  hand_over(block, to);
  move_pages(block, to);
  put(to, Place::kHost);
  free_pages(block);
  ++swapped_out_;
}

void BlockCache::move_pages(int32_t from, int32_t to) {
  for (int i = 0; i < pages_of(from); ++i) moves_.push_back({page(from, i), page(to, i)});
}

void BlockCache::hand_over(int32_t from, int32_t to) {
  const NodeId node = std::exchange(at(from).node, kNoNode);
  const int group = at(from).group;
  at(to).node = node;
  at(to).is_noted = at(from).is_noted;
  attached(node, group) = to;
  if (observer_ == nullptr || !is_observed(node, group)) return;
  observer_->moved(tree_.number(node), tree_.tokens(node), is_of_host(to) ? CacheTier::kHost : CacheTier::kDevice);
}

std::vector<BlockCache::Held> BlockCache::contents() const {
  std::vector<Held> held;
  for (auto number = int32_t{0}; const Block& block : blocks_) {
    if (block.node != kNoNode && is_observed(block.node, block.group) && !tree_.scope(block.node).is_cross) {
      const NodeId parent = tree_.parent(block.node);
      held.push_back({tree_.number(block.node), tree_.number(parent), tree_.is_root(parent), is_of_host(number),
                      tree_.tokens(block.node)});
    }
    ++number;
  }
  // A parent came first.
  std::ranges::sort(held, {}, &Held::content);
  return held;
}

void BlockCache::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("block cache: ") + what);
  };
  tree_.check_invariants();
  std::vector<int> owners(blocks_.size());
  for (const std::vector<int32_t>* pages : {&free_, &host_free_}) {
    for (const int32_t page : *pages) {
      ++owners[static_cast<size_t>(page)];
      require(at(page).place == Place::kNone, "a free page is a block");
    }
  }
  int idle = 0;
  int snapshots = 0;
  size_t listed = 0;
  for (auto number = int32_t{0}; const Block& block : blocks_) {
    const int32_t own = number++;
    require((block.place == Place::kReferenced) == (block.references > 0), "references and places differ");
    if (block.place == Place::kNone) {
      require(block.node == kNoNode, "what is free is published");
      continue;
    }
    for (int i = 0; i < pages_of(own); ++i) {
      ++owners[static_cast<size_t>(page(own, i))];
      require(is_of_host(page(own, i)) == is_of_host(own), "a block is in both memories");
    }
    if (block.node != kNoNode) require(stored(block.node, block.group) == own, "a node has another block");
    if (!is_listed(own)) continue;
    ++listed;
    require(block.node != kNoNode, "an idle block holds nothing known");
    require(is_of_host(own) == (block.place == Place::kHost), "a block of the host is in use");
    if (block.place == Place::kHost) continue;
    idle += pages_of(own);
    if (is_snapshot(block.place)) snapshots += pages_of(own);
  }
  require(std::ranges::all_of(owners, [](int count) { return count == 1; }), "a page is lost, or is used twice");
  require(idle == idle_pages_ && snapshots == snapshot_pages_, "counts and idle blocks differ");
  size_t in_lists = 0;
  for (const std::list<int32_t>& blocks : lists_) in_lists += blocks.size();
  require(in_lists == listed, "lists and idle blocks differ");
  for (size_t place = 0; place < attached_.size(); ++place) {
    const int32_t block = attached_[place];
    if (block == kNoBlock) continue;
    const auto node = static_cast<NodeId>(place / plan_.groups.size());
    require(at(block).node == node, "a block is attached to another node");
  }
}

}  // namespace turbomind
