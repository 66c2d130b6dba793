#include "model/expert_mlp.h"

#include <algorithm>
#include <cmath>

namespace turbomind {

ExpertWeights ExpertWeights::load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix) {
  const MoeSpec& moe = *spec.moe;
  const int hidden = spec.hidden_size;
  const DType dtype = read.options().dtype;
  ExpertWeights weights;
  const auto expert = [&](const std::string& name, int size) {
    const bool bias = spec.mlp.bias;
    return ExpertWeight{weights.arena.add(read.linear(name + ".gate_up", 2 * size, hidden, bias)),
                        weights.arena.add(read.linear(name + ".down", hidden, size, bias))};
  };
  weights.router = read.matrix(prefix + "router.weight", moe.num_experts, hidden, dtype);
  if (moe.router.bias) {
    weights.router.bias = read.vector(prefix + "router.bias", moe.num_experts);
    weights.router.view.bias = weights.router.bias.as<float>();
  }
  if (moe.router.has_correction) weights.correction = read.vector(prefix + "router.correction", moe.num_experts);
  for (int e = 0; e < moe.num_experts; ++e) {
    weights.experts.push_back(expert(prefix + "experts." + std::to_string(e), moe.intermediate_size));
  }
  if (moe.shared_intermediate_size > 0) {
    weights.shared.push_back(expert(prefix + "shared", moe.shared_intermediate_size));
  }
  if (moe.has_shared_gate) weights.shared_gate = read.matrix(prefix + "shared_gate.weight", 1, hidden, dtype);
  return weights;
}

ExpertMlp::ExpertMlp(const ModelSpec& spec) : moe_(spec.moe.value_or(MoeSpec{})), activation_(spec.mlp.activation) {}

void ExpertMlp::run(const StepContext& step, const ExpertWeights& weights, const float* x, float* y, bool accumulate) {
  const auto rows = static_cast<size_t>(step.rows);
  if (!accumulate) std::fill_n(y, rows * weights.router.view.in_features, 0.0f);
  logits_.resize(rows * moe_.num_experts);
  chosen_.resize(rows * moe_.experts_per_token);
  shares_.resize(rows * moe_.experts_per_token);
  linear(step.pool, step.scratch, weights.router.view, x, step.rows, logits_.data(), false);
  RouterParams params;
  params.num_experts = moe_.num_experts;
  params.top_k = moe_.experts_per_token;
  params.score = moe_.router.score;
  params.mixer_jitter = moe_.router.jitter;
  params.num_groups = moe_.router.groups;
  params.top_groups = moe_.router.top_groups;
  params.group_score = moe_.router.group_score;
  params.choice_bias = weights.correction.as<float>();
  params.normalize = moe_.router.normalizes;
  params.scale = moe_.router.scale;
  route(step.pool, params, logits_.data(), step.rows, chosen_.data(), shares_.data());
  add_experts(step.pool, step.scratch, scratch_, activation_, weights.experts, x, step.rows, params.top_k,
              chosen_.data(), shares_.data(), y);
  if (weights.shared.empty()) return;

  // One more expert, which every row goes to.
  chosen_.assign(rows, 0);
  shares_.assign(rows, 1.0f);
  if (moe_.has_shared_gate) {
    linear(step.pool, step.scratch, weights.shared_gate.view, x, step.rows, shares_.data(), false);
    for (float& share : shares_) share = 1.0f / (1.0f + std::exp(-share));
  }
  add_experts(step.pool, step.scratch, scratch_, activation_, weights.shared, x, step.rows, 1, chosen_.data(),
              shares_.data(), y);
}

}  // namespace turbomind
