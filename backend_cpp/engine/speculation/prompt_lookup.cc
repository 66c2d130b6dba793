#include "engine/speculation/prompt_lookup.h"

#include <span>

namespace turbomind {

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
  match_ = own_.find(text);
  texts_ = match_.place >= 0 ? &own_ : nullptr;
  if (match_.length >= shared_.config.prompt_lookup_max) return;
  const RecentTexts::Match other = shared_.texts.find(text, scope_);
  if (other.at.length <= match_.length) return;
  match_ = other.at;
  texts_ = other.texts;
}

// A draft from the sequence itself that comes to its end goes on with what it began with: the text goes in a circle.
int32_t PromptLookup::token(int index) const {
  const int place = match_.place + index;
  if (texts_ != &own_) return place < texts_->size() ? texts_->token(place) : -1;
  const int period = own_.size() - match_.place;
  return own_.token(match_.place + index % period);
}

}  // namespace turbomind
