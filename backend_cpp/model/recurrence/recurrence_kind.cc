#include "model/recurrence/recurrence_kind.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "kernels/head_linear.h"

namespace turbomind {

namespace {

constexpr float kLruScale = 8;  // c of Griffin (De et al., 2024)

struct GatedDelta : RecurrenceRule {
  using RecurrenceRule::RecurrenceRule;
  bool has_delta() const override { return true; }
  void load(const Tensors& tensors, RecurrenceWeights& weights) const override {
    const Slice rows = Slice::joined({tensors.heads, tensors.heads});
    weights.gates = tensors.linear("gates", rows, tensors.hidden, config.bias);
  }
  std::vector<int> workspaces() const override { return {2 * config.num_heads}; }
  RecurrenceGates gates(const StepContext& step, const RecurrenceWeights& weights, const float* x,
                        const RecurrenceRows& rows) const override {
    auto* made = rows.buffers[0].as<float>();
    step.linear(weights.gates, x, made, false);
    const auto width = static_cast<size_t>(2 * config.num_heads);
    return {{}, {made, width}, {made + config.num_heads, width}};
  }
};

// Decays [heads, key_dim] and the gate of what comes out are made through vectors of gate_rank, or by one layer each.
struct KimiDelta : RecurrenceRule {
  explicit KimiDelta(const RecurrenceSpec& spec) : RecurrenceRule(spec) {
    if (config.num_key_heads != config.num_heads) throw invalid_argument("recurrence.num_key_heads of kimi_delta");
  }
  bool has_delta() const override { return true; }
  int decay_width() const override { return config.key_dim; }
  Slice inputs(const Slice& keys, const Slice& values, const Slice&) const override {
    return Slice::joined({keys, keys, values});
  }
  void load(const Tensors& tensors, RecurrenceWeights& weights) const override {
    weights.gates = tensors.linear("gates", tensors.heads, tensors.hidden, config.bias);
    const int rank = config.gate_rank;
    const auto add = [&](const char* name, const Slice& outputs, int inputs) {
      weights.further.push_back(tensors.linear(name, outputs, inputs));
    };
    if (rank > 0) add("decay_down", rank, tensors.hidden);
    add("decay_up", tensors.keys, rank > 0 ? rank : tensors.hidden);
    if (rank > 0) add("gate_down", rank, tensors.hidden);
    add("gate_up", tensors.values, rank > 0 ? rank : tensors.hidden);
  }
  std::vector<int> workspaces() const override { return {config.num_heads, config.gate_rank, values()}; }
  RecurrenceGates gates(const StepContext& step, const RecurrenceWeights& weights, const float* x,
                        const RecurrenceRows& rows) const override {
    auto* writes = rows.buffers[0].as<float>();
    auto* low = rows.buffers[1].as<float>();
    auto* decays = rows.decays.as<float>();
    step.linear(weights.gates, x, writes, false);
    auto layer = weights.further.begin();
    for (float* made : {decays, rows.buffers[2].as<float>()}) {
      const float* from = x;
      if (config.gate_rank > 0) {
        step.linear(*layer++, x, low, false);
        from = low;
      }
      step.linear(*layer++, from, made, false);
    }
    const auto heads = static_cast<size_t>(config.num_heads);
    return {{}, {decays, heads * static_cast<size_t>(config.key_dim)}, {writes, heads}};
  }
  StridedRows output_gate(const RecurrenceRows& rows) const override {
    return {rows.buffers[2].as<float>(), static_cast<size_t>(values())};
  }
};

// The lengths of steps are the last rows of `in`.
struct Mamba2 : RecurrenceRule {
  using RecurrenceRule::RecurrenceRule;
  Slice inputs(const Slice& keys, const Slice& values, const Slice& heads) const override {
    return Slice::joined({keys, keys, values, values, heads});
  }
  void load(const Tensors& tensors, RecurrenceWeights& weights) const override {
    weights.skip = tensors.read.vector(tensors.prefix + "skip", tensors.heads);
  }
  RecurrenceGates gates(const StepContext& step, const RecurrenceWeights&, const float*,
                        const RecurrenceRows& rows) const override {
    const StridedRows lengths = rows.from(channels() + values());
    step.ops.scale(config.step_scale, rows_view(lengths.first, step.rows, config.num_heads, lengths.stride));
    const float max_dt = config.max_step > 0 ? config.max_step : std::numeric_limits<float>::infinity();
    return {{.kind = RecurrenceGate::kMamba, .dt_min = config.min_step, .dt_max = max_dt}, lengths, {}};
  }
};

// Steps come out of vectors of gate_rank.
struct Mamba : RecurrenceRule {
  explicit Mamba(const RecurrenceSpec& spec) : RecurrenceRule(spec) {
    if (config.gate_rank > 0 && config.key_dim <= kMaxScanKeyDim) return;
    throw invalid_argument("recurrence.gate_rank and key_dim do not fit mamba");
  }
  int channels() const override { return values(); }
  bool is_selective() const override { return true; }
  Slice inputs(const Slice&, const Slice& values, const Slice&) const override {
    return Slice::joined({values, values});
  }
  void load(const Tensors& tensors, RecurrenceWeights& weights) const override {
    const int size = tensors.values.size();
    weights.further.push_back(tensors.linear("step_down", config.gate_rank, tensors.values));
    weights.further.push_back(tensors.linear("step_up", tensors.values, config.gate_rank, true));
    weights.further.push_back(tensors.linear("keys_queries", 2 * config.key_dim, tensors.values));
    weights.skip = tensors.read.vector(tensors.prefix + "skip", tensors.values);
    const LinearStorage logs =
        tensors.read.matrix(tensors.prefix + "a_log", tensors.values, config.key_dim, DType::kFloat32);
    weights.rates = AlignedBuffer(static_cast<size_t>(size) * static_cast<size_t>(config.key_dim) * sizeof(float));
    for (int i = 0; i < size * config.key_dim; ++i) {
      weights.rates.as<float>()[i % config.key_dim * size + i / config.key_dim] = -std::exp(logs.data.as<float>()[i]);
    }
  }
  std::vector<int> workspaces() const override { return {config.gate_rank, values(), 2 * config.key_dim}; }
  SelectiveScan scan(const StepContext& step, const RecurrenceWeights& weights, const float* values,
                     const RecurrenceRows& rows) const override {
    auto* low = rows.buffers[0].as<float>();
    auto* steps = rows.buffers[1].as<float>();
    auto* pairs = rows.buffers[2].as<float>();
    const auto stride = static_cast<size_t>(2 * config.key_dim);
    step.linear(weights.further[0], values, low, false);
    step.linear(weights.further[2], values, pairs, false);
    if (config.norm != RecurrenceNorm::kNone) {
      NormWeight norm = weights.norm.view;
      step.ops.norm_heads(norm, rows_view(low, step.rows, config.gate_rank));
      norm.weight += config.gate_rank;
      step.ops.norm_heads(norm, rows_view(pairs, step.rows, config.key_dim, stride));
      norm.weight += config.key_dim;
      step.ops.norm_heads(norm, rows_view(pairs + config.key_dim, step.rows, config.key_dim, stride));
    }
    step.linear(weights.further[1], low, steps, false);
    return {.state = {},
            .channels = channels(),
            .key_dim = config.key_dim,
            .rates = weights.rates.as<float>(),
            .skip = weights.skip.as<float>(),
            .steps = steps,
            .keys = {pairs, stride},
            .queries = {pairs + config.key_dim, stride},
            .x = values,
            .out = nullptr};
  }
};

// Each head's gates come out of its values by matrices of its own.
struct RgLru : RecurrenceRule {
  using RecurrenceRule::RecurrenceRule;
  int channels() const override { return values(); }
  bool is_lru() const override { return true; }
  Slice inputs(const Slice&, const Slice& values, const Slice&) const override {
    return Slice::joined({values, values});
  }
  void load(const Tensors& tensors, RecurrenceWeights& weights) const override {
    const auto size = static_cast<size_t>(tensors.values.size());
    weights.rates = tensors.read.vector(tensors.prefix + "rates", tensors.values);
    for (float* rate = weights.rates.as<float>(); rate < weights.rates.as<float>() + size; ++rate) {
      *rate = -kLruScale * (std::max(*rate, 0.0f) + std::log1p(std::exp(-std::abs(*rate))));
    }
    weights.biases = AlignedBuffer(2 * size * sizeof(float));
    auto* biases = weights.biases.as<float>();
    for (const char* name : {"input_gate", "decay_gate"}) {
      const std::string gate = tensors.prefix + name;
      weights.further.push_back(
          tensors.read.matrix(gate + ".weight", tensors.values, config.value_dim, tensors.read.options().dtype));
      biases = std::copy_n(tensors.read.vector(gate + ".bias", tensors.values).as<float>(), size, biases);
    }
  }
  std::vector<int> workspaces() const override { return {values(), values()}; }
  GatedLru lru(const StepContext& step, const RecurrenceWeights& weights, const float* x,
               const RecurrenceRows& rows) const override {
    const auto width = static_cast<size_t>(values());
    const auto dim = static_cast<size_t>(config.value_dim);
    const auto heads = [&](const float* first) {
      return HeadsView{const_cast<float*>(first), step.rows, width, config.num_heads, dim, config.value_dim};
    };
    const auto head_linear = step.ops.operations().require<HeadLinear>();
    for (size_t gate = 0; gate < 2; ++gate) {
      head_linear(step.ops, {weights.further[gate].view, heads(x), heads(rows.buffers[gate].as<float>())});
    }
    return {.state = {},
            .channels = values(),
            .rates = weights.rates.as<float>(),
            .biases = weights.biases.as<float>(),
            .inputs = rows.buffers[0].as<float>(),
            .decays = rows.buffers[1].as<float>(),
            .x = x,
            .out = nullptr};
  }
};

struct Lightning : RecurrenceRule {
  using RecurrenceRule::RecurrenceRule;
  std::vector<float> constant_decays(int layer) const override {
    std::vector<float> decays;
    for (const float slope : config.slopes) {
      decays.push_back(std::exp(-slope * config.slope_factors[static_cast<size_t>(layer)]));
    }
    return decays;
  }
};

// Values, their gate and the gate of what comes out.
struct ShortConvolution : RecurrenceRule {
  using RecurrenceRule::RecurrenceRule;
  int keys() const override { return 0; }
  Slice inputs(const Slice&, const Slice& values, const Slice&) const override {
    return Slice::joined({values, values, values});
  }
  StridedRows output_gate(const RecurrenceRows& rows) const override { return rows.from(2 * values()); }
};

// A convolution is linear in its inputs: their factors are as well its taps'. One with one tap, 1, leaves the
// activation alone.
AlignedBuffer read_taps(const RecurrenceSpec& config, const RecurrenceRule::Tensors& tensors, const Slice& channels,
                        bool has_keys) {
  AlignedBuffer taps(static_cast<size_t>(channels.size()) * sizeof(float));
  std::fill_n(taps.as<float>(), channels.size(), 1.0f);
  if (config.conv_kernel > 1) {
    taps = tensors.read.matrix(tensors.prefix + "conv", channels, config.conv_kernel, DType::kFloat32).data;
  }
  float* tap = taps.as<float>();
  for (const auto& [part, scale] :
       {std::pair(&tensors.keys, config.query_scale), std::pair(&tensors.keys, config.key_scale),
        std::pair(&tensors.values, config.value_scale)}) {
    if (!has_keys) break;
    for (float* end = tap + static_cast<size_t>(part->size()) * config.conv_kernel; tap < end; ++tap) *tap *= scale;
  }
  return taps;
}

}  // namespace

std::unique_ptr<RecurrenceRule> RecurrenceRule::make(const RecurrenceSpec& config) {
  switch (config.kind) {
    case RecurrenceKind::kGatedDelta:
      return std::make_unique<GatedDelta>(config);
    case RecurrenceKind::kKimiDelta:
      return std::make_unique<KimiDelta>(config);
    case RecurrenceKind::kMamba:
      return std::make_unique<Mamba>(config);
    case RecurrenceKind::kMamba2:
      return std::make_unique<Mamba2>(config);
    case RecurrenceKind::kRgLru:
      return std::make_unique<RgLru>(config);
    case RecurrenceKind::kLightning:
      return std::make_unique<Lightning>(config);
    case RecurrenceKind::kShortConvolution:
      return std::make_unique<ShortConvolution>(config);
  }
  return nullptr;
}

RecurrenceWeights RecurrenceWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix) {
  const ModelSpec& spec = shard.spec;
  const RecurrenceSpec& config = *spec.recurrence;
  const std::unique_ptr<RecurrenceRule> rule = RecurrenceRule::make(config);
  const Slice& heads = shard.state_heads;
  const RecurrenceRule::Tensors tensors{read,
                                        prefix,
                                        spec.hidden_size,
                                        heads,
                                        shard.state_key_heads.times(config.key_dim),
                                        heads.times(config.value_dim)};
  const auto& [keys, values] = std::tie(tensors.keys, tensors.values);
  const bool has_keys = rule->channels() > rule->values();
  const Slice channels = has_keys ? Slice::joined({keys, keys, values}) : values;
  RecurrenceWeights weights;
  rule->load(tensors, weights);
  weights.in = tensors.linear("in", rule->inputs(keys, values, heads), spec.hidden_size, config.bias);
  weights.conv = read_taps(config, tensors, channels, has_keys);
  if (config.conv_bias) weights.conv_bias = read.vector(prefix + "conv_bias", channels);
  if (rule->has_gates()) {
    weights.a_log = read.vector(prefix + "a_log", heads);
    weights.dt_bias = read.vector(prefix + "dt_bias", heads.times(rule->decay_width()));
  }
  if (config.norm != RecurrenceNorm::kNone) {
    Slice size = shares_norm(shard) ? Slice(values.whole()) : values;
    if (config.norm == RecurrenceNorm::kHead) size = config.value_dim;
    if (rule->is_selective()) size = config.gate_rank + 2 * config.key_dim;
    const float eps = config.norm_eps > 0 ? config.norm_eps : spec.norm.eps;
    if (config.norm == RecurrenceNorm::kPlainInputs) {
      weights.norm.weight = AlignedBuffer(static_cast<size_t>(size.size()) * sizeof(float));
      std::fill_n(weights.norm.weight.as<float>(), size.size(), 1.0f);
      weights.norm.view = {.eps = eps, .weight = weights.norm.weight.as<float>()};
    } else {
      weights.norm = NormStorage::load(read, prefix + "norm", size, {eps}, false);
    }
  }
  weights.out = tensors.linear("out", spec.hidden_size, values, config.bias);
  return weights;
}

}  // namespace turbomind
