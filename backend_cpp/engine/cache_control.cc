#include "engine/cache_control.h"

#include <algorithm>
#include <utility>

namespace turbomind {

int CachePins::pin(const PrefixKey& prefix) {
  PrefixTree& tree = blocks_.tree();
  std::vector<NodeId> nodes = tree.path_of(prefix, static_cast<int>(prefix.tokens.size()));
  const auto tokens = static_cast<int>(nodes.size()) * blocks_.block_len();
  if (pages_of(nodes) == 0) throw invalid_argument("the cache has no full block of this prompt");
  std::vector<NodeId> all = nodes;
  const auto known = find(prefix);
  for (const Pin& pin : pins_) {
    if (known == pins_.end() || &pin != &*known) all.insert(all.end(), pin.nodes.begin(), pin.nodes.end());
  }
  if (const int pages = pages_of(all); pages > max_pages()) {
    throw invalid_argument("pinned prompts would take " + std::to_string(pages) + " pages, and may take " +
                           std::to_string(max_pages()) + ", a fourth of the cache; unpin others, or pin less");
  }
  for (const NodeId pinned : nodes) tree.ref(pinned);
  unpin(prefix);
  pins_.push_back({prefix.scope, prefix.tokens, std::move(nodes)});
  seen_ = 0;
  return tokens;
}

bool CachePins::unpin(const PrefixKey& prefix) {
  const auto found = find(prefix);
  if (found == pins_.end()) return false;
  for (const NodeId node : found->nodes) blocks_.tree().unref(node);
  pins_.erase(found);
  return true;
}

void CachePins::clear() {
  for (const Pin& pin : pins_) {
    for (const NodeId node : pin.nodes) blocks_.tree().unref(node);
  }
  pins_.clear();
}

void CachePins::refresh() {
  if (pins_.empty() || blocks_.order().last_use() == seen_) return;
  for (const Pin& pin : pins_) {
    // A chain loses its end before its beginning.
    for (auto node = pin.nodes.rbegin(); node != pin.nodes.rend(); ++node) blocks_.touch(*node, true);
  }
  seen_ = blocks_.order().last_use();
}

int CachePins::page_count() const {
  std::vector<NodeId> nodes;
  for (const Pin& pin : pins_) nodes.insert(nodes.end(), pin.nodes.begin(), pin.nodes.end());
  return pages_of(std::move(nodes));
}

std::vector<CachePins::Pin>::iterator CachePins::find(const PrefixKey& prefix) {
  return std::ranges::find_if(pins_,
                              [&](const Pin& pin) { return pin.scope == prefix.scope && pin.tokens == prefix.tokens; });
}

int CachePins::pages_of(std::vector<NodeId> nodes) const {
  std::ranges::sort(nodes);
  const auto twice = std::ranges::unique(nodes);
  nodes.erase(twice.begin(), twice.end());
  int pages = 0;
  for (const NodeId node : nodes) {
    for (int group = 0; group < blocks_.group_count(); ++group) {
      if (blocks_.stored(node, group) != kNoBlock) pages += blocks_.group(group).pages;
    }
  }
  return pages;
}

}  // namespace turbomind
