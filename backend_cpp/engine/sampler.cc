#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
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

void Sampler::append_forbidden(const std::vector<int32_t>& tokens, std::vector<int32_t>& forbidden) const {
  for (const std::vector<int32_t>& word : params_.bad_tokens) {
    const size_t before = word.size() - 1;
    if (before <= tokens.size() &&
        std::equal(word.begin(), word.end() - 1, tokens.end() - static_cast<ptrdiff_t>(before))) {
      forbidden.push_back(word.back());
    }
  }
}

void Sampler::describe(TokenChoice& choice) const {
  choice.is_greedy = params_.is_greedy();
  choice.temperature = params_.temperature;
  choice.top_k = params_.top_k;
  choice.top_p = params_.top_p;
  choice.min_p = params_.min_p;
  choice.seed = seed_;
  choice.repetition_penalty = params_.repetition_penalty;
  choice.presence_penalty = params_.presence_penalty;
  choice.frequency_penalty = params_.frequency_penalty;
  choice.biases = &params_.logit_bias;
}

int32_t Sampler::sample(float* logits, uint64_t draw, const std::vector<int32_t>& forbidden, const int32_t* mask) {
  penalise(logits);
  forbid(logits, forbidden, mask);
  const int32_t best = argmax(logits, vocab_size_);
  return best < 0 || params_.is_greedy() ? best : draw_from(logits, best, uniform(seed_, draw));
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

void Sampler::forbid(float* logits, const std::vector<int32_t>& forbidden, const int32_t* mask) const {
  for (const int32_t token : forbidden) logits[token] = -std::numeric_limits<float>::infinity();
  if (mask != nullptr) apply_mask(mask, vocab_size_, logits);
}

// Temperature, top-k, top-p and min-p, in this order. What is not limited is never sorted.
int32_t Sampler::draw_from(const float* logits, int32_t best, double u) {
  const float largest = logits[best];
  if (!std::isfinite(largest)) return best;
  const bool has_top_k = params_.top_k > 0 && params_.top_k < vocab_size_;
  if (has_top_k) {
    collect(logits, params_.top_k);
    double total = 0;
    for (Candidate& candidate : candidates_) {
      candidate.weight = std::exp((static_cast<double>(candidate.logit) - largest) / params_.temperature);
      total += candidate.weight;
    }
    if (params_.top_p < 1) keep_nucleus(logits, total);
  } else {
    const double total = weigh(logits, largest);
    if (params_.top_p == 1 && params_.min_p == 0) return draw_from_all(u * total);
    if (params_.top_p < 1) {
      keep_nucleus(logits, total);
    } else {
      candidates_.clear();
      for (int32_t token = 0; token < vocab_size_; ++token) {
        const float weight = weights_[static_cast<size_t>(token)];
        if (weight >= params_.min_p) candidates_.push_back({logits[token], token, weight});
      }
    }
  }
  drop_unlikely();
  return draw_from_candidates(best, u);
}

// Weights of all tokens; returns their sum.
double Sampler::weigh(const float* logits, float largest) {
  const auto chunks = static_cast<size_t>(vocab_size_ + kLogitChunk - 1) / kLogitChunk;
  weights_.resize(static_cast<size_t>(vocab_size_));
  chunk_sums_.resize(chunks);
  exp_weights(logits, vocab_size_, largest, 1.0f / params_.temperature, weights_.data(), chunk_sums_.data());
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
  // Rounding can leave a little of the sum over behind the last token that is possible.
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

// The `count` likeliest tokens in order, the lower id first among equals. A bound comes from the chunks' maxima: as
// many chunks as there are tokens wanted hold a value of at least the count-th largest maximum, so nothing below it is
// wanted.
void Sampler::collect(const float* logits, int count) {
  const auto is_before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const auto chunks = static_cast<size_t>(vocab_size_ + kLogitChunk - 1) / kLogitChunk;
  maxima_.resize(chunks);
  chunk_maxima(logits, vocab_size_, maxima_.data());
  float bound = -std::numeric_limits<float>::infinity();
  if (static_cast<size_t>(count) < chunks) {
    std::vector<float> sorted = maxima_;
    std::nth_element(sorted.begin(), sorted.begin() + count - 1, sorted.end(), std::greater<>());
    bound = sorted[static_cast<size_t>(count) - 1];
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

// Leaves the likeliest candidates that together have top_p of `total`. Where no top-k limited them, collects them in
// growing numbers, since the nucleus is nearly always a small part of the vocabulary.
void Sampler::keep_nucleus(const float* logits, double total) {
  const bool has_all = params_.top_k > 0 && params_.top_k < vocab_size_;
  for (int count = 64;; count *= 8) {
    if (!has_all) {
      collect(logits, std::min(count, vocab_size_));
      for (Candidate& candidate : candidates_) candidate.weight = weights_[static_cast<size_t>(candidate.token)];
    }
    double sum = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      sum += candidates_[i].weight;
      if (sum >= params_.top_p * total) {
        candidates_.resize(i + 1);
        return;
      }
    }
    if (has_all || count >= vocab_size_) return;
  }
}

void Sampler::drop_unlikely() {
  if (params_.min_p > 0) std::erase_if(candidates_, [this](const Candidate& c) { return c.weight < params_.min_p; });
}

}  // namespace turbomind
