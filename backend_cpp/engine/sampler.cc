#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/sampling.h"

namespace turbomind {

double uniform(uint64_t seed, uint64_t counter) {
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (static_cast<uint64_t>(x[0]) << 32 | x[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

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
  const auto count = static_cast<ptrdiff_t>(std::min(top, vocab_size));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (ptrdiff_t i = 0; i < count; ++i)
    result.top.emplace_back(ids[static_cast<size_t>(i)], log_p(ids[static_cast<size_t>(i)]));
  return result;
}

double negative_log_probability(const float* logits, int vocab_size, int32_t token) {
  return log_sum_exp(logits, vocab_size) - logits[token];
}

Sampler::Sampler(const GenerationParams& params, uint64_t seed, int vocab_size)
    : params_(params), seed_(seed), vocab_size_(vocab_size) {
  if (params.repetition_penalty != 1.0f) is_seen_.resize(static_cast<size_t>(vocab_size));
}

void Sampler::note_prompt(int32_t token) {
  if (is_seen_.empty() || is_seen_[static_cast<size_t>(token)]) return;
  is_seen_[static_cast<size_t>(token)] = true;
  seen_.push_back(token);
}

void Sampler::note_answer(int32_t token) {
  note_prompt(token);
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) ++answer_counts_[token];
}

int32_t Sampler::sample(float* logits, const std::vector<int32_t>& tokens, uint64_t draw,
                        const std::vector<int32_t>& forbidden, const int32_t* mask) {
  penalise(logits);
  forbid(logits, tokens, forbidden, mask);
  return params_.is_greedy() ? argmax(logits, vocab_size_) : draw_from(logits, draw);
}

// Repetition: Keskar et al., 2019, a seen token's logit is divided by the penalty when positive and multiplied when
// negative. Presence and frequency: OpenAI API reference.
void Sampler::penalise(float* logits) const {
  for (const int32_t token : seen_) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  for (const auto& [token, count] : answer_counts_) {
    logits[token] -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : params_.logit_bias) logits[token] += bias;
}

void Sampler::forbid(float* logits, const std::vector<int32_t>& tokens, const std::vector<int32_t>& forbidden,
                     const int32_t* mask) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (const int32_t token : forbidden) logits[token] = kNever;
  for (const std::vector<int32_t>& word : params_.bad_tokens) {
    const size_t before = word.size() - 1;
    if (before <= tokens.size() &&
        std::equal(word.begin(), word.end() - 1, tokens.end() - static_cast<ptrdiff_t>(before))) {
      logits[word.back()] = kNever;
    }
  }
  if (mask == nullptr) return;
  for (int token = 0; token < vocab_size_; ++token) {
    if ((static_cast<uint32_t>(mask[token / 32]) >> (token % 32) & 1u) == 0) logits[token] = kNever;
  }
}

int32_t Sampler::draw_from(float* logits, uint64_t draw) {
  const int32_t best = argmax(logits, vocab_size_);
  if (best < 0) return -1;
  const double largest = logits[best];
  if (!std::isfinite(largest)) return best;

  candidates_.resize(static_cast<size_t>(vocab_size_));
  for (int32_t token = 0; token < vocab_size_; ++token)
    candidates_[static_cast<size_t>(token)] = {logits[token], token};
  if (params_.top_k > 0 && params_.top_k < vocab_size_) keep_top_k(params_.top_k);

  const auto weight = [&](const Candidate& c) { return std::exp((c.logit - largest) / params_.temperature); };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  if (params_.top_p < 1) {
    candidates_.resize(nucleus_size(total));
    total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
  }
  if (params_.min_p > 0) {
    // A weight is a probability relative to the likeliest token's.
    std::erase_if(candidates_, [&](const Candidate& c) { return weight(c) < params_.min_p; });
    total = 0;
    for (const Candidate& candidate : candidates_) total += weight(candidate);
  }
  double remaining = uniform(seed_, draw) * total;
  for (const Candidate& candidate : candidates_) {
    remaining -= weight(candidate);
    if (remaining < 0) return candidate.token;
  }
  return best;
}

void Sampler::keep_top_k(int count) {
  std::nth_element(candidates_.begin(), candidates_.begin() + count - 1, candidates_.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
                   });
  candidates_.resize(static_cast<size_t>(count));
}

// Sorts the most likely candidates to the front and returns how many make up top_p of `total`. Sorts in growing pieces,
// since the nucleus is nearly always a small part of the vocabulary.
size_t Sampler::nucleus_size(double total) {
  const auto is_before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  double sum = 0;
  double largest = 0;
  for (size_t sorted = 0, piece = 64; sorted < candidates_.size(); piece *= 4) {
    const size_t end = std::min(candidates_.size(), sorted + piece);
    const auto first = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    std::partial_sort(first, candidates_.begin() + static_cast<ptrdiff_t>(end), candidates_.end(), is_before);
    if (sorted == 0) largest = candidates_[0].logit;
    for (; sorted < end; ++sorted) {
      sum += std::exp((candidates_[sorted].logit - largest) / params_.temperature);
      if (sum >= params_.top_p * total) return sorted + 1;
    }
  }
  return candidates_.size();
}

}  // namespace turbomind
