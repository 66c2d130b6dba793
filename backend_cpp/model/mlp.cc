#include "model/mlp.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace turbomind {

DenseMlp::DenseMlp(Operators& ops, const ModelSpec& spec, int max_tokens)
    : spec_(spec.mlp),
      activation_sparsity_(spec.mlp.cuts.empty() ? nullptr : ops.operations().require<ActivationSparsity>()),
      xielu_(spec.mlp.is_xielu ? ops.operations().require<Xielu>() : nullptr),
      projected_(ops, max_tokens, (spec.mlp.is_gated ? 2 : 1) * spec.intermediate_size),
      activated_(ops, max_tokens, spec.intermediate_size) {}

void DenseMlp::run(const StepContext& step, const MlpWeights& weights, const LinearInput& x, float* y,
                   bool accumulate) {
  const GatedMlp mlp{weights.up.view, spec_.activation, weights.down.view, projected_, activated_};
  const bool has_factors = spec_.gate_scale != 1 || spec_.up_scale != 1;
  const bool is_unmodified = step.adapters == nullptr && weights.up.for_images.empty();
  if (spec_.is_gated && is_unmodified && !has_factors && weights.cut == 0) {
    return step.ops.gated_mlp(mlp, x, step.rows, y, accumulate);
  }
  step.linear(weights.up, x, projected_, false);
  if (has_factors) {
    const int size = weights.down.view.in_features;
    const auto width = static_cast<size_t>(2 * size);
    step.ops.scale(spec_.gate_scale, rows_view(projected_, step.rows, size, width));
    step.ops.scale(spec_.up_scale, rows_view(projected_ + size, step.rows, size, width));
  }
  if (weights.cut != 0) {
    const int size = weights.down.view.in_features;
    activation_sparsity_(step.ops, {weights.cut, step.rows, size, static_cast<size_t>(2 * size), projected_});
  }
  if (spec_.is_gated) return step.linear(weights.down, mlp.between(), y, accumulate);
  const int size = weights.down.view.in_features;
  if (spec_.is_xielu) {
    xielu_(step.ops, {weights.xielu, projected_, step.rows, size, activated_});
  } else {
    step.ops.activate(spec_.activation, projected_, step.rows, size, activated_);
  }
  step.linear(weights.down, activated_, y, accumulate);
}

namespace {

std::vector<int32_t> read_token_experts(const ModelSpec& spec, const WeightReader& read, const std::string& name) {
  const int top_k = spec.moe->experts_per_token;
  const LinearStorage table = read.matrix(name, spec.vocab_size, top_k, DType::kFloat32);
  std::vector<int32_t> experts(static_cast<size_t>(spec.vocab_size) * static_cast<size_t>(top_k));
  if (read.options().only_sizes) return experts;
  std::transform(table.data.as<float>(), table.data.as<float>() + experts.size(), experts.begin(), [&](float number) {
    if (number >= 0 && number < static_cast<float>(spec.moe->num_experts)) return static_cast<int32_t>(number);
    throw invalid_argument(name + " has an expert that is not there: " + std::to_string(number));
  });
  return experts;
}

}  // namespace

ExpertWeights ExpertWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix, int layer) {
  const ModelSpec& spec = shard.spec;
  const MoeSpec& moe = *spec.moe;
  const int hidden = spec.hidden_size;
  const DType dtype = read.options().dtype;
  ExpertWeights weights;
  weights.arena = WeightArena(read.options().only_sizes);
  const int inner = moe.latent_size > 0 ? moe.latent_size : hidden;
  const auto expert = [&](const std::string& name, const Slice& divided, int hidden) {
    const bool bias = spec.mlp.bias;
    const Slice channels = read.as_stored(name + ".down", hidden, divided);
    return ExpertWeight{
        weights.arena.add(spec.mlp.is_gated
                              ? read.linear(name + ".gate_up", Slice::joined({channels, channels}), hidden, bias)
                              : read.linear(name + ".up", channels, hidden, bias)),
        weights.arena.add(read.linear(name + ".down", hidden, channels, bias))};
  };
  weights.router = read.matrix(prefix + "router.weight", moe.num_experts, hidden, dtype);
  if (moe.router.bias) {
    weights.router.bias = read.vector(prefix + "router.bias", moe.num_experts);
    weights.router.view.bias = weights.router.bias.as<float>();
  }
  if (moe.router.has_input_norm) {
    weights.router_norm = NormStorage::load(read, prefix + "router_norm", hidden, spec.norm, spec.norm.bias);
    const float scale = 1 / std::sqrt(static_cast<float>(hidden));
    for (int i = 0; i < hidden; ++i) weights.router_norm.weight.as<float>()[i] *= scale;
  }
  if (moe.router.has_expert_scale) weights.scales = read.vector(prefix + "router.scales", moe.num_experts);
  if (routes_by_token(spec, layer)) {
    weights.token_experts = read_token_experts(spec, read, prefix + "router.token_experts");
  } else if (moe.router.has_correction) {
    weights.correction = read.vector(prefix + "router.correction", moe.num_experts);
  }
  for (int e = 0; e < moe.num_experts; ++e) {
    weights.experts.push_back(expert(prefix + "experts." + std::to_string(e), shard.expert_channels, inner));
  }
  if (moe.shared_intermediate_size > 0) {
    weights.shared.push_back(expert(prefix + "shared", shard.shared_channels, hidden));
  }
  if (moe.latent_size > 0) {
    weights.latent_in = read.linear(prefix + "latent_in", inner, hidden, false);
    weights.latent_out = read.linear(prefix + "latent_out", hidden, inner, false);
  }
  if (moe.has_shared_gate) weights.shared_gate = read.matrix(prefix + "shared_gate.weight", 1, hidden, dtype);
  return weights;
}

