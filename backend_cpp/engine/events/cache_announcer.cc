#include "engine/events/cache_announcer.h"

#include <set>
#include <string_view>
#include <utility>

#include "base/digest/sha256.h"
#include "base/json.h"

namespace turbomind {

namespace {

constexpr uint64_t kFnvBasis = 14695981039346656037u;
constexpr uint64_t kFnvPrime = 1099511628211u;

void mix(uint64_t& hash, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) hash = (hash ^ (value >> 8 * i & 0xFF)) * kFnvPrime;
}

uint64_t hash_of(uint64_t parent, std::span<const int32_t> tokens, std::string_view extra_keys) {
  uint64_t hash = kFnvBasis;
  mix(hash, parent, 8);
  for (const int32_t token : tokens) mix(hash, static_cast<uint32_t>(token), 4);
  for (const char c : extra_keys) mix(hash, static_cast<unsigned char>(c), 1);
  return hash;
}

// The adapter, images with where they begin in the block, and in the first block the salt.
std::string extra_keys_of(const PrefixKey& prefix, int index, int block_len) {
  const int begin = index * block_len;
  std::vector<std::string> keys;
  if (!prefix.lora_name.empty()) keys.push_back(quoted(std::string(prefix.lora_name)));
  for (const EmbeddingRange& range : ranges_within(prefix.images, begin, begin + block_len)) {
    keys.push_back("[\"" + hex(range.digest) + "\"," + std::to_string(range.begin - begin) + "]");
  }
  if (index == 0 && !prefix.salt.empty()) keys.push_back(quoted(std::string(prefix.salt)));
  std::string list;
  for (const std::string& key : keys) list += (list.empty() ? "[" : ",") + key;
  return list.empty() ? list : list + "]";
}

size_t number_of(CacheTier tier) {
  return static_cast<size_t>(tier);
}

}  // namespace

void CacheAnnouncer::stored(uint64_t content, uint64_t parent, const PrefixKey& prefix, int index) {
  const auto tokens = std::span(prefix.tokens).subspan(static_cast<size_t>(index) * block_len_, block_len_);
  Node node;
  node.lora_name = prefix.lora_name;
  node.extra_keys = extra_keys_of(prefix, index, block_len_);
  node.can_be_found = !prefix.scope.is_cross;  // by the tokens of a prompt
  if (index > 0) {
    const auto before = nodes_.find(parent);
    node.has_parent = true;
    // After a window the blocks before may be gone: then nothing finds this one.
    node.can_be_found = before != nodes_.end() && before->second.can_be_found;
    node.parent = parent;
    if (before != nodes_.end()) node.parent_hash = before->second.hash;
  }
  node.hash = hash_of(node.parent_hash, tokens, node.extra_keys);
  Node& kept = nodes_[content] = std::move(node);
  link(content, kept);
  if (kept.can_be_found) hold(kept, tokens);
}

void CacheAnnouncer::moved(uint64_t content, std::span<const int32_t> tokens, CacheTier to) {
  Node& node = nodes_.at(content);
  if (node.can_be_found) let_go(node);
  node.tier = to;
  if (node.can_be_found) hold(node, tokens);
}

void CacheAnnouncer::removed(uint64_t content) {
  lose(content);
  const auto node = nodes_.find(content);
  unlink(node->second);
  for (uint64_t child = node->second.first_child; child != 0;) {
    Node& orphan = nodes_.at(child);
    child = std::exchange(orphan.next, 0);
    orphan.previous = 0;
    orphan.parent = 0;
  }
  nodes_.erase(node);
}

void CacheAnnouncer::cleared() {
  nodes_.clear();
  holders_.clear();
  events_.clear();
  events_.emplace_back();
}

void CacheAnnouncer::end_step(const BlockCache& cache) {
  const CacheEventSink::State state = sink_.state();
  if (state == CacheEventSink::State::kLost) events_.clear();
  if (state == CacheEventSink::State::kAsks) report_everything(cache);
  if (!events_.empty()) sink_.push(std::exchange(events_, {}));
}

void CacheAnnouncer::link(uint64_t content, Node& node) {
  const auto parent = nodes_.find(node.parent);
  if (parent == nodes_.end()) return;
  node.next = std::exchange(parent->second.first_child, content);
  if (node.next != 0) nodes_.at(node.next).previous = content;
}

void CacheAnnouncer::unlink(const Node& node) {
  if (node.next != 0) nodes_.at(node.next).previous = node.previous;
  if (node.previous != 0) {
    nodes_.at(node.previous).next = node.next;
  } else if (const auto parent = nodes_.find(node.parent); parent != nodes_.end()) {
    parent->second.first_child = node.next;
  }
}

// One more content of its hash in its tier.
void CacheAnnouncer::hold(const Node& node, std::span<const int32_t> tokens) {
  if (holders_[node.hash][number_of(node.tier)]++ == 0) report_stored(node, tokens);
}

void CacheAnnouncer::let_go(const Node& node) {
  const auto held = holders_.find(node.hash);
  if (--held->second[number_of(node.tier)] == 0) report_removed(node);
  if (held->second == Tiers{}) holders_.erase(held);
}

// A content and all that follows it is not found any more.
void CacheAnnouncer::lose(uint64_t content) {
  std::vector<uint64_t> lost = {content};
  for (size_t i = 0; i < lost.size(); ++i) {
    Node& node = nodes_.at(lost[i]);
    if (!node.can_be_found) continue;  // nor is what follows
    let_go(node);
    node.can_be_found = false;
    for (uint64_t child = node.first_child; child != 0; child = nodes_.at(child).next) lost.push_back(child);
  }
}

void CacheAnnouncer::report_stored(const Node& node, std::span<const int32_t> tokens) {
  const bool goes_on = !events_.empty() && events_.back().kind == CacheEventKind::kStored &&
                       events_.back().tier == node.tier && node.has_parent &&
                       events_.back().hashes.back() == node.parent_hash && events_.back().lora_name == node.lora_name;
  if (!goes_on) {
    CacheEvent& event = events_.emplace_back();
    event.kind = CacheEventKind::kStored;
    event.tier = node.tier;
    if (node.has_parent) event.parent = node.parent_hash;
    event.lora_name = node.lora_name;
  }
  CacheEvent& event = events_.back();
  event.hashes.push_back(node.hash);
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
  event.extra_keys.push_back(node.extra_keys);
}

void CacheAnnouncer::report_removed(const Node& node) {
  const bool goes_on =
      !events_.empty() && events_.back().kind == CacheEventKind::kRemoved && events_.back().tier == node.tier;
  if (!goes_on) {
    CacheEvent& event = events_.emplace_back();
    event.kind = CacheEventKind::kRemoved;
    event.tier = node.tier;
  }
  events_.back().hashes.push_back(node.hash);
}

void CacheAnnouncer::report_everything(const BlockCache& cache) {
  events_.clear();
  events_.emplace_back();
  std::set<std::pair<uint64_t, CacheTier>> reported;
  for (const BlockCache::Held& held : cache.contents()) {
    const Node& node = nodes_.at(held.content);
    if (node.can_be_found && reported.emplace(node.hash, node.tier).second) report_stored(node, held.tokens);
  }
}

}  // namespace turbomind
