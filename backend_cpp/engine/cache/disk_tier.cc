#include "engine/cache/disk_tier.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "engine/cache/block_pool.h"
#include "engine/cache/prefix_hits.h"

namespace turbomind {

namespace {

// Copied between two steps: a few milliseconds, and less while others wait for the next.
constexpr size_t kIdleBytes = size_t{16} << 20;
constexpr size_t kBusyBytes = size_t{4} << 20;
constexpr int kBusyLookups = 64;
constexpr size_t kMaxNamespaces = 8192;
constexpr int kMeasuredTokens = 32;  // steps of fewer tell little of how fast prompts are computed
constexpr double kNewShare = 0.2;    // of a step in that estimate
constexpr auto kLastWrites = std::chrono::seconds(10);
constexpr uint64_t kFewestBlocks = 16;
constexpr size_t kKeysAtOnce = 32;

uint64_t checked_bytes(const DiskTierConfig& config, const CachePlan& plan, size_t page_bytes) {
  uint64_t largest = 0;
  for (const CacheGroup& group : plan.groups) {
    if (bounds_hits(group)) largest = std::max<uint64_t>(largest, static_cast<uint64_t>(group.pages) * page_bytes);
  }
  if (largest == 0) throw invalid_argument("cache_dir: this model, or what runs it, has no cache that files can keep");
  if (config.bytes >= kFewestBlocks * largest) return config.bytes;
  throw invalid_argument("cache_dir_bytes must be at least " + std::to_string(kFewestBlocks * largest) +
                         ", 16 blocks of this model's cache, got " + std::to_string(config.bytes));
}

}  // namespace

DiskTier::DiskTier(const DiskTierConfig& config, CacheSource& cache, ModelRunner& runner, std::function<void()> wake)
    : cache_(cache),
      plan_(cache.plan()),
      runner_(runner),
      fingerprint_(config.fingerprint),
      files_(config.directory, checked_bytes(config, plan_, runner.kept_page_bytes())),
      transfers_(files_, config.poll_interval, std::move(wake)) {
  for (const CacheGroup& group : plan_.groups) largest_ = std::max(largest_, bytes_of(group));
  cache_.observe(*this);
}

// ---- keys ----

void DiskTier::record_namespace(uint64_t cache_namespace, const std::string& salt, const std::string& adapter) {
  if (namespaces_.contains(cache_namespace)) return;
  if (namespaces_.size() == kMaxNamespaces)
    namespaces_.erase(namespaces_.upper_bound(0));  // what is left of it is not written
  namespaces_.emplace(cache_namespace, namespace_of(salt, adapter));
}

Sha256 DiskTier::namespace_of(const std::string& salt, const std::string& adapter) {
  // Of two lengths, so that no salt is another's with an adapter.
  std::string names(as_bytes(sha256(salt)));
  if (!adapter.empty()) names += as_bytes(sha256(adapter));
  return sha256(names);
}

Sha256 DiskTier::root_of(const Sha256& cache_namespace, int variant) const {
  return sha256(fingerprint_ + std::string(as_bytes(cache_namespace)) + std::to_string(variant));
}

std::optional<Sha256> DiskTier::root_of(const PrefixScope& scope) const {
  const auto cache_namespace = namespaces_.find(scope.cache_namespace);
  if (cache_namespace == namespaces_.end() || scope.is_cross) return std::nullopt;
  return root_of(cache_namespace->second, scope.variant);
}

DiskRead::Item DiskTier::item_of(const Sha256& parent, const std::string& content, int index, int tokens,
                                 int group) const {
  return {index, group, tokens, bytes_of(plan_.groups[static_cast<size_t>(group)]),
          BlockKey(std::string(as_bytes(parent)) + content + static_cast<char>(group))};
}

// ---- reading ----

bool DiskTier::waits_for_load(const PrefixKey& prefix, int limit, const std::vector<int>& anchors, DiskLookup& lookup) {
  if (lookup.is_finished) return false;
  if (lookup.read) {
    const PrefixRead& read = *lookup.read;
    if (!read.is_done) return true;
    if (read.restored_tokens > read.memory_tokens()) {
      if (lookup.read_end == 0) lookup.read_begin = read.memory_tokens();
      lookup.read_end = read.restored_tokens;
    }
    lookup.read.reset();
    lookup.is_finished = std::exchange(lookup.is_owner, false);
    if (lookup.is_finished) return false;
  }
  const std::optional<Sha256> root = root_of(prefix.scope);
  const auto read = root ? make_read(prefix, limit, anchors, *root) : nullptr;
  if (!read) {
    lookup.is_finished = true;
    return false;
  }
  std::erase_if(open_, [](const auto& entry) {
    const auto open = entry.lock();
    return !open || open->is_done;
  });
  for (const std::weak_ptr<const PrefixRead>& entry : open_) {
    const auto open = entry.lock();
    if (!open || open->first_missing()->key.name != read->first_missing()->key.name) continue;
    lookup.read = open;
    return true;
  }
  lookup.read = {read.get(), [read](const PrefixRead*) { read->is_requested = false; }};
  lookup.is_owner = true;
  open_.push_back(lookup.read);
  transfers_.request(read);
  return true;
}

// Null where files could add nothing to what memory has.
std::shared_ptr<PrefixRead> DiskTier::make_read(const PrefixKey& prefix, int limit, const std::vector<int>& anchors,
                                                const Sha256& root) {
  const int len = plan_.block_len;
  PrefixTree& tree = cache_.tree();
  const auto read = std::make_shared<PrefixRead>(plan_, prefix);
  read->tokens_per_second = tokens_per_second_;
  std::vector<Sha256> digests = {root};                       // in front of each border
  std::vector<NodeId> path = {tree.find_root(prefix.scope)};  // as far as it is known
  std::shared_ptr<const FileLabel> label;
  for (int index = 0; index < limit / len; ++index) {
    const NodeId node = path.back() == kNoNode ? kNoNode : tree.find(path.back(), prefix, index);
    const std::string content = tree.content_bytes(prefix, index, len);
    if (labels_ != nullptr) label = labels_->label_after(label.get(), prefix);
    for (int group = 0; group < std::ssize(plan_.groups); ++group) {
      PrefixRead::Block& block = read->blocks.emplace_back();
      if (!bounds_hits(plan_.groups[static_cast<size_t>(group)])) continue;
      block.is_in_memory = node != kNoNode && cache_.stored(node, group) != kNoBlock;
      block.item = item_of(digests.back(), content, index, len, group);
      if (group == observed_group(plan_)) block.item.key.label = label;
    }
    path.push_back(node);
    digests.push_back(digest_after(digests.back(), content));
  }
  if (plan_.group_of(MemoryKind::kState) >= 0) add_parts(prefix, limit, anchors, digests, path, *read);
  if (!read->compare_with_memory()) return nullptr;
  // Blocks of it in memory must not make room for the rest.
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    if (*node != kNoNode) cache_.touch(*node);
  }
  return read;
}

