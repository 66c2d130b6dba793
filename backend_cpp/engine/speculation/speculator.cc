#include "engine/speculation/speculator.h"

#include <algorithm>
#include <queue>

namespace turbomind {

namespace {

// The next draft of a sequence, and the chance that all up to it are right.
struct NextDraft {
  double chance;
  const Speculator::Candidate* of;

  bool operator<(const NextDraft& other) const { return chance < other.chance; }
};

}  // namespace

void Speculator::draft(std::span<const Candidate> candidates, int rows, int room) {
  if (!may_pay(rows)) return;
  std::priority_queue<NextDraft> next;
  for (const Candidate& candidate : candidates) {
    if (candidate.most <= 0) continue;
    const PromptLookup& lookup = lookup_of(candidate);
    if (lookup.has_draft()) next.push({lookup.chance(0), &candidate});
  }
  const bool takes_all = !shared_.config.is_adaptive;
  std::vector<Drafts*> taken;  // of which drafts, in their order
  double tokens = rows;
  double best_rate = tokens / cost_.of(rows);
  size_t best_count = 0;
  while (static_cast<int>(taken.size()) < room && !next.empty()) {
    const auto [chance, of] = next.top();
    next.pop();
    const PromptLookup& lookup = *of->drafts.lookup;
    const int index = of->drafts.count();
    of->drafts.tokens.push_back(lookup.token(index));
    taken.push_back(&of->drafts);
    tokens += chance;
    const double rate = tokens / cost_.of(rows + static_cast<int>(taken.size()));
    if (rate > best_rate || takes_all) {
      best_rate = rate;
      best_count = taken.size();
    }
    if (index + 1 < std::min(of->most, shared_.config.num_speculative_tokens) && lookup.token(index + 1) >= 0) {
      next.push({chance * lookup.chance(index + 1), of});
    }
  }
  for (; taken.size() > best_count; taken.pop_back()) taken.back()->tokens.pop_back();
}

bool Speculator::would_draft(const Candidate& candidate, int rows) {
  if (!may_pay(rows) || candidate.most <= 0) return false;
  const PromptLookup& lookup = lookup_of(candidate);
  if (!lookup.has_draft()) return false;
  const double chance = lookup.chance(0) * lookup.chance(1);
  return !shared_.config.is_adaptive || (rows + chance) / cost_.of(rows + 1) > rows / cost_.of(rows);
}

const PromptLookup& Speculator::lookup_of(const Candidate& candidate) {
  std::unique_ptr<PromptLookup>& lookup = candidate.drafts.lookup;
  if (!lookup) lookup = std::make_unique<PromptLookup>(shared_, candidate.scope, candidate.prompt_len);
  lookup->read(candidate.tokens);
  return *lookup;
}

void Speculator::note_drafts(int drafted, int accepted) {
  ++stats_.spans;
  stats_.drafted += drafted;
  stats_.accepted += accepted;
  for (int i = 0; i < accepted; ++i) ++stats_.accepted_at[static_cast<size_t>(i)];
}

}  // namespace turbomind
