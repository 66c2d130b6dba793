#include "kernels/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/for_rows.h"

namespace turbomind {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kRoutedRows = 16;   // rows one task routes
constexpr size_t kMinPart = 256;  // elements of a row that one task adds
// Rows of experts whose products are made together; one expert may have more. What passes between its layers stays in
// the caches.
constexpr int kMaxPairs = 256;

// Index of the largest of `values` that is not `taken`, the lowest among equals; one that is not taken in any case.
int best_of(const std::vector<float>& values, const std::vector<bool>& taken) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(values.size()); ++i) {
    if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

// Routes rows one by one; holds the working space of a thread.
class Router {
 public:
  explicit Router(const RouterParams& params)
      : params_(params),
        scores_(static_cast<size_t>(params.num_experts)),
        choice_(static_cast<size_t>(params.num_experts)),
        taken_(static_cast<size_t>(params.num_experts)) {}

  void route(size_t row, const float* logits, int32_t* experts, float* weights) {
    std::fill(taken_.begin(), taken_.end(), false);
    if (params_.score == RouterScore::kSparsemixer) {
      mix(logits, experts, weights);
    } else {
      score(logits);
      if (params_.token_experts != nullptr) {
        take(params_.token_experts + static_cast<size_t>(params_.tokens[row]) * params_.top_k, experts, weights);
      } else {
        choose(experts, weights);
      }
    }
    float factor = params_.scale;
    if (params_.normalize) {
      float sum = 0;
      for (int k = 0; k < params_.top_k; ++k) sum += weights[k];
      factor /= sum;
    }
    for (int k = 0; k < params_.top_k; ++k) weights[k] *= factor;
    if (params_.expert_scales == nullptr) return;
    for (int k = 0; k < params_.top_k; ++k) weights[k] *= params_.expert_scales[experts[k]];
  }

 private:
  void score(const float* logits) {
    const size_t count = scores_.size();
    if (params_.score == RouterScore::kSigmoid) {
      for (size_t e = 0; e < count; ++e) scores_[e] = 1.0f / (1.0f + std::exp(-logits[e]));
      return;
    }
    if (params_.score == RouterScore::kSqrtSoftplus) {
      for (size_t e = 0; e < count; ++e) {
        scores_[e] = std::sqrt(std::max(logits[e], 0.0f) + std::log1p(std::exp(-std::fabs(logits[e]))));
      }
      return;
    }
    const float top = *std::max_element(logits, logits + count);
    float sum = 0;
    for (size_t e = 0; e < count; ++e) {
      scores_[e] = std::exp(logits[e] - top);
      sum += scores_[e];
    }
    for (float& value : scores_) value /= sum;
  }

  void take(const int32_t* given, int32_t* experts, float* weights) {
    for (int k = 0; k < params_.top_k; ++k) {
      experts[k] = given[k];
      weights[k] = scores_[given[k]];
    }
  }

  void choose(int32_t* experts, float* weights) {
    choice_ = scores_;
    if (params_.choice_bias != nullptr) {
      for (size_t e = 0; e < choice_.size(); ++e) choice_[e] += params_.choice_bias[e];
    }
    if (params_.top_groups < params_.num_groups) leave_out_groups();
    for (int k = 0; k < params_.top_k; ++k) {
      const int best = best_of(choice_, taken_);
      taken_[best] = true;
      experts[k] = best;
      weights[k] = scores_[best];
    }
  }

  // Marks the experts of all but the best groups as taken.
  void leave_out_groups() {
    const int size = params_.num_experts / params_.num_groups;
    std::vector<float> group_scores(static_cast<size_t>(params_.num_groups));
    for (int g = 0; g < params_.num_groups; ++g) {
      float best = kNever;
      float second = kNever;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        second = std::max(second, std::min(best, choice_[e]));
        best = std::max(best, choice_[e]);
      }
      group_scores[g] = params_.group_score == GroupScore::kTop2 ? best + second : best;
    }
    std::vector<bool> kept(group_scores.size());
    for (int k = 0; k < params_.top_groups; ++k) kept[best_of(group_scores, kept)] = true;
    for (int e = 0; e < params_.num_experts; ++e) taken_[e] = !kept[e / size];
  }

  void mix(const float* logits, int32_t* experts, float* weights) {
    std::copy_n(logits, scores_.size(), scores_.begin());
    for (int k = 0; k < params_.top_k; ++k) {
      const int best = best_of(scores_, taken_);
      const float top = logits[best];
      float sum = 0;
      for (size_t e = 0; e < scores_.size(); ++e) {
        const bool is_far = (top - logits[e]) / std::max(std::fabs(logits[e]), top) > 2 * params_.mixer_jitter;
        if (!taken_[e] && !is_far) sum += std::exp(logits[e] - top);
      }
      taken_[best] = true;
      experts[k] = best;
      weights[k] = 1.0f / sum;
    }
  }

  const RouterParams& params_;
  std::vector<float> scores_;  // weighs
  std::vector<float> choice_;  // chooses
  std::vector<bool> taken_;
};