// Adds the snapshots at anchors within blocks, given the nodes of whole blocks and the digests in front of each.
void DiskTier::add_parts(const PrefixKey& prefix, int limit, const std::vector<int>& anchors,
                         const std::vector<Sha256>& digests, const std::vector<NodeId>& path, PrefixRead& read) const {
  const int len = plan_.block_len;
  const PrefixTree& tree = cache_.tree();
  for (auto anchor = anchors.rbegin(); anchor != anchors.rend(); ++anchor) {
    const int index = *anchor / len;
    const int count = *anchor % len;
    if (count == 0 || *anchor > limit) continue;
    const NodeId before = path[static_cast<size_t>(index)];
    const NodeId node = before == kNoNode ? kNoNode : tree.find(before, prefix, index, count);
    const std::string content = tree.content_bytes(prefix, index, count);
    PrefixRead::Part& part = read.parts.emplace_back();
    part.tokens = *anchor;
    for (int group = 0; group < std::ssize(plan_.groups); ++group) {
      if (!bounds_hits(plan_.groups[static_cast<size_t>(group)])) continue;
      part.groups.push_back({item_of(digests[static_cast<size_t>(index)], content, index, count, group),
                             node != kNoNode && cache_.stored(node, group) != kNoBlock});
    }
  }
}

