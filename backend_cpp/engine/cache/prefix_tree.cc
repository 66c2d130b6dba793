#include "engine/cache/prefix_tree.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

uint64_t seeded(uint64_t seed) {
  return (seed + 1) * 0x9E3779B97F4A7C15u;
}

void mix(uint64_t& hash, uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCDu;
  hash ^= hash >> 32;
}

}  // namespace

NodeId PrefixTree::find(NodeId parent, const PrefixKey& prefix, int index, int count) const {
  const Content content = content_of(prefix, index, count);
  return find(parent, content, key_of(key_of(parent), content));
}

NodeId PrefixTree::find_root(const PrefixScope& scope) const {
  const auto [first, last] = roots_.equal_range(scope.cache_namespace);
  const auto it = std::find_if(first, last, [&](const auto& entry) { return at(entry.second).scope == scope; });
  return it == last ? kNoNode : it->second;
}

std::vector<NodeId> PrefixTree::path_of(const PrefixKey& prefix, int limit) const {
  std::vector<NodeId> path;
  NodeId node = find_root(prefix.scope);
  for (int index = 0; node != kNoNode && (index + 1) * block_len_ <= limit; ++index) {
    node = find(node, prefix, index);
    if (node != kNoNode) path.push_back(node);
  }
  return path;
}

SharedBlock PrefixTree::find_longest(NodeId parent, const PrefixKey& prefix, int index, int count,
                                     const std::function<bool(NodeId)>& is_usable) const {
  const int begin = index * block_len_;
  int max_tokens = std::clamp(static_cast<int>(prefix.tokens.size()) - begin, 0, std::min(count, block_len_));
  const auto images = ranges_within(prefix.images, begin, begin + max_tokens);
  if (!images.empty()) max_tokens = std::max(0, images.front().begin - begin);
  const auto target = std::span(prefix.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(max_tokens));
  SharedBlock longest;
  int compared = 0;
  for (NodeId child = at(parent).first_child; child != kNoNode; child = at(child).next) {
    const Node& known = at(child);
    const auto parted = std::ranges::mismatch(target, known.tokens).in1;
    auto shared = static_cast<int>(parted - target.begin());
    if (!known.images.empty()) shared = std::min(shared, known.images.front().at);
    if (shared > longest.tokens && is_usable(child)) longest = {child, shared};
    if (longest.tokens == max_tokens || ++compared == kMaxCompared) break;
  }
  return longest;
}

PrefixParting PrefixTree::parting(const PrefixKey& prefix, int limit) const {
  PrefixParting parting;
  parting.path = path_of(prefix, limit);
  const NodeId last = parting.path.empty() ? find_root(prefix.scope) : parting.path.back();
  const auto index = static_cast<int>(parting.path.size());
  const int begin = index * block_len_;
  const int max_tokens = std::min(limit - begin, block_len_);
  parting.tokens = begin;
  if (max_tokens <= 0) return parting;
  int shared = 0;
  if (last != kNoNode) {
    const SharedBlock live = find_longest(last, prefix, index, max_tokens, [](NodeId) { return true; });
    shared = live.tokens;
    parting.goes_on = live.node == kNoNode ? at(last).first_child != kNoNode
                                           : static_cast<size_t>(shared) < at(live.node).tokens.size();
  }
  const uint64_t parent_key = last == kNoNode ? key_of(prefix.scope) : key_of(last);
  shared = part_from_deleted(prefix.scope, parent_key, content_of(prefix, index, max_tokens), shared, parting);
  if (!parting.deleted) parting.tokens += shared;
  return parting;
}