template <class T>
T* grown(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

// Fills first_pair, rows and shares: each expert's rows, ascending.
void sort_by_expert(int num_experts, int rows, int top_k, const int32_t* chosen, const float* weights,
                    ExpertScratch& scratch) {
  const int pairs = rows * top_k;
  scratch.first_pair.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int pair = 0; pair < pairs; ++pair) ++scratch.first_pair[chosen[pair] + 1];
  for (int e = 0; e < num_experts; ++e) scratch.first_pair[e + 1] += scratch.first_pair[e];
  int32_t* sorted = grown(scratch.rows, static_cast<size_t>(pairs));
  float* shares = grown(scratch.shares, static_cast<size_t>(pairs));
  std::vector<int32_t> next(scratch.first_pair.begin(), scratch.first_pair.end() - 1);
  for (int pair = 0; pair < pairs; ++pair) {
    const int slot = next[chosen[pair]]++;
    sorted[slot] = pair / top_k;
    shares[slot] = weights[pair];
  }
}

}  // namespace

void route(ThreadPool& pool, const RouterParams& params, const float* logits, int rows, int32_t* experts,
           float* weights) {
  pool.parallel_for((rows + kRoutedRows - 1) / kRoutedRows, [&](int chunk) {
    Router router(params);
    const int last = std::min(rows, (chunk + 1) * kRoutedRows);
    for (auto row = static_cast<size_t>(chunk) * kRoutedRows; row < static_cast<size_t>(last); ++row) {
      router.route(row, logits + row * params.num_experts, experts + row * params.top_k, weights + row * params.top_k);
    }
  });
}

namespace {

// The same for experts [first, last), whose rows are pairs of a row of x and one of its experts.
void add_some_experts(ThreadPool& pool, ExpertScratch& scratch, Activation activation,
                      const std::vector<ExpertWeight>& experts, size_t first, size_t last, const float* x, float* y) {
  const auto hidden = static_cast<size_t>(experts[first].gate_up.in_features);
  const auto width = static_cast<size_t>(experts[first].gate_up.out_features);
  const auto size = static_cast<size_t>(experts[first].down.in_features);
  const int begin = scratch.first_pair[first];
  const auto pairs = static_cast<size_t>(scratch.first_pair[last] - begin);
  if (pairs == 0) return;
  const int32_t* sources = scratch.rows.data() + begin;
  const float* shares = scratch.shares.data() + begin;
  float* inputs = grown(scratch.inputs, pairs * hidden);
  float* projected = grown(scratch.gate_up, pairs * width);
  float* activated = grown(scratch.activated, pairs * size);
  float* outputs = grown(scratch.outputs, pairs * hidden);
  for_rows(pool, static_cast<int>(pairs), static_cast<int>(hidden),
           [&](size_t i) { std::copy_n(x + sources[i] * hidden, hidden, inputs + i * hidden); });
  std::vector<LinearJob> up;
  std::vector<LinearJob> down;
  const bool is_gated = experts[first].is_gated();
  for (size_t e = first; e < last; ++e) {
    const auto at = static_cast<size_t>(scratch.first_pair[e] - begin);
    const int count = scratch.first_pair[e + 1] - scratch.first_pair[e];
    if (count == 0) continue;
    up.push_back({experts[e].gate_up, inputs + at * hidden, count, projected + at * width});
    float* rows = activated + at * size;
    const LinearInput between =
        is_gated ? LinearInput::gated(activation, projected + at * width, rows) : LinearInput(rows);
    down.push_back({experts[e].down, between, count, outputs + at * hidden});
  }
  grouped_gemm(pool, scratch.products, up);
  if (!is_gated) {
    const auto rows_of = [&](float* x) { return rows_view(x, static_cast<int>(pairs), static_cast<int>(size)); };
    activate(pool, activation, rows_of(projected), {}, rows_of(activated));
  }
  grouped_gemm(pool, scratch.products, down);
  // A part of all rows at a time: an expert after the other adds to a row.
  const size_t part = std::max(kChunkElements / pairs, kMinPart);
  pool.parallel_for(static_cast<int>((hidden + part - 1) / part), [&](int index) {
    const size_t from = static_cast<size_t>(index) * part;
    const size_t to = std::min(hidden, from + part);
    for (size_t i = 0; i < pairs; ++i) {
      float* target = y + sources[i] * hidden;
      const float* output = outputs + i * hidden;
      for (size_t d = from; d < to; ++d) target[d] += shares[i] * output[d];
    }
  });
}

}  // namespace

void add_experts(ThreadPool& pool, ExpertScratch& scratch, Activation activation,
                 const std::vector<ExpertWeight>& experts, const float* x, int rows, int top_k, const int32_t* chosen,
                 const float* weights, float* y) {
  sort_by_expert(static_cast<int>(experts.size()), rows, top_k, chosen, weights, scratch);
  const auto& first_pair = scratch.first_pair;
  for (size_t first = 0; first < experts.size();) {
    size_t last = first + 1;
    while (last < experts.size() && first_pair[last + 1] - first_pair[first] <= kMaxPairs) ++last;
    add_some_experts(pool, scratch, activation, experts, first, last, x, y);
    first = last;
  }
}

}  // namespace turbomind
