#include "model/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace turbomind {

namespace {

// What tells one set of frequencies from another; 0: unstretched.
int variant_of(const StretchSpec& stretch, int prompt_len) {
  if (stretch.kind == StretchKind::kNone || prompt_len <= stretch.length) return 0;
  switch (stretch.kind) {
    case StretchKind::kDynamic:
      return prompt_len;
    case StretchKind::kQwen:
      return static_cast<int>(std::ceil(std::log2(static_cast<double>(prompt_len) / stretch.length)));
    default:
      return 1;
  }
}

// NTK-aware scaling (bloc97, 2023): theta grows so that the slowest pair is slowed down by `growth`.
std::vector<float> with_grown_theta(const RopeSpec& rope, double growth) {
  const double dimensions = 2.0 * static_cast<double>(rope.inv_freq.size());
  const double theta = rope.theta * std::pow(growth, dimensions / (dimensions - 2));
  std::vector<float> frequencies(rope.inv_freq.size());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / dimensions));
  }
  return frequencies;
}

std::vector<float> stretched_frequencies(const RopeSpec& rope, int variant) {
  const StretchSpec& stretch = rope.stretch;
  switch (stretch.kind) {
    case StretchKind::kDynamic:
      return with_grown_theta(rope, stretch.factor * variant / stretch.length - (stretch.factor - 1));
    case StretchKind::kQwen:
      return with_grown_theta(rope, std::exp2(variant + 1) - 1);
    case StretchKind::kLong:
      return stretch.inv_freq;
    case StretchKind::kNone:
      break;
  }
  return rope.inv_freq;
}

}  // namespace

RopeTables::RopeTables(Operators& ops, std::vector<RopeSpec> ropes, int max_rows) : ropes_(std::move(ropes)) {
  for (const RopeSpec& rope : ropes_) {
    const size_t bytes = static_cast<size_t>(max_rows) * rope.inv_freq.size() * sizeof(float);
    buffers_.push_back({Staged(ops, bytes), Staged(ops, bytes), {}, 0});
  }
}

int RopeTables::variant(int prompt_len) const {
  int largest = 0;  // a model stretches all its ropes alike, or some of them not at all
  for (const RopeSpec& rope : ropes_) largest = std::max(largest, variant_of(rope.stretch, prompt_len));
  return largest;
}

const std::vector<float>& RopeTables::frequencies(size_t index, int prompt_len) {
  const int variant = variant_of(ropes_[index].stretch, prompt_len);
  if (variant == 0) return ropes_[index].inv_freq;
  Buffers& buffers = buffers_[index];
  if (buffers.variant != variant) {
    buffers.stretched = stretched_frequencies(ropes_[index], variant);
    buffers.variant = variant;
  }
  return buffers.stretched;
}

void RopeTables::fill(Operators& ops, const StepInput& input) {
  for (size_t index = 0; index < ropes_.size(); ++index) {
    const float scaling = ropes_[index].attention_scaling;
    const size_t pairs = ropes_[index].inv_freq.size();
    for (const StepSpan& span : input.spans) {
      const std::vector<float>& inv_freq = frequencies(index, span.prompt_len);
      for (int r = 0; r < span.count; ++r) {
        const auto position = static_cast<float>(span.first_position + r);
        float* cosine = buffers_[index].cosine.host<float>() + static_cast<size_t>(span.first_row + r) * pairs;
        float* sine = buffers_[index].sine.host<float>() + static_cast<size_t>(span.first_row + r) * pairs;
        for (size_t i = 0; i < pairs; ++i) {
          const float angle = position * inv_freq[i];
          cosine[i] = std::cos(angle) * scaling;
          sine[i] = std::sin(angle) * scaling;
        }
      }
    }
    const size_t bytes = input.tokens.size() * pairs * sizeof(float);
    buffers_[index].cosine.upload(ops, bytes);
    buffers_[index].sine.upload(ops, bytes);
  }
}

RopeTable RopeTables::table(int rope) const {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  return {buffers_[index].cosine.device<float>(), buffers_[index].sine.device<float>(),
          static_cast<int>(ropes_[index].inv_freq.size()), ropes_[index].is_interleaved};
}

}  // namespace turbomind