// How many of a block's tokens deleted nodes share, if more than the `shared` of those that exist.
int PrefixTree::part_from_deleted(const PrefixScope& scope, uint64_t parent_key, const Content& next, int shared,
                                  PrefixParting& parting) const {
  const uint64_t key = key_of(parent_key, next);
  const auto max_tokens = static_cast<int>(next.tokens.size());
  const int before_images = next.images.empty() ? max_tokens : next.images.front().at;
  for (const Deleted& deleted : deleted_) {
    if (deleted.parent_key != parent_key || !(deleted.scope == scope)) continue;
    const auto end = std::ranges::mismatch(next.tokens, deleted.tokens).in1;
    auto same = static_cast<int>(end - next.tokens.begin());
    if (deleted.key != key) same = std::min({same, before_images, deleted.before_images});
    const bool is_whole = same == std::min<int>(max_tokens, static_cast<int>(deleted.tokens.size()));
    const bool is_later = is_whole && parting.deleted && deleted.time > *parting.deleted;
    if (same < shared || (same == shared && !is_later)) continue;
    shared = same;
    parting.goes_on = !is_whole;
    parting.deleted = is_whole ? std::make_optional(deleted.time) : std::nullopt;
  }
  return shared;
}

NodeId PrefixTree::get(NodeId parent, const PrefixKey& prefix, int index, int count) {
  Content content = content_of(prefix, index, count);
  const uint64_t key = key_of(key_of(parent), content);
  if (const NodeId known = find(parent, content, key); known != kNoNode) return known;
  const NodeId node = make(index_, key);
  Node& made = at(node);
  made.parent = parent;
  made.scope = at(parent).scope;
  made.depth = is_root(parent) ? 0 : at(parent).depth + 1;
  made.tokens.assign(content.tokens.begin(), content.tokens.end());
  made.images = std::move(content.images);
  made.next = std::exchange(at(parent).first_child, node);
  if (made.next != kNoNode) at(made.next).previous = node;
  ref(parent);
  return node;
}

NodeId PrefixTree::get_root(const PrefixScope& scope) {
  if (const NodeId known = find_root(scope); known != kNoNode) return known;
  const NodeId node = make(roots_, scope.cache_namespace);
  at(node).scope = scope;
  return node;
}

void PrefixTree::unref(NodeId node) {
  while (node != kNoNode) {
    Node& ending = at(node);
    if (ending.uses == 0) throw internal_error("a prefix was let go that nobody holds");
    if (--ending.uses > 0) return;
    const NodeId parent = ending.parent;
    if (ending.next != kNoNode) at(ending.next).previous = ending.previous;
    if (ending.previous != kNoNode) {
      at(ending.previous).next = ending.next;
    } else if (parent != kNoNode) {
      at(parent).first_child = ending.next;
    }
    erase(parent == kNoNode ? roots_ : index_, ending.key, node);
    if (parent != kNoNode) remember(ending);
    ending = {};
    unused_.push_back(node);
    node = parent;
  }
}

void PrefixTree::remember(Node& ending) {
  if (deleted_.size() < kMaxDeleted) deleted_.emplace_back();
  const int before_images = ending.images.empty() ? block_len_ : ending.images.front().at;
  deleted_[next_deleted_] = {ending.scope,  key_of(ending.parent),           ending.key, std::move(ending.tokens),
                             before_images, std::chrono::steady_clock::now()};
  next_deleted_ = (next_deleted_ + 1) % kMaxDeleted;
}

std::vector<NodeId> PrefixTree::subtrees(std::vector<NodeId> nodes) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (NodeId child = at(nodes[i]).first_child; child != kNoNode; child = at(child).next) nodes.push_back(child);
  }
  return nodes;
}

std::vector<NodeId> PrefixTree::of_namespace(uint64_t cache_namespace) const {
  std::vector<NodeId> nodes;
  const auto [first, last] = roots_.equal_range(cache_namespace);
  for (auto it = first; it != last; ++it) nodes.push_back(it->second);
  return subtrees(std::move(nodes));
}

PrefixTree::Content PrefixTree::content_of(const PrefixKey& prefix, int index, int count) const {
  if (count == kWhole) count = block_len_;
  const int begin = index * block_len_;
  const int end = begin + count;
  Content content{std::span(prefix.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), {}};
  if (prefix.images.empty()) return content;
  for (const EmbeddingRange& range : ranges_within(prefix.images, begin, end)) {
    const int first = std::max(begin, range.begin);
    content.images.push_back({first - begin, std::min(end, range.end()) - first, first - range.begin, range.count,
                              range.grid, range.digest});
  }
  return content;
}

