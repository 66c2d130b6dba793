#include "engine/speculative/prompt_lookup.h"

#include <span>

namespace turbomind {

namespace {

constexpr int kMaxAstray = 3;

}  // namespace

void PromptLookup::read(const std::vector<int32_t>& tokens) {
  for (auto place = static_cast<size_t>(own_.size()); place < tokens.size(); ++place) {
    const bool teaches = static_cast<int>(place) >= prompt_len_;
    if (teaches) {
      look(std::span(tokens).first(place));
      if (has_draft()) {
        const bool came = token(0) == tokens[place];
        chances_.note(match_.length, came);
        shared_.chances.note(match_.length, came);
      }
    }
    own_.append(tokens[place]);
  }
  look(tokens);
}

void PromptLookup::look(std::span<const int32_t> text) {
  const uint64_t generation = shared_.texts.generation();
  const bool is_others = texts_ != nullptr && texts_ != &own_;
  const bool is_dropped = is_others && generation != generation_;  // another scope's text may be in its place
  if (text.size() == looked_ && !is_dropped) return;
  if (is_dropped) texts_ = nullptr;
  generation_ = generation;
  looked_ = text.size();
  const NgramIndex* texts_before = texts_;
  const NgramIndex::Match before = match_;
  match_ = own_.find(text);
  texts_ = match_.place >= 0 ? &own_ : nullptr;
  if (match_.length < shared_.config.prompt_lookup_max) {
    const RecentTexts::Match other = shared_.texts.find(text, scope_);
    if (other.at.length > match_.length) {
      match_ = other.at;
      texts_ = other.texts;
    }
  }
  astray_ = match_.length > 0 ? 0 : astray_ + 1;
  if (texts_before != nullptr && astray_ <= kMaxAstray) go_on_behind(texts_before, before, text);
}

// Stays where the draft came from, unless a longer run is elsewhere: there are other places with as short a run, and
// where one token has been exchanged for another, the text mostly continues after it.
void PromptLookup::go_on_behind(const NgramIndex* texts, NgramIndex::Match before, std::span<const int32_t> text) {
  const int place = before.place + 1;
  if (place >= texts->size() || texts->token(place) < 0) return;
  const int length = texts->length_at(text, place);
  const bool is_better =
      length >= match_.length || (match_.length <= 1 && chances_.of(length) > chances_.of(match_.length));
  if (!is_better) return;
  match_ = {place, length};
  texts_ = texts;
}

// A draft from the sequence itself that comes to its end continues with what it began with: the text goes in a circle.
int32_t PromptLookup::token(int index) const {
  const int place = match_.place + index;
  if (texts_ != &own_) return place < texts_->size() ? texts_->token(place) : -1;
  const int period = own_.size() - match_.place;
  return own_.token(match_.place + index % period);
}

}  // namespace turbomind
