#include "device/token_histories.h"

#include <algorithm>

namespace turbomind {

namespace {

constexpr int kNothingCounted = -1;

int context_of(const SamplingMetadata& choice) {
  return static_cast<int>(choice.tokens->size()) + choice.in_flight;
}

}  // namespace

const TokenHistories::History* TokenHistories::find(uint64_t sequence) const {
  const auto found = std::find_if(histories_.begin(), histories_.end(), [sequence](const History& history) {
    return history.used_in > 0 && history.sequence == sequence;
  });
  return found != histories_.end() ? &*found : nullptr;
}

bool TokenHistories::reserve(const SamplingMetadata& choice) {
  const int64_t next = step_ + 1;
  History* history = find(choice.sequence);
  if (choice.in_flight > 0) {
    // Nobody can see the device what it did not count itself.
    if (history == nullptr || history->tokens != context_of(choice)) return false;
  } else if (history == nullptr) {
    history = &*std::min_element(histories_.begin(), histories_.end(),
                                 [](const History& a, const History& b) { return a.used_in < b.used_in; });
    if (history->used_in == next) return false;
    history->sequence = choice.sequence;
    history->tokens = kNothingCounted;
  }
  history->used_in = next;
  return true;
}

bool TokenHistories::must_recount(const SamplingMetadata& choice) const {
  const History* history = find(choice.sequence);
  return history == nullptr || history->tokens != context_of(choice);
}

int TokenHistories::count(const SamplingMetadata& choice, bool& recounts) {
  History& history = *find(choice.sequence);
  recounts = history.tokens != context_of(choice);
  history.tokens = context_of(choice) + 1;
  return static_cast<int>(&history - histories_.data());
}

}  // namespace turbomind
