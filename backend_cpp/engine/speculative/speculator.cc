#include "engine/speculative/speculator.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <queue>

namespace turbomind {

namespace {

constexpr double kNewest = 0.02;  // weight of the newest step in the means
// Until steps of several sizes were seen: a token costs so much of a step of one token, // tokens vary by so much.
constexpr double kExpectedShare = 0.15;
constexpr double kExpectedVariance = 0.25;
constexpr double kUnusual = 8;  // a step that takes this many times as long as expected waited for something else

// The next draft of a sequence, and the chance that all up to it are right.
struct NextDraft {
  double chance;
  double chance_before;  // the same without it
  const Speculator::Candidate* of;

  bool operator<(const NextDraft& other) const { return chance < other.chance; }
};

// Steps with more tokens are bound by arithmetic rather than by reading weights, of which a model's drafts need more.
constexpr int kMaxTokensToAsk = 4;
constexpr int kFirstModelDrafts = 2;
constexpr int kStepsToWin = 64;  // in which it must win back what it costs to begin with a sequence
// Where a model does not seem to pay for so few sequences, it is tried again after this many steps.
constexpr int kMaxToTry = 2;
constexpr int kStepsToTry = 100;

}  // namespace

int StepCost::computed_tokens(int tokens) {
  const auto rest = static_cast<unsigned>(tokens % kTokensAtOnce);
  return tokens / kTokensAtOnce * kTokensAtOnce + (rest > 0 ? static_cast<int>(std::bit_ceil(rest)) : 0);
}

void StepCost::record(int tokens, double seconds) {
  if (tokens < 1 || tokens > kMaxTokens || seconds <= 0) return;
  if (weight_ > 0 && seconds > kUnusual * of(tokens)) return;
  weight_ += 1;
  const double share = std::max(kNewest, 1 / weight_);
  const auto learn = [&](double& mean, double value) { mean += share * (value - mean); };
  const double computed = computed_tokens(tokens);
  learn(tokens_, computed);
  learn(seconds_, seconds);
  learn(product_, computed * seconds);
  learn(square_, computed * computed);
}

double StepCost::token() const {
  const double variance = std::max(0.0, square_ - tokens_ * tokens_);
  const double covariance = product_ - tokens_ * seconds_;
  const double expected = seconds_ * kExpectedShare / (1 + kExpectedShare * (tokens_ - 1));
  const double slope = (covariance + kExpectedVariance * expected) / (variance + kExpectedVariance);
  return std::clamp(slope, 0.01 * expected, seconds_ / tokens_);
}

double StepCost::of(int tokens) const {
  const double computed = computed_tokens(tokens);
  return weight_ == 0 ? 1 + kExpectedShare * (computed - 1) : seconds_ + token() * (computed - tokens_);
}

void Speculator::draft(std::span<const Candidate> candidates, int step_tokens, int free_tokens) {
  model_seconds_ = 0;
  if (!may_pay(step_tokens)) return;
  std::vector<Candidate> lookups;
  std::vector<Candidate> needs_model;
  for (const Candidate& candidate : candidates) {
    if (candidate.max_drafts <= 0) continue;
    const PromptLookup& lookup = lookup_of(candidate);
    candidate.drafts.are_the_models = model_ != nullptr && candidate.tables != nullptr && is_model_better(candidate);
    if (candidate.drafts.are_the_models) {
      needs_model.push_back(candidate);
    } else if (lookup.has_draft()) {
      lookups.push_back(candidate);
    }
  }
  const int found = look_up(lookups, step_tokens, free_tokens);
  if (!needs_model.empty()) draft_with_model(needs_model, step_tokens + found, free_tokens - found);
}

template <class Chance>
double Speculator::best_rate(int max_drafts, double seconds_a_draft, Chance&& chance) const {
  double tokens = 1;
  double all_right = 1;
  double best = 1 / cost_.of(1);
  for (int i = 0; i < max_drafts; ++i) {
    all_right *= chance(i);
    tokens += all_right;
    best = std::max(best, tokens / (cost_.of(2 + i) + (i + 1) * seconds_a_draft));
  }
  return best;
}

bool Speculator::is_model_better(const Candidate& candidate) const {
  const PromptLookup& lookup = *candidate.drafts.lookup;
  if (!lookup.has_draft()) return true;
  const int max_drafts = std::min(candidate.max_drafts, shared_.config.num_speculative_tokens);
  const double found = best_rate(max_drafts, 0, [&](int i) { return lookup.chance(i); });
  return best_rate(max_drafts, model_cost_.is_known() ? model_cost_.of(1) : 0, [this](int) { return model_chance(); }) >
         found;
}

int Speculator::look_up(std::span<const Candidate> candidates, int step_tokens, int free_tokens) {
  std::priority_queue<NextDraft> next;
  for (const Candidate& candidate : candidates) next.push({candidate.drafts.lookup->chance(0), 1, &candidate});
  const bool takes_all = !shared_.config.is_adaptive;
  std::vector<Drafts*> taken;  // of which drafts, in their order
  double tokens = step_tokens;
  double redone = 0;  // tokens that wrong drafts are expected to make run again
  const double token_cost = has_redone_tokens_ ? cost_.of(2) - cost_.of(1) : 0;
  double best_rate = tokens / cost_.of(step_tokens);
  size_t best_count = 0;
  while (static_cast<int>(taken.size()) < free_tokens && !next.empty()) {
    const auto [chance, chance_before, of] = next.top();
    next.pop();
    const int index = of->drafts.count();
    const PromptLookup& lookup = *of->drafts.lookup;
    of->drafts.tokens.push_back(lookup.token(index));
    taken.push_back(&of->drafts);
    tokens += chance;
    redone += (chance_before - chance) * (1 + index);
    const double rate = tokens / (cost_.of(step_tokens + static_cast<int>(taken.size())) + redone * token_cost);
    if (rate > best_rate || takes_all) {
      best_rate = rate;
      best_count = taken.size();
    }
    if (index + 1 < std::min(of->max_drafts, max_drafts()) && lookup.token(index + 1) >= 0) {
      next.push({chance * lookup.chance(index + 1), chance, of});
    }
  }
  for (; taken.size() > best_count; taken.pop_back()) taken.back()->tokens.pop_back();
  return static_cast<int>(best_count);
}

void Speculator::draft_with_model(std::span<const Candidate> candidates, int step_tokens, int free_tokens) {
  const auto count = static_cast<int>(candidates.size());
  int max_drafts = std::min(shared_.config.num_speculative_tokens, free_tokens / count);
  int missing = 0;
  for (const Candidate& candidate : candidates) {
    missing += model_->missing_tokens(candidate);
    max_drafts = std::min(max_drafts, candidate.max_drafts);
  }
  if (shared_.config.is_adaptive) max_drafts = model_drafts_that_pay(count, missing, step_tokens, max_drafts);
  if (max_drafts <= 0) return;
  const auto start = std::chrono::steady_clock::now();
  model_->draft(candidates, max_drafts);
  model_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (missing == count) model_cost_.record(count, model_seconds_ / max_drafts);
}

// The model's drafts cost steps of its own, and tokens that it has to run first.
int Speculator::model_drafts_that_pay(int sequences, int missing_tokens, int step_tokens, int max_drafts) {
  if (step_tokens > kMaxTokensToAsk) return 0;
  if (!model_cost_.is_known()) return std::min(max_drafts, kFirstModelDrafts);
  const double undrafted_rate = step_tokens / cost_.of(step_tokens);
  double best_rate = undrafted_rate;
  int best = 0;
  double tokens = step_tokens;
  double chance = 1;
  for (int count = 1; count <= max_drafts; ++count) {
    chance *= model_chance();
    tokens += sequences * chance;
    const double time = cost_.of(step_tokens + sequences * count) + count * model_cost_.of(sequences);
    if (tokens / time <= best_rate) continue;
    best_rate = tokens / time;
    best = count;
  }
  const double won = (best_rate / undrafted_rate - 1) * cost_.of(step_tokens) * kStepsToWin;
  if (missing_tokens > sequences &&
      won < missing_tokens * model_cost_.of(StepCost::kTokensAtOnce) / StepCost::kTokensAtOnce)
    best = 0;
  if (best > 0 || sequences > kMaxToTry || ++steps_without_model_ < kStepsToTry) return best;
  steps_without_model_ = 0;
  return std::min(max_drafts, 1);
}

bool Speculator::would_draft(const Candidate& candidate, int step_tokens) {
  if (!may_pay(step_tokens) || candidate.max_drafts <= 0) return false;
  if (model_ != nullptr && candidate.tables != nullptr) return true;
  const PromptLookup& lookup = lookup_of(candidate);
  if (!lookup.has_draft()) return false;
  const double chance = lookup.chance(0) * lookup.chance(1);
  return !shared_.config.is_adaptive ||
         (step_tokens + chance) / cost_.of(step_tokens + 1) > step_tokens / cost_.of(step_tokens);
}

const PromptLookup& Speculator::lookup_of(const Candidate& candidate) {
  std::unique_ptr<PromptLookup>& lookup = candidate.drafts.lookup;
  if (!lookup) {
    lookup = std::make_unique<PromptLookup>(shared_, candidate.scope, candidate.prompt_len);
  }
  lookup->read(candidate.tokens);
  return *lookup;
}

void Speculator::record_drafts(Drafts& drafts, int accepted) {
  ++stats_.spans;
  stats_.drafted += drafts.count();
  stats_.accepted += accepted;
  for (int i = 0; i < std::min(accepted, kMaxDrafts); ++i) ++stats_.accepted_at[static_cast<size_t>(i)];
  for (int i = 0; i < std::min(accepted + 1, drafts.count()); ++i) {
    if (drafts.are_the_models) model_chances_.record(kAsGoodAsRun, i < accepted);
  }
}

}  // namespace turbomind
