#include "model/attention/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "model/step/image_tokens.h"

namespace turbomind {

namespace {

// Key of a set of frequencies; 0: unstretched.
int variant_of(const std::optional<StretchSpec>& stretch, int prompt_len) {
  if (!stretch || prompt_len <= stretch->length) return 0;
  switch (stretch->kind) {
    case StretchKind::kDynamic:
      return prompt_len;
    case StretchKind::kQwen:
      return static_cast<int>(std::ceil(std::log2(static_cast<double>(prompt_len) / stretch->length)));
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
  if (!rope.stretch) return rope.inv_freq;
  const StretchSpec& stretch = *rope.stretch;
  switch (stretch.kind) {
    case StretchKind::kDynamic:
      return with_grown_theta(rope, stretch.factor * variant / stretch.length - (stretch.factor - 1));
    case StretchKind::kQwen:
      return with_grown_theta(rope, std::exp2(variant + 1) - 1);
    case StretchKind::kLong:
      return stretch.inv_freq;
  }
  return rope.inv_freq;
}

int axes_of(const std::vector<RopeSpec>& ropes) {
  return std::any_of(ropes.begin(), ropes.end(), [](const RopeSpec& rope) { return !rope.axes.empty(); }) ? 3 : 1;
}

}  // namespace

RopeTables::RopeTables(Operators& ops, std::vector<RopeSpec> ropes, int max_tokens, int back)
    : ropes_(std::move(ropes)),
      axes_(axes_of(ropes_)),
      back_(back),
      positions_(ops, static_cast<size_t>(max_tokens) * static_cast<size_t>(axes_) * sizeof(int32_t)) {
  for (const RopeSpec& rope : ropes_) {
    const int pairs = static_cast<int>(rope.inv_freq.size());
    Buffers buffers{float_buffer(ops, max_tokens, pairs), float_buffer(ops, max_tokens, pairs), {}, {}, {}, {}, 0};
    const bool is_stretched = rope.stretch.has_value();
    const size_t set_bytes = static_cast<size_t>(pairs) * sizeof(float);
    buffers.frequencies = Staged(ops, set_bytes * static_cast<size_t>(is_stretched ? max_tokens : 1));
    if (is_stretched) {
      buffers.sets = Staged(ops, static_cast<size_t>(max_tokens) * sizeof(int32_t));
    } else {
      std::copy(rope.inv_freq.begin(), rope.inv_freq.end(), buffers.frequencies.host<float>());
      buffers.frequencies.upload(ops, set_bytes);
    }
    buffers.axes = uploaded(ops, rope.axes);
    buffers_.push_back(std::move(buffers));
  }
}

int RopeTables::variant(int prompt_len) const {
  int largest = 0;  // a model stretches all its ropes alike, or some of them not at all
  for (const RopeSpec& rope : ropes_) largest = std::max(largest, variant_of(rope.stretch, prompt_len));
  return largest;
}

void RopeTables::stage(Operators& ops, const StepInput& input) {
  for (const StepSpan& span : input.spans) {
    int32_t* positions = positions_.host<int32_t>() + span.first_token * axes_;
    if (axes_ == 1) {
      std::iota(positions, positions + span.count, span.first_position - back_);
    } else {
      fill_grid_positions(span.embeddings, span.first_position - back_, span.count, positions);
    }
  }
  positions_.upload(ops, input.tokens.size() * static_cast<size_t>(axes_) * sizeof(int32_t));
  for (size_t index = 0; index < ropes_.size(); ++index) {
    if (ropes_[index].stretch) stage_sets(ops, index, input);
  }
}

const std::vector<float>& RopeTables::frequencies(size_t index, int variant) {
  if (variant == 0) return ropes_[index].inv_freq;
  Buffers& buffers = buffers_[index];
  if (buffers.variant != variant) {
    buffers.stretched = stretched_frequencies(ropes_[index], variant);
    buffers.variant = variant;
  }
  return buffers.stretched;
}

// A set of frequencies for each variant that the step has.
void RopeTables::stage_sets(Operators& ops, size_t index, const StepInput& input) {
  const RopeSpec& rope = ropes_[index];
  Buffers& buffers = buffers_[index];
  std::map<int, int32_t> set_of;
  float* next = buffers.frequencies.host<float>();
  for (const StepSpan& span : input.spans) {
    const int variant = variant_of(rope.stretch, span.prompt_len);
    const auto [known, is_new] = set_of.emplace(variant, static_cast<int32_t>(set_of.size()));
    if (is_new) {
      const std::vector<float>& set = frequencies(index, variant);
      next = std::copy(set.begin(), set.end(), next);
    }
    std::fill_n(buffers.sets.host<int32_t>() + span.first_token, span.count, known->second);
  }
  buffers.frequencies.upload(ops, set_of.size() * rope.inv_freq.size() * sizeof(float));
  buffers.sets.upload(ops, input.tokens.size() * sizeof(int32_t));
}

void RopeTables::fill(Operators& ops, int rows) {
  for (size_t index = 0; index < ropes_.size(); ++index) {
    const Buffers& buffers = buffers_[index];
    const RopeAngles angles{positions_.device<int32_t>(),        buffers.sets.device<int32_t>(),
                            buffers.frequencies.device<float>(), static_cast<int>(ropes_[index].inv_freq.size()),
                            ropes_[index].attention_scaling,     axes_,
                            buffers.axes.as<int32_t>()};
    ops.rope_table(angles, rows, buffers.cosine.as<float>(), buffers.sine.as<float>());
  }
}

RopeTable RopeTables::table(int rope) const {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  return {buffers_[index].cosine.as<float>(), buffers_[index].sine.as<float>(),
          static_cast<int>(ropes_[index].inv_freq.size()), ropes_[index].is_interleaved};
}

}  // namespace turbomind