void DiskTier::record_step(int tokens, double seconds) {
  if (tokens < kMeasuredTokens || seconds <= 0) return;
  const double rate = tokens / seconds;
  tokens_per_second_ = tokens_per_second_ == 0 ? rate : (1 - kNewShare) * tokens_per_second_ + kNewShare * rate;
}

void DiskTier::load_part(const BlockTransfers::Part& part) {
  // Only this thread changes a read.
  auto& read = const_cast<PrefixRead&>(static_cast<const PrefixRead&>(*part.read));
  PrefixTree& tree = cache_.tree();
  if (part.item == nullptr) {
    read.is_done = true;
    if (!read.path.empty()) tree.unref(read.path.back());
    read.path.clear();
    return;
  }
  if (!read.is_requested || read.is_broken) return;
  const DiskRead::Item& item = *part.item;
  const PrefixKey prefix = read.prefix();
  const auto move_on = [&](NodeId node) {
    tree.ref(node);
    if (!read.path.empty()) tree.unref(read.path.back());
    read.path.push_back(node);
  };
  if (read.path.empty()) move_on(tree.get_root(prefix.scope));
  while (static_cast<int>(read.path.size()) <= item.index) {
    move_on(tree.get(read.path.back(), prefix, static_cast<int>(read.path.size()) - 1));
  }
  const NodeId parent = read.path[static_cast<size_t>(item.index)];
  if (cache_.stored(parent, item.group) == kNoBlock && item.index > 0) {
    // In front of it something is missing that a chain needs; of other groups, that may be.
    if (plan_.groups[static_cast<size_t>(item.group)].kind == MemoryKind::kPaged) read.is_broken = true;
    if (read.is_broken) return;
  }
  const int32_t block = cache_.restore(prefix, item.index, item.tokens, parent, item.group);
  if (block == kNoBlock) return;
  read.restored_tokens = std::max(read.restored_tokens, item.index * plan_.block_len + item.tokens);
  flush_moves();
  runner_.write_pages(cache_.pages(block), part.content.data());
}

// ---- writing ----

void DiskTier::idle(NodeId node, int group) {
  const uint64_t number = cache_.tree().number(node);
  if (!is_queued_.emplace(number, group).second) return;
  queue_.push_back({node, number, group});
  // Where far more leaves than anybody takes, the oldest have gone by now.
  const size_t max_entries = 4 * cache_.tree().id_bound() * plan_.groups.size();
  if (queue_.size() <= max_entries) return;
  const auto kept = queue_.begin() + std::ssize(queue_) / 2;
  std::for_each(queue_.begin(), kept, [this](const Queued& old) { is_queued_.erase({old.number, old.group}); });
  queue_.erase(queue_.begin(), kept);
}

void DiskTier::leaving(NodeId node, int group) {
  if (!is_queued_.contains({cache_.tree().number(node), group})) return;
  if (leaving_bytes_ < kIdleBytes && transfers_.has_room(largest_)) leaving_bytes_ += send_out(node, group);
}

size_t DiskTier::send_next() {
  while (!queue_.empty()) {
    const auto [node, number, group] = queue_.back();
    queue_.pop_back();
    is_queued_.erase({number, group});
    const PrefixTree& tree = cache_.tree();
    const bool is_there = static_cast<size_t>(node) < tree.id_bound() && tree.number(node) == number;
    if (is_there && cache_.stored(node, group) != kNoBlock) return send_out(node, group);
  }
  return 0;
}

