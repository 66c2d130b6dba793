#include "engine/generation/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/sampling.h"

namespace turbomind {

namespace {

// log of the sum of exp(logits), in double.
double log_sum_exp(const float* logits, int vocab_size) {
  const double largest = *std::max_element(logits, logits + vocab_size);
  double sum = 0;
  for (int i = 0; i < vocab_size; ++i) sum += std::exp(logits[i] - largest);
  return largest + std::log(sum);
}

}  // namespace

TokenLogprobs log_probabilities(const float* logits, int vocab_size, int32_t token, int top) {
  const double normaliser = log_sum_exp(logits, vocab_size);
  const auto log_p = [&](int32_t id) { return static_cast<float>(logits[id] - normaliser); };
  TokenLogprobs result{log_p(token), {}};
  std::vector<int32_t> ids(static_cast<size_t>(top > 0 ? vocab_size : 0));
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = static_cast<size_t>(std::min(top, vocab_size));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (const int32_t id : std::span(ids).first(count)) result.top.emplace_back(id, log_p(id));
  return result;
}

double negative_log_probability(const float* logits, int vocab_size, int32_t token) {
  return log_sum_exp(logits, vocab_size) - logits[token];
}

PromptTokens::PromptTokens(const SamplingParams& rule, const std::vector<int32_t>& prompt, int vocab_size) {
  if (rule.repetition_penalty == 1) return;
  is_there_.resize(static_cast<size_t>(vocab_size));
  for (const int32_t token : prompt) {
    if (contains(token)) continue;
    is_there_[static_cast<size_t>(token)] = true;
    all_.push_back(token);
  }
}

void Penalties::apply(float* logits) const {
  const auto repeat = [&](int32_t token) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / rule_.repetition_penalty : logit * rule_.repetition_penalty;
  };
  if (rule_.repetition_penalty != 1) {
    for (const int32_t token : prompt_.all()) repeat(token);
    for (const auto& [token, count] : counts_) {
      if (!prompt_.contains(token)) repeat(token);
    }
  }
  if (rule_.presence_penalty != 0 || rule_.frequency_penalty != 0) {
    for (const auto& [token, count] : counts_) {
      logits[token] -= rule_.presence_penalty + rule_.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [token, bias] : biases_) logits[token] += bias;
}

int32_t Sampler::sample(float* logits, const SamplingParams& rule) {
  const int32_t best = argmax(logits, vocab_size_);
  if (best < 0 || rule.is_greedy) return best;
  if (rule.top_n_sigma > 0) apply_top_n_sigma(logits, rule, logits[best]);
  return draw_from(logits, rule, best);
}

// Top-n sigma (Tang et al., 2024): logits more than n standard deviations below the largest. Tokens that are forbidden
// already do not count.
void Sampler::apply_top_n_sigma(float* logits, const SamplingParams& rule, float largest) const {
  double sum = 0;
  double squares = 0;
  int count = 0;
  for (int32_t token = 0; token < vocab_size_; ++token) {
    if (!std::isfinite(logits[token])) continue;
    const double distance = static_cast<double>(logits[token]) - largest;
    sum += distance;
    squares += distance * distance;
    ++count;
  }
  if (count == 0) return;
  const double deviation = std::sqrt(std::max(0.0, squares / count - (sum / count) * (sum / count)));
  const double bound = largest - rule.top_n_sigma * deviation;
  for (int32_t token = 0; token < vocab_size_; ++token) {
    if (logits[token] < bound) logits[token] = -std::numeric_limits<float>::infinity();
  }
}

// Temperature, top-k, top-p, min-p and typical-p, in this order. What is not limited is never sorted.
int32_t Sampler::draw_from(const float* logits, const SamplingParams& rule, int32_t best) {
  const double u = uniform(rule.seed, rule.draw);
  const float largest = logits[best];
  if (!std::isfinite(largest)) return best;
  const bool has_top_k = rule.top_k > 0 && rule.top_k < vocab_size_;
  if (has_top_k) {
    select_top_k(logits, rule.top_k);
    double total = 0;
    for (Candidate& candidate : candidates_) {
      candidate.weight = std::exp((static_cast<double>(candidate.logit) - largest) / rule.temperature);
      total += candidate.weight;
    }
    if (rule.top_p < 1) apply_top_p(logits, rule, total);
  } else {
    const double total = weigh(logits, rule, largest);
    if (rule.top_p == 1 && rule.min_p == 0 && rule.typical_p == 1) return draw_from_all(u * total);
    if (rule.top_p < 1) {
      apply_top_p(logits, rule, total);
    } else {
      candidates_.clear();
      for (int32_t token = 0; token < vocab_size_; ++token) {
        const float weight = weights_[static_cast<size_t>(token)];
        if (weight >= rule.min_p) candidates_.push_back({logits[token], token, weight});
      }
    }
  }
  if (rule.min_p > 0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < rule.min_p; });
  if (rule.typical_p < 1) apply_typical_p(rule);
  return draw_from_candidates(best, u);
}

