#include "kernels/recurrence.h"

#include <algorithm>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/isa.h"

namespace turbomind {

void CausalConv::run(ThreadPool& pool) const {
  if (rows == 0) return;
  // Some blocks for each thread, of whole cache lines.
  constexpr int kMinBlock = 64;
  const int share = params.channels / (2 * pool.thread_count());
  const int block = std::clamp(share / kMinBlock * kMinBlock, kMinBlock, kConvBlock);
  pool.parallel_for((params.channels + block - 1) / block, [&](int chunk) {
    const int first = chunk * block;
    kernels().conv_block(params, first, std::min(params.channels, first + block), x, y);
  });
}

void RecurrenceGates::run(ThreadPool& pool) const {
  constexpr int kWork = 8;  // an element takes as long as this many of other loops
  const auto heads = static_cast<size_t>(params.heads);
  const auto width = static_cast<size_t>(params.width);
  for_rows(pool, rows, kWork * params.heads * params.width, [&](size_t row) {
    kernels().recurrence_gate_row(params, a.row(row), b.first != nullptr ? b.row(row) : nullptr,
                                  decay + row * heads * width, beta + row * heads);
  });
}

void Recurrence::run(ThreadPool& pool) const {
  // From how many tokens on it pays to copy a part of the state into the first-level cache.
  constexpr int kLongSpan = 32;
  const StateSpan* spans = params.state.spans;
  const int span_count = params.state.span_count;
  const bool has_long =
      std::any_of(spans, spans + span_count, [](const StateSpan& span) { return span.count >= kLongSpan; });
  const int columns = kernels().recurrence_columns();
  const int parts = has_long ? (params.value_dim + columns - 1) / columns : 1;
  pool.parallel_for(span_count * params.heads * parts, [&](int chunk) {
    const int part = chunk % parts;
    const int head = chunk / parts % params.heads;
    const StateSpan& span = spans[chunk / parts / params.heads];
    const bool is_long = span.count >= kLongSpan;
    if (span.count == 0 || (!is_long && part > 0)) return;
    kernels().recur(params, q, k, v, span, head, is_long ? part * columns : -1, out);
  });
}

namespace {

// Calls body(span, first, last) for all channels of all spans with rows.
template <class Body>
void for_channels(ThreadPool& pool, const StateMemory& state, int channels, Body&& body) {
  constexpr int kBlock = 64;  // channels: whole cache lines
  const int blocks = (channels + kBlock - 1) / kBlock;
  pool.parallel_for(state.span_count * blocks, [&](int chunk) {
    const StateSpan& span = state.spans[chunk / blocks];
    const int first = chunk % blocks * kBlock;
    if (span.count > 0) body(span, first, std::min(channels, first + kBlock));
  });
}

}  // namespace

void SelectiveScan::run(ThreadPool& pool) const {
  for_channels(pool, state, channels,
               [&](const StateSpan& span, int first, int last) { kernels().scan(*this, span, first, last); });
}

void GatedLru::run(ThreadPool& pool) const {
  for_channels(pool, state, channels,
               [&](const StateSpan& span, int first, int last) { kernels().gated_lru(*this, span, first, last); });
}

}  // namespace turbomind
