#include "model/recurrence/recurrent_mixer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace turbomind {

namespace {

constexpr size_t kAlignment = 64;    // of the two parts of a piece
constexpr float kLengthEps = 1e-6F;  // added to the square of the length that queries and keys are divided by

// Of `rows` float32 rows.
size_t aligned_bytes(int rows, int width) {
  const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Activation activation_of(GateKind gate) {
  if (gate == GateKind::kLinear) return Activation::kLinear;
  if (gate == GateKind::kGeluTanh) return Activation::kGeluTanh;
  return gate == GateKind::kSilu ? Activation::kSilu : Activation::kSigmoid;
}

AlignedBuffer filled(Operators& ops, int size, float value) {
  return uploaded(ops, std::vector<float>(static_cast<size_t>(size), value));
}

// `count` heads of rows, side by side.
HeadsView heads(const StridedRows& rows, int count, int head_dim) {
  return {rows.first, 0, rows.stride, count, static_cast<size_t>(head_dim), head_dim};
}

}  // namespace

RecurrentMixer::RecurrentMixer(Operators& ops, const Shard& shard, int max_tokens)
    : convolve_(ops.operations().require<CausalConv>()),
      compute_gates_(ops.operations().require<RecurrenceGates>()),
      recur_(ops.operations().require<Recurrence>()),
      scan_(ops.operations().require<SelectiveScan>()),
      lru_(ops.operations().require<GatedLru>()),
      rule_(RecurrenceRule::make(*shard.spec.recurrence)),
      config_(rule_->config),
      values_(rule_->values()),
      rank_(shard.rank),
      ranks_that_share_norm_(shares_norm(shard) ? shard.count : 1),
      conv_bytes_(aligned_bytes(config_.conv_kernel - 1, rule_->channels())),
      piece_of_(shard.spec.layer_mixers.size(), -1),
      max_tokens_(max_tokens),
      mixed_(ops, max_tokens, rule_->channels()),
      outputs_(ops, max_tokens, values_),
      parts_(ops, ranks_that_share_norm_ > 1 ? max_tokens : 0, ranks_that_share_norm_ * values_),
      whole_rows_(ops, ranks_that_share_norm_ > 1 ? max_tokens : 0, ranks_that_share_norm_ * values_),
      // Of a vector whose mean square is 1, the length is the root of its size.
      query_scale_(filled(ops, config_.key_dim, 1 / static_cast<float>(config_.key_dim))),
      key_scale_(filled(ops, config_.key_dim, 1 / std::sqrt(static_cast<float>(config_.key_dim)))) {
  const int width = rule_->inputs(rule_->keys(), values_, config_.num_heads).size();
  rows_.input_width = static_cast<size_t>(width);
  rows_.inputs = float_buffer(ops, max_tokens, width);
  rows_.decays = float_buffer(ops, max_tokens, config_.num_heads * rule_->decay_width());
  rows_.writes = float_buffer(ops, max_tokens, config_.num_heads);
  for (const int size : rule_->workspaces()) rows_.buffers.push_back(float_buffer(ops, max_tokens, size));
  group_.kind = MemoryKind::kState;
  group_.piece_bytes = conv_bytes_ + (rule_->keys() > 0 ? aligned_bytes(values_, config_.key_dim) : 0);
  for (int layer = 0; layer < shard.spec.num_layers; ++layer) {
    if (!has_recurrence(shard.spec, layer)) continue;
    piece_of_[static_cast<size_t>(layer)] = group_.pieces++;
    group_.layers.push_back(layer);
    const std::vector<float> decays = rule_->constant_decays(layer);
    if (!decays.empty()) constant_decays_.push_back(uploaded(ops, decays));
  }
  if (const auto& ngrams = shard.spec.ngrams) {
    first_ngram_piece_ = group_.pieces;
    group_.pieces += static_cast<int>(ngrams->layers.size());
    group_.layers.insert(group_.layers.end(), ngrams->layers.begin(), ngrams->layers.end());
    const int channels = shard.spec.hyper_connections->count * shard.spec.hidden_size;
    const size_t bytes = ngram_context_bytes(*ngrams) + aligned_bytes(conv_reach(*ngrams) - 1, channels);
    group_.piece_bytes = std::max(group_.piece_bytes, bytes);
  }
}

size_t RecurrentMixer::use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) {
  group_ = plan.groups.at(first_group);
  pages_ = pages;
  page_bytes_ = plan.page_bytes;
  spans_ = Staged(ops, static_cast<size_t>(group_.pages) * static_cast<size_t>(max_tokens_) * sizeof(StateSpan));
  return 1;
}