// Weights of all tokens; returns their sum.
double Sampler::weigh(const float* logits, const SamplingParams& rule, float largest) {
  const auto chunks = static_cast<size_t>(vocab_size_ + kLogitChunk - 1) / kLogitChunk;
  weights_.resize(static_cast<size_t>(vocab_size_));
  chunk_sums_.resize(chunks);
  exp_weights(logits, vocab_size_, largest, 1.0f / rule.temperature, weights_.data(), chunk_sums_.data());
  return std::accumulate(chunk_sums_.begin(), chunk_sums_.end(), 0.0);
}

int32_t Sampler::draw_from_all(double remaining) const {
  size_t chunk = 0;
  while (chunk + 1 < chunk_sums_.size() && remaining >= chunk_sums_[chunk]) remaining -= chunk_sums_[chunk++];
  int32_t last = -1;
  const auto end = static_cast<int32_t>(std::min<size_t>((chunk + 1) * kLogitChunk, static_cast<size_t>(vocab_size_)));
  for (auto token = static_cast<int32_t>(chunk * kLogitChunk); token < end; ++token) {
    const float weight = weights_[static_cast<size_t>(token)];
    if (weight <= 0) continue;
    last = token;
    remaining -= weight;
    if (remaining < 0) break;
  }
  // Rounding can leave a little of the sum beyond the last token that is possible.
  return last >= 0 ? last : static_cast<int32_t>(std::max_element(weights_.begin(), weights_.end()) - weights_.begin());
}

int32_t Sampler::draw_from_candidates(int32_t best, double u) const {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double remaining = u * total;
  for (const Candidate& candidate : candidates_) {
    remaining -= candidate.weight;
    if (remaining < 0) return candidate.token;
  }
  return best;
}

// The `count` most likely tokens in order, the lower id first among equals. A bound comes from the chunks' maxima: as
// many chunks as there are tokens wanted hold a value of at least the count-th largest maximum, so nothing below it is
// wanted.
void Sampler::select_top_k(const float* logits, int count) {
  const auto is_before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const auto chunks = static_cast<size_t>(vocab_size_ + kLogitChunk - 1) / kLogitChunk;
  maxima_.resize(chunks);
  chunk_maxima(logits, vocab_size_, maxima_.data());
  float bound = std::numeric_limits<float>::lowest();  // forbidden tokens, of -infinity, are no candidates
  if (static_cast<size_t>(count) < chunks) {
    std::vector<float> sorted = maxima_;
    std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<>());
    bound = std::max(bound, sorted[static_cast<size_t>(count) - 1]);
  }
  candidates_.clear();
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (maxima_[chunk] < bound) continue;
    const auto end =
        static_cast<int32_t>(std::min<size_t>((chunk + 1) * kLogitChunk, static_cast<size_t>(vocab_size_)));
    for (auto token = static_cast<int32_t>(chunk * kLogitChunk); token < end; ++token) {
      if (logits[token] >= bound) candidates_.push_back({logits[token], token, 0});
    }
  }
  const auto kept = std::min(candidates_.size(), static_cast<size_t>(count));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(kept), candidates_.end(),
                    is_before);
  candidates_.resize(kept);
}

// Leaves the most likely candidates that together have top_p of `total`. Where no top-k limited them, collects them in
// growing numbers, since the nucleus is nearly always a small part of the vocabulary.
void Sampler::apply_top_p(const float* logits, const SamplingParams& rule, double total) {
  const bool has_all = rule.top_k > 0 && rule.top_k < vocab_size_;
  for (int count = 64;; count *= 8) {
    if (!has_all) {
      select_top_k(logits, std::min(count, vocab_size_));
      for (Candidate& candidate : candidates_) candidate.weight = weights_[static_cast<size_t>(candidate.token)];
    }
    double sum = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      sum += candidates_[i].weight;
      if (sum >= rule.top_p * total) {
        candidates_.resize(i + 1);
        return;
      }
    }
    if (has_all || count >= vocab_size_) return;
  }
}

// Locally typical sampling (Meister et al., 2022): leaves the candidates whose information, -log p, is nearest to its
// expectation and that together have typical_p of the total; those as near as the last one too.
void Sampler::apply_typical_p(const SamplingParams& rule) {
  std::erase_if(candidates_, [](const Candidate& c) { return c.weight <= 0; });
  double total = 0;
  double products = 0;
  for (const Candidate& candidate : candidates_) {
    total += candidate.weight;
    products += candidate.weight * std::log(candidate.weight);
  }
  // -log p = log total - log weight, so what both have cancels out.
  const double expected = products / total;
  const auto distance = [&](const Candidate& c) { return std::abs(std::log(c.weight) - expected); };
  std::ranges::stable_sort(candidates_, {}, distance);
  double sum = 0;
  const auto last = std::ranges::find_if(candidates_, [&](const Candidate& c) {
    sum += c.weight;
    return sum >= rule.typical_p * total;
  });
  if (last == candidates_.end()) return;
  const double farthest = distance(*last);
  std::erase_if(candidates_, [&](const Candidate& c) { return distance(c) > farthest; });
}

}  // namespace turbomind
