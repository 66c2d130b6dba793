#include "engine/speculative/ngram_index.h"

#include <algorithm>
#include <utility>

namespace turbomind {

namespace {

constexpr int32_t kBetween = -1;
constexpr int kMaxPlaces = 16;  // that are looked at

}  // namespace

void NgramIndex::append(int32_t token, uint64_t scope) {
  // The run before this place is entered now, so that a text does not find its own end.
  const int place = size();
  earlier_.push_back(-1);
  if (place - text_begin_ >= least_) {
    const auto [entry, is_new] = latest_.try_emplace(key_of(tokens_.data() + place - least_, scope), place);
    if (!is_new) earlier_.back() = std::exchange(entry->second, place);
  }
  tokens_.push_back(token);
}

void NgramIndex::end_text() {
  tokens_.push_back(kBetween);
  earlier_.push_back(-1);
  text_begin_ = size();
}

NgramIndex::Match NgramIndex::find(std::span<const int32_t> text, uint64_t scope) const {
  Match best;
  if (text.size() < static_cast<size_t>(least_)) return best;
  const auto entry = latest_.find(key_of(text.data() + text.size() - least_, scope));
  if (entry == latest_.end()) return best;
  int place = entry->second;
  for (int i = 0; i < kMaxPlaces && place >= 0 && best.length < most_; ++i) {
    if (const int length = length_at(text, place); length >= least_ && length > best.length) best = {place, length};
    place = earlier_[static_cast<size_t>(place)];
  }
  return best;
}

int NgramIndex::length_at(std::span<const int32_t> text, int place) const {
  const int most = std::min({most_, static_cast<int>(text.size()), place});
  int length = 0;
  while (length < most && tokens_[static_cast<size_t>(place - 1 - length)] == text[text.size() - 1 - length]) ++length;
  return length;
}

uint64_t NgramIndex::key_of(const int32_t* run, uint64_t scope) const {
  uint64_t key = scope * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < least_; ++i) {
    key = (key ^ static_cast<uint32_t>(run[i])) * 0xFF51AFD7ED558CCDu;
    key ^= key >> 32;
  }
  return key;
}

void NgramIndex::clear() {
  tokens_.clear();
  earlier_.clear();
  latest_.clear();
  text_begin_ = 0;
}

}  // namespace turbomind
