#include "model/recurrence/recurrent_mixer.h"

#include <algorithm>
#include <cmath>
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
  return aligned(static_cast<size_t>(own.num_heads * own.value_dim) * static_cast<size_t>(own.key_dim) * sizeof(float));
}

AlignedBuffer filled(Operators& ops, int size, float value) {
  const std::vector<float> values(static_cast<size_t>(size), value);
  AlignedBuffer buffer = ops.allocate(values.size() * sizeof(float));
  ops.upload(values.data(), buffer.size(), buffer.as<void>());
  return buffer;
}

}  // namespace

RecurrentMixer::RecurrentMixer(Operators& ops, const ModelSpec& spec, int max_rows)
    : spec_(spec),
      own_(*spec.recurrence),
      piece_of_(spec.layer_mixers.size(), -1),
      max_rows_(max_rows),
      inputs_(float_buffer(ops, max_rows, channels_of(own_) + own_.num_heads * own_.value_dim)),
      mixed_(float_buffer(ops, max_rows, channels_of(own_))),
      gates_(float_buffer(ops, max_rows, 2 * own_.num_heads)),
      decays_(float_buffer(ops, max_rows, own_.num_heads)),
      writes_(float_buffer(ops, max_rows, own_.num_heads)),
      outputs_(float_buffer(ops, max_rows, own_.num_heads * own_.value_dim)),
      // Of a vector whose mean square is 1, the length is the root of its size.
      query_scale_(filled(ops, own_.key_dim, 1 / static_cast<float>(own_.key_dim))),
      key_scale_(filled(ops, own_.key_dim, 1 / std::sqrt(static_cast<float>(own_.key_dim)))) {
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    if (spec.layer_mixers[static_cast<size_t>(layer)] != Mixer::kRecurrence) continue;
    piece_of_[static_cast<size_t>(layer)] = static_cast<int>(layers_.size());
    layers_.push_back(layer);
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

void RecurrentMixer::run(const StepContext& step, int layer, const RecurrenceWeights& weights, const LinearInput& x,
                         float* y, bool accumulate) {
  Operators& ops = step.ops;
  const int channels = channels_of(own_);
  const int values = own_.num_heads * own_.value_dim;
  const int keys = own_.num_key_heads * own_.key_dim;
  const float* rows = ops.make_rows(x, step.rows, spec_.hidden_size);
  step.linear(weights.in, rows, inputs_.as<float>(), false);
  step.linear(weights.gates, rows, gates_.as<float>(), false);

  ConvParams conv;
  conv.state = memory(step, layer, 0);
  conv.channels = channels;
  conv.kernel = own_.conv_kernel;
  conv.weight = weights.conv.as<float>();
  conv.has_silu = true;
  const auto width = static_cast<size_t>(channels + values);
  ops.causal_conv(conv, {inputs_.as<float>(), width}, step.rows, {mixed_.as<float>(), static_cast<size_t>(channels)});

  const HeadsView q = heads(mixed_, step.rows, channels, own_.num_key_heads, own_.key_dim, 0);
  const HeadsView k = heads(mixed_, step.rows, channels, own_.num_key_heads, own_.key_dim, keys);
  const HeadsView v = heads(mixed_, step.rows, channels, own_.num_heads, own_.value_dim, 2 * keys);
  const float eps = kLengthEps / static_cast<float>(own_.key_dim);
  ops.norm_heads({NormKind::kRms, eps, query_scale_.as<float>(), nullptr}, q);
  ops.norm_heads({NormKind::kRms, eps, key_scale_.as<float>(), nullptr}, k);

  GateParams gates;
  gates.kind = RecurrenceGate::kDelta;
  gates.heads = own_.num_heads;
  gates.a_log = weights.a_log.as<float>();
  gates.dt_bias = weights.dt_bias.as<float>();
  const auto gate_width = static_cast<size_t>(2 * own_.num_heads);
  ops.recurrence_gates(gates, {gates_.as<float>(), gate_width}, {gates_.as<float>() + own_.num_heads, gate_width},
                       step.rows, decays_.as<float>(), writes_.as<float>());

  RecurrenceParams params;
  params.state = memory(step, layer, conv_bytes(own_));
  params.heads = own_.num_heads;
  params.key_heads = own_.num_key_heads;
  params.key_dim = own_.key_dim;
  params.value_dim = own_.value_dim;
  params.has_delta = true;
  params.decay = decays_.as<float>();
  params.decay_width = 1;
  params.beta = writes_.as<float>();
  ops.recurrence(params, q, k, v, outputs_.as<float>());

  const HeadsView out = heads(outputs_, step.rows, values, own_.num_heads, own_.value_dim, 0);
  const HeadsView gate = heads(inputs_, step.rows, channels + values, own_.num_heads, own_.value_dim, channels);
  ops.norm_heads(weights.norm.view, out);
  ops.gate_heads(GateKind::kSilu, gate, out);
  step.linear(weights.out, outputs_.as<float>(), y, accumulate);
}

}  // namespace turbomind
