#include "model/recurrence/recurrent_mixer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kAlignment = 64;    // of the two parts of a piece
constexpr float kLengthEps = 1e-6F;  // added to the square of the length that queries and keys are divided by

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t conv_bytes(const RecurrenceSpec& own) {
  return aligned(static_cast<size_t>(own.conv_kernel - 1) * static_cast<size_t>(channels_of(own)) * sizeof(float));
}

size_t matrix_bytes(const RecurrenceSpec& own) {
  if (own.kind == RecurrenceKind::kShortConvolution) return 0;
  return aligned(static_cast<size_t>(own.num_heads * own.value_dim) * static_cast<size_t>(own.key_dim) * sizeof(float));
}

// Numbers of a row of RecurrenceWeights::in.
int input_width(const RecurrenceSpec& own) {
  switch (own.kind) {
    case RecurrenceKind::kGatedDelta:
    case RecurrenceKind::kLightning:
      return channels_of(own) + values_of(own);
    case RecurrenceKind::kKimiDelta:
      return channels_of(own);
    case RecurrenceKind::kMamba2:
      return channels_of(own) + values_of(own) + own.num_heads;
    case RecurrenceKind::kShortConvolution:
      return 3 * values_of(own);
  }
  return 0;
}

// Decays of a head that differ from row to row.
int decay_width(const RecurrenceSpec& own) {
  return own.kind == RecurrenceKind::kKimiDelta ? own.key_dim : 1;
}

Activation activation_of(GateKind gate) {
  switch (gate) {
    case GateKind::kSigmoid:
      return Activation::kSigmoid;
    case GateKind::kSilu:
      return Activation::kSilu;
    case GateKind::kLinear:
      return Activation::kLinear;
  }
  return Activation::kLinear;
}

AlignedBuffer decays_of(Operators& ops, const RecurrenceSpec& own, int layer) {
  std::vector<float> decays;
  for (const float slope : own.slopes) {
    decays.push_back(std::exp(-slope * own.slope_factors[static_cast<size_t>(layer)]));
  }
  AlignedBuffer buffer = ops.allocate(decays.size() * sizeof(float));
  ops.upload(decays.data(), buffer.size(), buffer.as<void>());
  ops.wait();  // `decays` goes
  return buffer;
}

AlignedBuffer filled(Operators& ops, int size, float value) {
  const std::vector<float> values(static_cast<size_t>(size), value);
  AlignedBuffer buffer = ops.allocate(values.size() * sizeof(float));
  ops.upload(values.data(), buffer.size(), buffer.as<void>());
  return buffer;
}

}  // namespace

RecurrentMixer::RecurrentMixer(Operators& ops, const Shard& shard, int max_rows)
    : convolve_(ops.operations().require(kCausalConv)),
      compute_gates_(ops.operations().require(kRecurrenceGates)),
      recur_(ops.operations().require(kRecurrence)),
      spec_(shard.spec),
      own_(*spec_.recurrence),
      rank_(shard.rank),
      ranks_that_share_norm_(shares_norm(shard) ? shard.count : 1),
      piece_of_(spec_.layer_mixers.size(), -1),
      max_rows_(max_rows),
      input_width_(input_width(own_)),
      inputs_(float_buffer(ops, max_rows, input_width_)),
      mixed_(float_buffer(ops, max_rows, channels_of(own_))),
      gates_(float_buffer(ops, max_rows, 2 * own_.num_heads)),
      decays_(float_buffer(ops, max_rows, own_.num_heads * decay_width(own_))),
      writes_(float_buffer(ops, max_rows, own_.num_heads)),
      low_(float_buffer(ops, max_rows, own_.gate_rank)),
      output_gates_(float_buffer(ops, own_.gate_rank > 0 ? max_rows : 0, values_of(own_))),
      outputs_(float_buffer(ops, max_rows, values_of(own_))),
      parts_(float_buffer(ops, ranks_that_share_norm_ > 1 ? max_rows : 0, ranks_that_share_norm_ * values_of(own_))),
      whole_rows_(
          float_buffer(ops, ranks_that_share_norm_ > 1 ? max_rows : 0, ranks_that_share_norm_ * values_of(own_))),
      // Of a vector whose mean square is 1, the length is the root of its size.
      query_scale_(filled(ops, own_.key_dim, 1 / static_cast<float>(own_.key_dim))),
      key_scale_(filled(ops, own_.key_dim, 1 / std::sqrt(static_cast<float>(own_.key_dim)))) {
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    if (!has_recurrence(spec_, layer)) continue;
    piece_of_[static_cast<size_t>(layer)] = static_cast<int>(layers_.size());
    layers_.push_back(layer);
    if (own_.kind == RecurrenceKind::kLightning) constant_decays_.push_back(decays_of(ops, own_, layer));
  }
}