void RecurrentMixer::begin_step(Operators& ops, const StepInput& input) {
  const auto spans_of_page = static_cast<size_t>(max_tokens_);
  auto* spans = spans_.host<StateSpan>();
  std::fill_n(spans, static_cast<size_t>(group_.pages) * spans_of_page, StateSpan{});
  for (int page = 0; page < group_.pages; ++page) {
    StateSpan* next = spans + static_cast<size_t>(page) * spans_of_page;
    for (const StepSpan& span : input.spans) {
      const int32_t number = (*span.tables)[static_cast<size_t>(group_.first_table + page)].front();
      *next++ = {span.first_token, span.count, number, span.first_position == 0 ? 1 : 0};
    }
  }
  span_count_ = static_cast<int>(input.spans.size());
  spans_.upload(ops, spans_.size());
}

StateMemory RecurrentMixer::piece_memory(const StepContext& step, int piece, size_t offset) const {
  const auto page = static_cast<size_t>(piece / group_.page_pieces);
  return {.pages = pages_,
          .page_bytes = page_bytes_,
          .offset = static_cast<size_t>(piece % group_.page_pieces) * group_.piece_bytes + offset,
          .spans = spans_.device<StateSpan>() + page * static_cast<size_t>(max_tokens_),
          // A step that is done again may have as many sequences as rows.
          .span_count = step.ops.shares_host_memory() ? span_count_ : step.rows};
}

void RecurrentMixer::compile(Program& program, int layer, const RecurrenceWeights& weights, const Source& source,
                             const Target& y) {
  const Source x = program.made(source);
  const float* rows = x.rows.x.floats();
  const bool has_matrix = rule_->keys() > 0;
  program.add("inputs = in(" + x.name + ")", [this, &weights, rows](ModelStep& step) {
    step.linear(weights.in, rows, rows_.inputs.as<float>(), false);
  });
  if (!has_matrix) compile_gate(program, "inputs *= gate(inputs)", rows_.from(values_), rows_.from(0));
  program.add(std::string(has_matrix ? "queries, keys, values" : "outputs") + " = convolve(inputs)",
              [this, layer, &weights](ModelStep& step) { convolve(step, layer, weights); });
  if (rule_->has_gates()) {
    program.add("decays, writes = gates(" + x.name + ")",
                [this, &weights, rows](ModelStep& step) { compute_gates(step, weights, rows); });
  }
  if (has_matrix) {
    program.add("outputs, state = recur(queries, keys, values, state)",
                [this, layer, &weights](ModelStep& step) { recur(step, layer, weights); });
  }
  const StridedRows gate = rule_->output_gate(rows_);
  if (config_.gate_scale != 1) {
    program.add(
        "gate *= " + std::to_string(config_.gate_scale),
        [this, gate = heads(gate, 1, values_)](ModelStep& step) { step.ops.scale(config_.gate_scale, step.of(gate)); });
  }
  if (config_.norms_gated) compile_gate(program, "outputs *= gate", gate, outputs());
  compile_norm(program, weights);
  if (!config_.norms_gated) compile_gate(program, "outputs *= gate", gate, outputs());
  if (config_.output_scale != 1) {
    program.add("outputs *= " + std::to_string(config_.output_scale), [this](ModelStep& step) {
      step.ops.scale_softcap(config_.output_scale, 0, step.rows, values_, outputs_);
    });
  }
  program.add(y.is() + "out(outputs)",
              [this, &weights, y](ModelStep& step) { step.linear(weights.out, outputs_, y.rows.data, y.accumulates); });
}

// Of the first numbers of a row of inputs.
void RecurrentMixer::convolve(const StepContext& step, int layer, const RecurrenceWeights& weights) {
  const bool has_matrix = rule_->keys() > 0;
  const ConvParams params{memory(step, layer, 0),        rule_->channels(),
                          config_.conv_kernel,           weights.conv.as<float>(),
                          weights.conv_bias.as<float>(), has_matrix && !rule_->is_lru()};
  auto* made = (has_matrix ? mixed_ : outputs_).as<float>();
  convolve_(step.ops, {params, rows_.from(0), step.rows, {made, static_cast<size_t>(params.channels)}});
}

void RecurrentMixer::compute_gates(const StepContext& step, const RecurrenceWeights& weights, const float* rows) {
  RecurrenceGates gates = rule_->gates(step, weights, rows, rows_);
  gates.params.heads = config_.num_heads;
  gates.params.width = rule_->decay_width();
  gates.params.bound = config_.decay_bound;
  gates.params.a_log = weights.a_log.as<float>();
  gates.params.dt_bias = weights.dt_bias.as<float>();
  gates.rows = step.rows;
  gates.decay = rows_.decays.as<float>();
  gates.beta = rows_.writes.as<float>();
  compute_gates_(step.ops, gates);
  if (config_.write_scale != 1)
    step.ops.scale_softcap(config_.write_scale, 0, step.rows, config_.num_heads, gates.beta);
}