std::string PrefixTree::bytes_of(const Content& content) {
  std::string bytes;
  const auto add = [&bytes](const auto& value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  add(static_cast<uint32_t>(content.tokens.size()));
  for (const int32_t token : content.tokens) add(token);
  for (const ImagePart& part : content.images) {
    for (const int value : {part.at, part.count, part.first_token, part.rows}) add(value);
    for (const int value : {part.grid.frames, part.grid.rows, part.grid.columns}) add(value);
    add(part.grid.frame_step);
    add(part.digest);
  }
  return bytes;
}

Sha256 digest_after(const Sha256& parent, const std::string& content) {
  return sha256(std::string(as_bytes(parent)) + content);
}

const Sha256& PrefixTree::digest(NodeId node, const Sha256& root) {
  std::vector<NodeId> path;
  for (NodeId next = node; !is_root(next) && !at(next).digest; next = parent(next)) path.push_back(next);
  for (auto next = path.rbegin(); next != path.rend(); ++next) {
    const NodeId before = parent(*next);
    at(*next).digest = digest_after(is_root(before) ? root : *at(before).digest, content_bytes(*next));
  }
  return is_root(node) ? root : *at(node).digest;
}

uint64_t PrefixTree::key_of(const PrefixScope& scope) {
  uint64_t hash = seeded(scope.cache_namespace);
  mix(hash, static_cast<uint64_t>(scope.variant) << 1 | (scope.is_cross ? 1 : 0));
  return hash;
}

uint64_t PrefixTree::key_of(uint64_t parent_key, const Content& content) const {
  uint64_t hash = seeded(parent_key);
  for (const int32_t token : content.tokens) mix(hash, static_cast<uint32_t>(token));
  for (const ImagePart& part : content.images) {
    uint64_t digest;
    std::memcpy(&digest, part.digest.data(), sizeof(digest));
    mix(hash, digest ^ static_cast<uint32_t>(part.first_token));
  }
  return hash & hash_mask_;
}

NodeId PrefixTree::find(NodeId parent, const Content& content, uint64_t key) const {
  const auto [first, last] = index_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const Node& node = at(it->second);
    if (node.parent == parent && std::ranges::equal(node.tokens, content.tokens) && node.images == content.images) {
      return it->second;
    }
  }
  return kNoNode;
}

NodeId PrefixTree::make(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<NodeId>(nodes_.size()));
    nodes_.emplace_back();
  }
  const NodeId node = unused_.back();
  unused_.pop_back();
  at(node).number = next_number_++;
  at(node).key = key;
  index.emplace(key, node);
  return node;
}

void PrefixTree::erase(std::unordered_multimap<uint64_t, NodeId>& index, uint64_t key, NodeId node) {
  const auto [first, last] = index.equal_range(key);
  const auto it = std::find_if(first, last, [node](const auto& entry) { return entry.second == node; });
  if (it == last) throw internal_error("a prefix is missing from the index");
  index.erase(it);
}

void PrefixTree::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("prefix tree: ") + what);
  };
  size_t known = 0;
  for (size_t id = 0; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (node.number == 0) continue;
    ++known;
    require(node.uses > 0, "a node lives that nobody holds");
    require((node.parent == kNoNode) == node.tokens.empty(), "a node has no tokens, or a root has some");
    require(node.parent == kNoNode || at(node.parent).number < node.number, "a node is older than its parent");
    require(!is_part(static_cast<NodeId>(id)) || node.first_child == kNoNode, "something follows part of a block");
    int children = 0;
    for (NodeId child = node.first_child; child != kNoNode; child = at(child).next) {
      require(at(child).parent == static_cast<NodeId>(id), "a child has another parent");
      ++children;
    }
    require(node.uses >= children, "a node does not count its children");
  }
  require(known == node_count() && known == index_.size() + roots_.size(), "nodes and the index differ");
}

}  // namespace turbomind