CacheGroup RecurrentMixer::cache_group() const {
  CacheGroup group;
  group.kind = MemoryKind::kState;
  group.pieces = static_cast<int>(layers_.size());
  group.piece_bytes = conv_bytes(own_) + matrix_bytes(own_);
  group.layers = layers_;
  return group;
}

void RecurrentMixer::use_cache(Operators& ops, const CachePlan& plan, const CacheGroup& group, std::byte* pages) {
  pages_ = pages;
  page_bytes_ = plan.page_bytes;
  page_pieces_ = group.page_pieces;
  page_count_ = group.pages;
  first_table_ = group.first_table;
  spans_ = Staged(ops, static_cast<size_t>(page_count_) * static_cast<size_t>(max_rows_) * sizeof(StateSpan));
}

void RecurrentMixer::begin_step(Operators& ops, const StepInput& input) {
  const auto spans_of_page = static_cast<size_t>(max_rows_);
  auto* spans = spans_.host<StateSpan>();
  std::fill_n(spans, static_cast<size_t>(page_count_) * spans_of_page, StateSpan{});
  for (int page = 0; page < page_count_; ++page) {
    StateSpan* next = spans + static_cast<size_t>(page) * spans_of_page;
    for (const StepSpan& span : input.spans) {
      const int32_t number = (*span.tables)[static_cast<size_t>(first_table_ + page)].front();
      *next++ = {span.first_row, span.count, number, span.first_position == 0 ? 1 : 0};
    }
  }
  span_count_ = static_cast<int>(input.spans.size());
  spans_.upload(ops, spans_.size());
}

StateMemory RecurrentMixer::memory(const StepContext& step, int layer, size_t offset) const {
  const int piece = piece_of_[static_cast<size_t>(layer)];
  const size_t piece_bytes = conv_bytes(own_) + matrix_bytes(own_);
  const auto page = static_cast<size_t>(piece / page_pieces_);
  StateMemory memory;
  memory.pages = pages_;
  memory.page_bytes = page_bytes_;
  memory.offset = static_cast<size_t>(piece % page_pieces_) * piece_bytes + offset;
  memory.spans = spans_.device<StateSpan>() + page * static_cast<size_t>(max_rows_);
  // A step that is done again may have as many sequences as rows.
  memory.span_count = step.ops.shares_host_memory() ? span_count_ : step.rows;
  return memory;
}

// `count` heads of a buffer's rows of this many floats, from number `first` on.
HeadsView RecurrentMixer::heads(const AlignedBuffer& buffer, int rows, int width, int count, int head_dim,
                                int first) const {
  return {buffer.as<float>() + first, rows, static_cast<size_t>(width), count, static_cast<size_t>(head_dim), head_dim};
}

