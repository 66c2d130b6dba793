#include "engine/speculative/prompt_lookup.h"

#include <algorithm>
#include <bit>

namespace turbomind {

namespace {

constexpr double kPriorWeight = 4;  // of what is expected, in tokens seen
constexpr double kDecay = 0.97;     // of what was seen, with each token more
constexpr std::array kGuess{0.3, 0.2, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9};
constexpr int32_t kBetween = -1;
constexpr int kMaxCandidates = 16;  // that are looked at
constexpr int kMaxAstray = 3;

}  // namespace

size_t MatchChances::class_of(int length) {
  if (length <= 0) return 0;
  const int bits = std::bit_width(static_cast<unsigned>(length - 1));
  return std::min(static_cast<size_t>(bits) + 1, kClasses - 1);
}

void MatchChances::record(int length, bool came) {
  Seen& seen = seen_[class_of(length)];
  seen.all = seen.all * kDecay + 1;
  seen.came = seen.came * kDecay + (came ? 1 : 0);
}

double MatchChances::of_class(size_t index) const {
  static_assert(kGuess.size() == kClasses);
  const double expected = prior_ != nullptr ? prior_->of_class(index) : kGuess[index];
  return (seen_[index].came + kPriorWeight * expected) / (seen_[index].all + kPriorWeight);
}

void NgramIndex::append(int32_t token, uint64_t scope) {
  // The run before this place is entered now, so that a text does not find its own end.
  const int position = size();
  earlier_.push_back(-1);
  if (position - text_begin_ >= min_length_) {
    const auto [entry, is_new] = latest_.try_emplace(key_of(tokens_.data() + position - min_length_, scope), position);
    if (!is_new) earlier_.back() = std::exchange(entry->second, position);
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
  if (text.size() < static_cast<size_t>(min_length_)) return best;
  const auto entry = latest_.find(key_of(text.data() + text.size() - min_length_, scope));
  if (entry == latest_.end()) return best;
  int position = entry->second;
  for (int i = 0; i < kMaxCandidates && position >= 0 && best.length < max_length_; ++i) {
    if (const int length = length_at(text, position); length >= min_length_ && length > best.length)
      best = {position, length};
    position = earlier_[static_cast<size_t>(position)];
  }
  return best;
}

int NgramIndex::length_at(std::span<const int32_t> text, int position) const {
  const int max_length = std::min({max_length_, static_cast<int>(text.size()), position});
  int length = 0;
  while (length < max_length && tokens_[static_cast<size_t>(position - 1 - length)] == text[text.size() - 1 - length])
    ++length;
  return length;
}

uint64_t NgramIndex::key_of(const int32_t* run, uint64_t scope) const {
  uint64_t key = scope * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < min_length_; ++i) {
    key = (key ^ static_cast<uint32_t>(run[i])) * 0xFF51AFD7ED558CCDu;
    key ^= key >> 32;
  }
  return key;
}

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

void PromptLookup::read(const std::vector<int32_t>& tokens) {
  for (auto position = static_cast<size_t>(index_.size()); position < tokens.size(); ++position) {
    if (static_cast<int>(position) >= prompt_len_) {
      search(std::span(tokens).first(position));
      if (has_draft()) {
        const bool came = token(0) == tokens[position];
        chances_.record(match_.at.length, came);
        shared_.chances.record(match_.at.length, came);
      }
    }
    index_.append(tokens[position]);
  }
  search(tokens);
}

void PromptLookup::search(std::span<const int32_t> text) {
  const uint64_t generation = shared_.texts.generation();
  const bool is_others = has_draft() && match_.texts != &index_;
  const bool is_dropped = is_others && generation != generation_;  // another scope's text may be in its place
  if (text.size() == searched_ && !is_dropped) return;
  if (is_dropped) match_.texts = nullptr;
  generation_ = generation;
  searched_ = text.size();
  const RecentTexts::Match before = match_;
  match_ = {nullptr, index_.find(text)};
  if (match_.at.position >= 0) match_.texts = &index_;
  if (match_.at.length < shared_.config.prompt_lookup_max) {
    const RecentTexts::Match other = shared_.texts.find(text, scope_);
    if (other.at.length > match_.at.length) match_ = other;
  }
  astray_ = match_.at.length > 0 ? 0 : astray_ + 1;
  if (before.texts != nullptr && astray_ <= kMaxAstray) go_on_behind(before, text);
}

// Stays where the draft came from, unless a longer run is elsewhere: there are other places with as short a run, and
// where one token has been exchanged for another, the text mostly continues after it.
void PromptLookup::go_on_behind(const RecentTexts::Match& before, std::span<const int32_t> text) {
  const int position = before.at.position + 1;
  if (position >= before.texts->size() || before.texts->token(position) < 0) return;
  const int length = before.texts->length_at(text, position);
  const int known = match_.at.length;
  const bool is_better = length >= known || (known <= 1 && chances_.of(length) > chances_.of(known));
  if (is_better) match_ = {before.texts, {position, length}};
}

// A draft from the sequence itself that comes to its end continues with what it began with: the text goes in a circle.
int32_t PromptLookup::token(int index) const {
  const auto& [texts, at] = match_;
  const int position = at.position + index;
  if (texts != &index_) return position < texts->size() ? texts->token(position) : -1;
  const int period = index_.size() - at.position;
  return index_.token(at.position + index % period);
}

}  // namespace turbomind