ExpertMlp::ExpertMlp(Operators& ops, const ModelSpec& spec, int max_tokens)
    : moe_(spec.moe.value_or(MoeSpec{})), activation_(spec.mlp.activation) {
  if (!spec.moe) return;
  if (moe_.router.has_input_norm) router_rows_ = FloatRows(ops, max_tokens, spec.hidden_size);
  logits_ = FloatRows(ops, max_tokens, moe_.num_experts);
  chosen_ = float_buffer(ops, max_tokens, moe_.experts_per_token);
  shares_ = FloatRows(ops, max_tokens, moe_.experts_per_token);
  const std::vector<float> ones(static_cast<size_t>(max_tokens), 1.0f);
  if (moe_.router.scales_input) {
    scaled_ = FloatRows(ops, max_tokens, spec.hidden_size);
    ones_ = FloatRows(uploaded(ops, ones));
  }
  if (moe_.latent_size > 0) {
    latent_ = FloatRows(ops, max_tokens, moe_.latent_size);
    latent_sum_ = FloatRows(ops, max_tokens, moe_.latent_size);
  }
  if (moe_.shared_intermediate_size == 0) return;
  first_expert_ = float_buffer(ops, max_tokens, 1);
  ops.fill_zero(first_expert_.as<void>(), first_expert_.size());
  shared_gate_ = FloatRows(uploaded(ops, ones));
}

void ExpertMlp::run(const StepContext& step, const ExpertWeights& weights, int layer, const int32_t* tokens,
                    const float* x, const float* stream, float* y, bool accumulate) {
  Operators& ops = step.ops;
  const auto activation = [&](const std::vector<Activation>& of_layers) {
    return of_layers.empty() ? activation_ : of_layers[static_cast<size_t>(layer)];
  };
  if (!accumulate) {
    ops.fill_zero(y, static_cast<size_t>(step.rows) * weights.router.view.in_features * sizeof(float));
  }
  const float* read = x;
  if (moe_.router.has_input_norm) {
    ops.norm(weights.router_norm.view, stream, step.rows, weights.router.view.in_features, router_rows_);
    read = router_rows_;
  }
  ops.linear(weights.router.view, read, step.rows, logits_, false);
  const RouterParams params{.num_experts = moe_.num_experts,
                            .top_k = moe_.experts_per_token,
                            .score = moe_.router.score,
                            .mixer_jitter = moe_.router.jitter,
                            .num_groups = moe_.router.groups,
                            .top_groups = moe_.router.top_groups,
                            .group_score = moe_.router.group_score,
                            .choice_bias = weights.correction.as<float>(),
                            .normalize = moe_.router.normalizes,
                            .scale = moe_.router.scale,
                            .expert_scales = weights.scales.as<float>(),
                            .token_experts = weights.token_experts.empty() ? nullptr : weights.token_experts.data(),
                            .tokens = tokens};
  ops.route(params, logits_, step.rows, chosen_.as<int32_t>(), shares_);
  const float* inputs = x;
  const float* shares = shares_;
  if (moe_.router.scales_input) {
    const auto size = static_cast<size_t>(weights.router.view.in_features);
    ops.copy(x, step.rows * size * sizeof(float), scaled_);
    ops.scale_rows(shares, rows_view(scaled_, step.rows, static_cast<int>(size)));
    inputs = scaled_;
    shares = ones_;
  }
  float* sum = y;
  if (moe_.latent_size > 0) {
    ops.linear(weights.latent_in.view, x, step.rows, latent_, false);
    ops.fill_zero(latent_sum_, static_cast<size_t>(step.rows) * moe_.latent_size * sizeof(float));
    inputs = latent_;
    sum = latent_sum_;
  }
  ops.add_experts(activation(moe_.activations), weights.experts, inputs, step.rows, params.top_k, chosen_.as<int32_t>(),
                  shares, sum);
  if (moe_.latent_size > 0) ops.linear(weights.latent_out.view, latent_sum_, step.rows, y, true);
  if (weights.shared.empty()) return;

  if (moe_.has_shared_gate) {
    ops.linear(weights.shared_gate.view, x, step.rows, shared_gate_, false);
    ops.apply({Pointwise::Kind::kSigmoid}, rows_view(shared_gate_, 1, step.rows));
  }
  ops.add_experts(activation(moe_.shared_activations), weights.shared, x, step.rows, 1, first_expert_.as<int32_t>(),
                  shared_gate_, y);
}

}  // namespace turbomind