void RecurrentMixer::compile(Program& program, int layer, const RecurrenceWeights& weights, const Source& source,
                             const Target& y) {
  const Source x = program.made(source);
  const float* rows = x.rows.x.floats();
  const int values = values_of(own_);
  program.add("inputs = in(" + x.name + ")",
              [this, &weights, rows](ModelStep& step) { step.linear(weights.in, rows, inputs_.as<float>(), false); });
  if (own_.kind == RecurrenceKind::kShortConvolution) {
    const HeadsView gate = heads(inputs_, 0, input_width_, 1, values, values);
    program.add("inputs *= gate(inputs)",
                [this, gate, to = heads(inputs_, 0, input_width_, 1, values, 0)](ModelStep& step) {
                  step.ops.gate_heads(activation_of(own_.gate), step.of(gate), step.of(to));
                });
    program.add("outputs = convolve(inputs)",
                [this, layer, &weights](ModelStep& step) { convolve(step, layer, weights, outputs_); });
    compile_finish(program, weights, heads(inputs_, 0, input_width_, 1, values, 2 * values));
  } else {
    program.add("queries, keys, values = convolve(inputs)",
                [this, layer, &weights](ModelStep& step) { convolve(step, layer, weights, mixed_); });
    if (own_.kind != RecurrenceKind::kLightning) {
      program.add("decays, writes = gates(" + x.name + ")",
                  [this, &weights, rows](ModelStep& step) { compute_gates(step, weights, rows); });
    }
    program.add("outputs, state = recur(queries, keys, values, state)",
                [this, layer, &weights](ModelStep& step) { recur(step, layer, weights); });
    const bool is_apart = own_.gate_rank > 0;
    const HeadsView gate = is_apart ? heads(output_gates_, 0, values, 1, values, 0)
                                    : heads(inputs_, 0, input_width_, 1, values, channels_of(own_));
    if (!is_apart && own_.gate_scale != 1) {
      program.add("gate *= " + std::to_string(own_.gate_scale),
                  [this, gate](ModelStep& step) { step.ops.scale(own_.gate_scale, step.of(gate)); });
    }
    compile_finish(program, weights, gate);
    if (own_.output_scale != 1) {
      program.add("outputs *= " + std::to_string(own_.output_scale), [this, values](ModelStep& step) {
        step.ops.scale_and_cap(own_.output_scale, 0, step.rows, values, outputs_.as<float>());
      });
    }
  }
  program.add(y.is() + "out(outputs)", [this, &weights, y](ModelStep& step) {
    step.linear(weights.out, outputs_.as<float>(), y.rows.data, y.accumulates);
  });
}

// Of the first numbers of a row of inputs.
void RecurrentMixer::convolve(const StepContext& step, int layer, const RecurrenceWeights& weights,
                              const AlignedBuffer& to) {
  ConvParams conv;
  conv.state = memory(step, layer, 0);
  conv.channels = channels_of(own_);
  conv.kernel = own_.conv_kernel;
  conv.weight = weights.conv.as<float>();
  conv.bias = weights.conv_bias.as<float>();
  conv.has_silu = own_.kind != RecurrenceKind::kShortConvolution;
  convolve_(step.ops, conv, {inputs_.as<float>(), static_cast<size_t>(input_width_)}, step.rows,
            {to.as<float>(), static_cast<size_t>(conv.channels)});
}

void RecurrentMixer::compute_gates(const StepContext& step, const RecurrenceWeights& weights, const float* rows) {
  GateParams gates;
  gates.heads = own_.num_heads;
  gates.a_log = weights.a_log.as<float>();
  gates.dt_bias = weights.dt_bias.as<float>();
  StridedRows a;
  StridedRows b;
  if (own_.kind == RecurrenceKind::kMamba2) {
    gates.kind = RecurrenceGate::kMamba;
    gates.dt_min = own_.min_step;
    gates.dt_max = own_.max_step > 0 ? own_.max_step : std::numeric_limits<float>::infinity();
    const int first = channels_of(own_) + values_of(own_);
    step.ops.scale(own_.step_scale, heads(inputs_, step.rows, input_width_, 1, own_.num_heads, first));
    a = {inputs_.as<float>() + first, static_cast<size_t>(input_width_)};
  } else if (own_.kind == RecurrenceKind::kKimiDelta) {
    step.linear(weights.gates, rows, gates_.as<float>(), false);
    step.linear(weights.decay_down, rows, low_.as<float>(), false);
    step.linear(weights.decay_up, low_.as<float>(), decays_.as<float>(), false);
    step.linear(weights.gate_down, rows, low_.as<float>(), false);
    step.linear(weights.gate_up, low_.as<float>(), output_gates_.as<float>(), false);
    gates.width = own_.key_dim;
    a = {decays_.as<float>(), static_cast<size_t>(own_.num_heads * own_.key_dim)};
    b = {gates_.as<float>(), static_cast<size_t>(own_.num_heads)};
  } else {
    step.linear(weights.gates, rows, gates_.as<float>(), false);
    a = {gates_.as<float>(), static_cast<size_t>(2 * own_.num_heads)};
    b = {a.first + own_.num_heads, a.stride};
  }
  compute_gates_(step.ops, gates, a, b, step.rows, decays_.as<float>(), writes_.as<float>());
  if (own_.write_scale != 1) {
    step.ops.scale_and_cap(own_.write_scale, 0, step.rows, own_.num_heads, writes_.as<float>());
  }
}

