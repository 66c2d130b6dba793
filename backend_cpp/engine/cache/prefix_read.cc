#include "engine/cache/prefix_read.h"

#include <algorithm>
#include <map>

#include "engine/cache/prefix_hits.h"

namespace turbomind {

PrefixRead::PrefixRead(const CachePlan& plan, const PrefixKey& prefix)
    : plan_(plan),
      scope_(prefix.scope),
      tokens_(prefix.tokens),
      images_(prefix.images.begin(), prefix.images.end()),
      lora_name_(prefix.lora_name),
      salt_(prefix.salt) {}

// How far a prefix can be taken, by what there is: as SequenceMemory::match() finds it.
template <class IsThere>
PrefixRead::Reach PrefixRead::reach(IsThere is_there) const {
  const auto groups = static_cast<int>(plan_.groups.size());
  const auto has = [&](int index, int group) { return is_there(blocks[static_cast<size_t>(index * groups + group)]); };
  int limit = static_cast<int>(blocks.size()) / std::max(1, groups);
  for (int group = 0; group < groups; ++group) {
    if (plan_.groups[static_cast<size_t>(group)].kind != MemoryKind::kPaged) continue;
    for (int index = 0; index < limit; ++index) {
      if (!has(index, group)) limit = index;
    }
  }
  const Reach whole{longest_hit(plan_, limit, has) * plan_.block_len, nullptr};
  for (const Part& part : parts) {
    if (part.tokens <= whole.tokens) break;
    if (part.tokens / plan_.block_len > limit || !std::ranges::all_of(part.groups, is_there)) continue;
    if (has_blocks_before_part(plan_, part.tokens, has)) return {part.tokens, &part};
  }
  return whole;
}

bool PrefixRead::compare_with_memory() {
  memory_tokens_ = reach([](const Block& block) { return block.is_in_memory; }).tokens;
  return reach([](const Block&) { return true; }).tokens > memory_tokens_;
}

const DiskRead::Item* PrefixRead::first_missing() const {
  const auto groups = plan_.groups.size();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (bounds_hits(plan_.groups[i % groups]) && !blocks[i].is_in_memory) return &blocks[i].item;
  }
  return nullptr;
}

DiskRead::Choice PrefixRead::choose(const std::function<bool(const Item&)>& is_there) const {
  std::map<const Block*, bool> known;
  const Reach reached = reach([&](const Block& block) {
    if (block.is_in_memory) return true;
    const auto [entry, is_new] = known.emplace(&block, false);
    if (is_new) entry->second = is_there(block.item);
    return entry->second;
  });
  Choice choice;
  const int saved = reached.tokens - memory_tokens_;
  if (saved <= 0) return choice;
  if (tokens_per_second > 0) choice.compute_seconds = saved / tokens_per_second;
  const auto groups = static_cast<int>(plan_.groups.size());
  for (int index = 0; index < reached.tokens / plan_.block_len; ++index) {
    for (int group = 0; group < groups; ++group) {
      const CacheGroup& of = plan_.groups[static_cast<size_t>(group)];
      if (!bounds_hits(of) || index < first_needed(plan_, of, reached.tokens)) continue;
      if (of.kind == MemoryKind::kState && reached.part != nullptr) continue;
      const Block& block = blocks[static_cast<size_t>(index * groups + group)];
      if (!block.is_in_memory) choice.items.push_back(&block.item);
    }
  }
  if (reached.part == nullptr) return choice;
  for (const Block& block : reached.part->groups) {
    if (!block.is_in_memory) choice.items.push_back(&block.item);
  }
  return choice;
}

}  // namespace turbomind