void RecurrentMixer::recur(const StepContext& step, int layer, const RecurrenceWeights& weights) {
  if (rule_->is_lru()) {
    GatedLru lru = rule_->lru(step, weights, mixed_, rows_);
    lru.state = memory(step, layer, conv_bytes_);
    lru.out = outputs_;
    return lru_(step.ops, lru);
  }
  if (rule_->is_selective()) {
    SelectiveScan scan = rule_->scan(step, weights, mixed_, rows_);
    scan.state = memory(step, layer, conv_bytes_);
    scan.out = outputs_;
    return scan_(step.ops, scan);
  }
  const auto part = [&](int first, int count, int head_dim) {
    const auto width = static_cast<size_t>(rule_->channels());
    return step.of(heads({mixed_ + first, width}, count, head_dim));
  };
  const HeadsView q = part(0, config_.num_key_heads, config_.key_dim);
  const HeadsView k = part(rule_->keys(), config_.num_key_heads, config_.key_dim);
  const HeadsView v = part(2 * rule_->keys(), config_.num_heads, config_.value_dim);
  RecurrenceParams params{.state = memory(step, layer, conv_bytes_),
                          .heads = config_.num_heads,
                          .key_heads = config_.num_key_heads,
                          .key_dim = config_.key_dim,
                          .value_dim = config_.value_dim,
                          .has_delta = rule_->has_delta(),
                          .skip = weights.skip.as<float>()};
  if (!constant_decays_.empty()) {
    params.decay = constant_decays_[static_cast<size_t>(piece_of_[static_cast<size_t>(layer)])].as<float>();
  } else {
    params.decay = rows_.decays.as<float>();
    params.decay_width = rule_->decay_width();
    params.beta = rows_.writes.as<float>();
  }
  if (params.has_delta) {
    const float eps = kLengthEps / static_cast<float>(config_.key_dim);
    step.ops.norm_heads({NormKind::kRms, eps, query_scale_.as<float>(), nullptr}, q);
    step.ops.norm_heads({NormKind::kRms, eps, key_scale_.as<float>(), nullptr}, k);
  }
  recur_(step.ops, {params, q, k, v, outputs_});
}

// Of rows of values.
void RecurrentMixer::compile_gate(Program& program, const std::string& text, const StridedRows& gate,
                                  const StridedRows& rows) {
  program.add(text, [this, gate = heads(gate, 1, values_), rows = heads(rows, 1, values_)](ModelStep& step) {
    step.ops.gate_heads(activation_of(config_.gate), step.of(gate), step.of(rows));
  });
}

void RecurrentMixer::compile_norm(Program& program, const RecurrenceWeights& weights) {
  if (config_.norm == RecurrenceNorm::kHead) {
    program.add("outputs = norm(outputs), of each head", [this, &weights](ModelStep& step) {
      step.ops.norm_heads(weights.norm.view, step.of(heads(outputs(), config_.num_heads, config_.value_dim)));
    });
  } else if (config_.norm == RecurrenceNorm::kGroups) {
    program.add("outputs = norm(outputs), of each group", [this, &weights](ModelStep& step) {
      if (ranks_that_share_norm_ > 1) return norm_over_ranks(step, weights);
      norm_groups(step, weights, outputs());
    });
  }
}

void RecurrentMixer::norm_groups(const StepContext& step, const RecurrenceWeights& weights, const StridedRows& rows) {
  const int size = static_cast<int>(rows.stride) / config_.norm_groups;
  for (int group = 0; group < config_.norm_groups; ++group) {
    NormWeight norm = weights.norm.view;
    norm.weight += static_cast<size_t>(group) * static_cast<size_t>(size);
    step.ops.norm_heads(norm, step.of(heads({rows.first + group * size, rows.stride}, 1, size)));
  }
}

// Each rank makes the norms of whole rows, and keeps its own part of them.
void RecurrentMixer::norm_over_ranks(const StepContext& step, const RecurrenceWeights& weights) {
  const auto width = static_cast<size_t>(values_);
  const size_t count = static_cast<size_t>(step.rows) * width;
  const StridedRows whole{whole_rows_, static_cast<size_t>(ranks_that_share_norm_) * width};
  const HeadsView local_outputs = step.of(heads(outputs(), 1, values_));
  step.ops.copy_heads(local_outputs, {parts_ + static_cast<size_t>(rank_) * count, step.rows, width, 1, 0, values_});
  if (step.has_barriers) step.ops.all_gather(parts_, count);
  step.ops.copy_heads({parts_, step.rows, width, ranks_that_share_norm_, count, values_},
                      step.of(heads(whole, ranks_that_share_norm_, values_)));
  norm_groups(step, weights, whole);
  step.ops.copy_heads(step.of(heads({whole.first + rank_ * values_, whole.stride}, 1, values_)), local_outputs);
}

}  // namespace turbomind