void RecurrentMixer::recur(const StepContext& step, int layer, const RecurrenceWeights& weights) {
  const int channels = channels_of(own_);
  const int keys = queries_of(own_);
  const HeadsView q = heads(mixed_, step.rows, channels, own_.num_key_heads, own_.key_dim, 0);
  const HeadsView k = heads(mixed_, step.rows, channels, own_.num_key_heads, own_.key_dim, keys);
  const HeadsView v = heads(mixed_, step.rows, channels, own_.num_heads, own_.value_dim, 2 * keys);
  RecurrenceParams params;
  params.state = memory(step, layer, conv_bytes(own_));
  params.heads = own_.num_heads;
  params.key_heads = own_.num_key_heads;
  params.key_dim = own_.key_dim;
  params.value_dim = own_.value_dim;
  params.has_delta = own_.kind == RecurrenceKind::kGatedDelta || own_.kind == RecurrenceKind::kKimiDelta;
  if (own_.kind == RecurrenceKind::kLightning) {
    const auto piece = static_cast<size_t>(piece_of_[static_cast<size_t>(layer)]);
    params.decay = constant_decays_[piece].as<float>();
  } else {
    params.decay = decays_.as<float>();
    params.decay_width = decay_width(own_);
    params.beta = writes_.as<float>();
  }
  params.skip = weights.skip.as<float>();
  if (params.has_delta) {
    const float eps = kLengthEps / static_cast<float>(own_.key_dim);
    step.ops.norm_heads({NormKind::kRms, eps, query_scale_.as<float>(), nullptr}, q);
    step.ops.norm_heads({NormKind::kRms, eps, key_scale_.as<float>(), nullptr}, k);
  }
  recur_(step.ops, params, q, k, v, outputs_.as<float>());
}

// Norm and gate of what comes out.
void RecurrentMixer::compile_finish(Program& program, const RecurrenceWeights& weights, const HeadsView& gate) {
  const int values = values_of(own_);
  const auto multiply = [&] {
    program.add("outputs *= gate", [this, gate, out = heads(outputs_, 0, values, 1, values, 0)](ModelStep& step) {
      step.ops.gate_heads(activation_of(own_.gate), step.of(gate), step.of(out));
    });
  };
  if (own_.norms_gated) multiply();
  if (own_.norm == RecurrenceNorm::kHead) {
    program.add("outputs = norm(outputs), of each head", [this, &weights, values](ModelStep& step) {
      step.ops.norm_heads(weights.norm.view, heads(outputs_, step.rows, values, own_.num_heads, own_.value_dim, 0));
    });
  } else if (own_.norm == RecurrenceNorm::kGroups) {
    program.add("outputs = norm(outputs), of each group", [this, &weights, values](ModelStep& step) {
      if (ranks_that_share_norm_ > 1) return norm_over_ranks(step, weights);
      norm_groups(step, weights, outputs_, values);
    });
  }
  if (!own_.norms_gated) multiply();
}

// Of rows of this many values.
void RecurrentMixer::norm_groups(const StepContext& step, const RecurrenceWeights& weights, const AlignedBuffer& rows,
                                 int width) {
  const int size = width / own_.norm_groups;
  for (int group = 0; group < own_.norm_groups; ++group) {
    NormWeight norm = weights.norm.view;
    norm.weight += static_cast<size_t>(group) * static_cast<size_t>(size);
    step.ops.norm_heads(norm, heads(rows, step.rows, width, 1, size, group * size));
  }
}

// Each rank makes the norms of whole rows, and keeps its own part of them.
void RecurrentMixer::norm_over_ranks(const StepContext& step, const RecurrenceWeights& weights) {
  const int part = values_of(own_);
  const int whole = ranks_that_share_norm_ * part;
  const size_t count = static_cast<size_t>(step.rows) * static_cast<size_t>(part);
  auto* parts = parts_.as<float>();
  const auto width = static_cast<size_t>(part);
  const HeadsView own = heads(outputs_, step.rows, part, 1, part, 0);
  step.ops.copy_heads(own, {parts + static_cast<size_t>(rank_) * count, step.rows, width, 1, 0, part});
  if (step.meets_ranks) step.ops.all_gather(parts, count);
  step.ops.copy_heads({parts, step.rows, width, ranks_that_share_norm_, count, part},
                      heads(whole_rows_, step.rows, whole, ranks_that_share_norm_, part, 0));
  norm_groups(step, weights, whole_rows_, whole);
  step.ops.copy_heads(heads(whole_rows_, step.rows, whole, 1, part, rank_ * part), own);
}

}  // namespace turbomind
