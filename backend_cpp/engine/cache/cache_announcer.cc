#include "engine/cache/cache_announcer.h"

#include <algorithm>
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

std::shared_ptr<const FileLabel> make_label(const FileLabel* before, std::span<const int32_t> tokens,
                                            std::string_view lora_name, std::string extra_keys) {
  FileLabel label;
  if (before != nullptr) {
    label.index = before->index + 1;
    label.parent = before->hash;
  }
  label.tokens.assign(tokens.begin(), tokens.end());
  label.lora_name = lora_name;
  label.extra_keys = std::move(extra_keys);
  label.hash = hash_of(label.parent.value_or(0), tokens, label.extra_keys);
  return std::make_shared<const FileLabel>(std::move(label));
}

}  // namespace

void CacheAnnouncer::stored(uint64_t content, uint64_t parent, const PrefixKey& prefix, int index) {
  const auto tokens = std::span(prefix.tokens).subspan(static_cast<size_t>(index) * block_len_, block_len_);
  Node node;
  node.lora_name = prefix.lora_name;
  node.extra_keys = extra_keys_of(prefix, index, block_len_);
  node.can_be_found = !prefix.scope.is_cross;  // by the tokens of a prompt
  if (index > 0) {
    // After a window the blocks before may be gone: then nothing finds this one.
    const auto before = nodes_.find(parent);
    const bool is_there = before != nodes_.end();
    node.can_be_found = is_there && before->second.can_be_found;
    node.is_known = is_there && before->second.is_known;
    node.before = parent;
    node.parent = is_there ? before->second.hash : 0;
    if (is_there) before->second.children.insert(content);
  }
  node.hash = hash_of(node.parent.value_or(0), tokens, node.extra_keys);
  const Node& kept = nodes_[content] = std::move(node);
  if (kept.can_be_found) add_ref(kept, tokens);
}

void CacheAnnouncer::moved(uint64_t content, std::span<const int32_t> tokens, CacheTier to) {
  Node& node = nodes_.at(content);
  if (node.can_be_found) drop_ref(node);
  node.tier = to;
  if (node.can_be_found) add_ref(node, tokens);
}

void CacheAnnouncer::removed(uint64_t content) {
  lose(content);
  const auto node = nodes_.find(content);
  const auto before = nodes_.find(node->second.before);
  if (before != nodes_.end()) before->second.children.erase(content);
  nodes_.erase(node);
}

void CacheAnnouncer::cleared() {
  nodes_.clear();
  holders_.clear();
  events_.clear();
  events_.emplace_back();
  report_files();
}

void CacheAnnouncer::record_files(const std::vector<FileChange>& changes) {
  for (const FileChange& change : changes) {
    const FileLabel& label = *change.label;
    Filed& filed = files_[label.hash];
    if (change.is_there && filed.count++ == 0) {
      filed.label = change.label;
      report_stored(label, label.tokens, CacheTier::kDisk);
    } else if (!change.is_there && --filed.count == 0) {
      report_removed(label.hash, CacheTier::kDisk);
      files_.erase(label.hash);
    }
  }
}

std::shared_ptr<const FileLabel> CacheAnnouncer::label(uint64_t content, std::span<const int32_t> tokens,
                                                       int index) const {
  const auto node = nodes_.find(content);
  if (node == nodes_.end() || !node->second.is_known) return nullptr;
  return std::make_shared<const FileLabel>(
      FileLabel{static_cast<const BlockLabel&>(node->second), index, {tokens.begin(), tokens.end()}});
}

std::shared_ptr<const FileLabel> CacheAnnouncer::label_after(const FileLabel* before, const PrefixKey& prefix) const {
  const int index = before == nullptr ? 0 : before->index + 1;
  const auto tokens = std::span(prefix.tokens).subspan(static_cast<size_t>(index) * block_len_, block_len_);
  return make_label(before, tokens, prefix.lora_name, extra_keys_of(prefix, index, block_len_));
}

std::shared_ptr<const FileLabel> CacheAnnouncer::label_after(const FileLabel* before, std::span<const int32_t> tokens) {
  return make_label(before, tokens, {}, {});
}

void CacheAnnouncer::end_step(CacheSource& cache) {
  const CacheEventSink::State state = sink_.state();
  if (state == CacheEventSink::State::kLost) events_.clear();
  if (state == CacheEventSink::State::kNeedsSnapshot) report_everything(cache);
  if (!events_.empty()) sink_.push(std::exchange(events_, {}));
}

// One more content of its hash in its tier.
void CacheAnnouncer::add_ref(const Node& node, std::span<const int32_t> tokens) {
  if (holders_[node.hash][static_cast<size_t>(node.tier)]++ == 0) report_stored(node, tokens, node.tier);
}

void CacheAnnouncer::drop_ref(const Node& node) {
  const auto holders = holders_.find(node.hash);
  if (--holders->second[static_cast<size_t>(node.tier)] == 0) report_removed(node.hash, node.tier);
  if (holders->second == Tiers{}) holders_.erase(holders);
}

// A content and all that follows it is not found any more.
void CacheAnnouncer::lose(uint64_t content) {
  std::vector<uint64_t> lost = {content};
  for (size_t i = 0; i < lost.size(); ++i) {
    Node& node = nodes_.at(lost[i]);
    if (!node.can_be_found) continue;  // nor is what follows
    drop_ref(node);
    node.can_be_found = false;
    lost.insert(lost.end(), node.children.begin(), node.children.end());
  }
}

void CacheAnnouncer::report_stored(const BlockLabel& block, std::span<const int32_t> tokens, CacheTier tier) {
  const bool goes_on = !events_.empty() && events_.back().kind == CacheEventKind::kStored &&
                       events_.back().tier == tier && block.parent == events_.back().hashes.back() &&
                       events_.back().lora_name == block.lora_name;
  if (!goes_on) {
    events_.push_back(
        {.kind = CacheEventKind::kStored, .tier = tier, .parent = block.parent, .lora_name = block.lora_name});
  }
  CacheEvent& event = events_.back();
  event.hashes.push_back(block.hash);
  event.tokens.insert(event.tokens.end(), tokens.begin(), tokens.end());
  event.extra_keys.push_back(block.extra_keys);
}

void CacheAnnouncer::report_removed(uint64_t hash, CacheTier tier) {
  const bool goes_on =
      !events_.empty() && events_.back().kind == CacheEventKind::kRemoved && events_.back().tier == tier;
  if (!goes_on) events_.push_back({.kind = CacheEventKind::kRemoved, .tier = tier});
  events_.back().hashes.push_back(hash);
}

void CacheAnnouncer::report_everything(CacheSource& cache) {
  events_.clear();
  events_.emplace_back();
  std::set<std::pair<uint64_t, CacheTier>> reported;
  for (const NodeId id : cache.stored_nodes()) {
    const Node& node = nodes_.at(cache.tree().number(id));
    if (!node.can_be_found || !reported.emplace(node.hash, node.tier).second) continue;
    report_stored(node, cache.tree().tokens(id), node.tier);
  }
  report_files();
}

// Each block after those in front of it.
void CacheAnnouncer::report_files() {
  std::vector<const FileLabel*> labels;
  for (const auto& [hash, filed] : files_) labels.push_back(filed.label.get());
  std::ranges::sort(labels, {}, &FileLabel::index);
  for (const FileLabel* label : labels) report_stored(*label, label->tokens, CacheTier::kDisk);
}

}  // namespace turbomind
