#include "engine/speculative/recent_texts.h"

#include <algorithm>

namespace turbomind {

void RecentTexts::add(std::span<const int32_t> text, uint64_t scope) {
  auto& [latest, before] = indices_;
  const auto count = std::min(text.size(), static_cast<size_t>(half_));
  if (latest.size() + static_cast<int>(count) > half_) {
    std::swap(latest, before);
    latest.clear();
    ++generation_;
  }
  for (const int32_t token : text.first(count)) latest.append(token, scope);
  latest.end_text();
}

RecentTexts::Match RecentTexts::find(std::span<const int32_t> text, uint64_t scope) const {
  Match best;
  for (const NgramIndex* index : {&indices_.first, &indices_.second}) {
    const NgramIndex::Match match = index->find(text, scope);
    if (match.length > best.at.length) best = {index, match};
  }
  return best;
}

}  // namespace turbomind