size_t DiskTier::send_out(NodeId node, int group) {
  PrefixTree& tree = cache_.tree();
  const std::optional<Sha256> root = root_of(tree.scope(node));
  if (!root) return 0;
  const int depth = tree.depth(node);
  const Sha256 parent = tree.digest(tree.parent(node), *root);
  DiskRead::Item item =
      item_of(parent, tree.content_bytes(node), depth, static_cast<int>(tree.tokens(node).size()), group);
  if (labels_ != nullptr && group == observed_group(plan_) && !tree.is_part(node)) {
    item.key.label = labels_->label(tree.number(node), tree.tokens(node), depth);
  }
  if (files_.knows(item.key, depth)) return 0;
  flush_moves();
  std::vector<std::byte> bytes(item.bytes);
  runner_.read_pages(cache_.pages(cache_.stored(node, group)), bytes.data());
  transfers_.write(std::move(item.key), std::move(bytes), depth);
  return item.bytes;
}

// Moves that are due before the next step happen now, so that pages hold what their blocks say.
void DiskTier::flush_moves() {
  if (const std::vector<PageMove> moves = cache_.take_moves(); !moves.empty()) runner_.move_pages(moves);
}

// ---- events ----

void DiskTier::label_with(const CacheAnnouncer& labels) {
  labels_ = &labels;
  transfers_.when_idle([this] { return describe_files(); });
}

bool DiskTier::describe_files() {
  const auto block_len = static_cast<size_t>(plan_.block_len);
  const size_t digest_bytes = Sha256().size();
  const size_t token_begin = digest_bytes + sizeof(uint32_t);
  const size_t key_bytes = token_begin + block_len * sizeof(int32_t) + 1;  // of a full block without images
  const std::vector<std::string> keys = files_.next_keys(kKeysAtOnce);
  for (const std::string& key : keys) {
    if (key.size() != key_bytes || key.back() != static_cast<char>(observed_group(plan_))) continue;
    Sha256 parent;
    std::memcpy(parent.data(), key.data(), parent.size());
    found_keys_[parent].push_back(key);
  }
  if (!keys.empty()) return true;
  struct End {
    Sha256 digest;
    std::shared_ptr<const FileLabel> label;
  };
  std::vector<End> ends = {{root_of(namespace_of("", ""), runner_.cache_variant(1)), nullptr}};
  while (!ends.empty()) {
    const End end = std::move(ends.back());
    ends.pop_back();
    for (const std::string& key : found_keys_[end.digest]) {
      std::vector<int32_t> tokens(block_len);
      std::memcpy(tokens.data(), key.data() + token_begin, block_len * sizeof(int32_t));
      BlockKey block(key);
      block.label = labels_->label_after(end.label.get(), tokens);
      files_.describe(block);
      const std::string content = key.substr(digest_bytes, key_bytes - digest_bytes - 1);
      ends.push_back({digest_after(end.digest, content), block.label});
    }
  }
  found_keys_.clear();
  return false;
}

// ---- both ----

void DiskTier::exchange(bool is_busy) {
  leaving_bytes_ = 0;
  const size_t max_bytes = is_busy ? kBusyBytes : kIdleBytes;
  size_t bytes = 0;
  while (bytes < max_bytes) {
    const auto part = transfers_.take_read();
    if (!part) break;
    bytes += part->content.size();
    load_part(*part);
  }
  for (int tries = 0; bytes < max_bytes && transfers_.has_room(largest_) && (!is_busy || tries < kBusyLookups);
       ++tries) {
    if (queue_.empty()) break;
    bytes += send_next();
  }
}

bool DiskTier::has_work() const {
  return transfers_.has_read() || (!queue_.empty() && transfers_.has_room(largest_));
}

void DiskTier::finish() {
  const auto until = std::chrono::steady_clock::now() + kLastWrites;
  while (std::chrono::steady_clock::now() < until) {
    exchange(false);
    if (queue_.empty() && !transfers_.has_read() && transfers_.is_written()) break;
    if (!has_work()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace turbomind
