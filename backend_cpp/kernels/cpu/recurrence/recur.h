// The gated linear recurrence of one head. Included by kernels_isa.cc only.
//
// A token needs S^T k before it may change S, so S would be read twice. But what the next token needs of S is known
// while this one changes it: all sums are found in one pass over the state, whose order, channel after channel of the
// key, is the same whether a token begins a span or follows within it.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/recurrence.h"

namespace turbomind::TM_ISA {

// Columns of a head that are in vectors.
inline constexpr int kChunkVectors = 2;
inline constexpr int kChunkColumns = kChunkVectors * kLanes;

// One head of one span.
struct HeadSpan {
  const RecurrenceParams& params;
  const HeadsView& q;
  const HeadsView& k;
  const HeadsView& v;
  float* out;
  const StateSpan& span;
  int head;

  int key_head() const { return head / (params.heads / params.key_heads); }
  size_t row(int i) const { return static_cast<size_t>(span.first_token + i); }
  const float* query(int i) const { return q.head(row(i), key_head()); }
  const float* key(int i) const { return k.head(row(i), key_head()); }
  const float* value(int i) const { return v.head(row(i), head); }
  float* result(int i) const {
    return out + (row(i) * static_cast<size_t>(params.heads) + static_cast<size_t>(head)) *
                     static_cast<size_t>(params.value_dim);
  }
  // The first of its decays.
  const float* decay(int i) const {
    const auto width = static_cast<size_t>(params.decay_width);
    if (width == 0) return params.decay + head;
    return params.decay + (row(i) * static_cast<size_t>(params.heads) + static_cast<size_t>(head)) * width;
  }
  float beta(int i) const {
    return params.beta != nullptr ? params.beta[row(i) * static_cast<size_t>(params.heads) + static_cast<size_t>(head)]
                                  : 1.0f;
  }
};

// Reads and writes of columns that may end within the last vector.
struct Columns {
  int first;
  int count;

  Vec read(const float* row, int vector) const {
    const int rest = count - vector * kLanes;
    const float* p = row + first + vector * kLanes;
    return rest >= kLanes ? load(p) : load_partial(p, std::max(rest, 0));
  }
  void write(float* row, int vector, Vec values) const {
    const int rest = count - vector * kLanes;
    float* p = row + first + vector * kLanes;
    rest >= kLanes ? store(p, values) : store_partial(p, values, std::max(rest, 0));
  }
};

// A key's channels as factors of the state before its decay.
template <bool has_channel_decay>
inline const float* decayed_key(const HeadSpan& head, int i, float* workspace) {
  const float* key = head.key(i);
  if constexpr (!has_channel_decay) return key;
  const float* decay = head.decay(i);
  for (int r = 0; r < head.params.key_dim; ++r) workspace[r] = key[r] * decay[r];
  return workspace;
}

// All tokens of the span over `columns`, whose state is [key_dim] rows of kVectors vectors, `stride` floats apart.
template <int kVectors, bool has_delta, bool has_channel_decay>
inline void recur_columns(const HeadSpan& head, const Columns& columns, float* state, size_t stride) {
  const RecurrenceParams& params = head.params;
  const int key_dim = params.key_dim;
  float decayed[2][kMaxKeyDim];  // of this token and the next

  Vec seen[kVectors];  // S^T k of the token that comes
  for (Vec& sum : seen) sum = zero();
  if constexpr (has_delta) {
    const float* key = decayed_key<has_channel_decay>(head, 0, decayed[0]);
    for (int r = 0; r < key_dim; ++r) {
      const Vec factor = broadcast(key[r]);
      for (int j = 0; j < kVectors; ++j) seen[j] = fma(factor, load(state + r * stride + j * kLanes), seen[j]);
    }
  }

  const auto take_token = [&](int i, auto has_next) {
    constexpr bool kHasLookahead = has_delta && decltype(has_next)::value;
    // Rows of a step are far apart.
    if (constexpr int kRowsAhead = 2; i + kRowsAhead < head.span.count) {
      prefetch(head.key(i + kRowsAhead), key_dim);
      prefetch(head.query(i + kRowsAhead), key_dim);
      prefetch(head.value(i + kRowsAhead) + columns.first, columns.count);
      if constexpr (has_channel_decay) prefetch(head.decay(i + kRowsAhead), key_dim);
    }
    const float* key = head.key(i);
    const float* query = head.query(i);
    const float* decay = head.decay(i);
    const float* next = kHasLookahead ? decayed_key<has_channel_decay>(head, i + 1, decayed[(i + 1) % 2]) : nullptr;
    const Vec decay_of_all = broadcast(decay[0]);
    [[maybe_unused]] const Vec lost = broadcast(-decay[0]);
    const Vec beta = broadcast(head.beta(i));
    Vec written[kVectors], sums[kVectors], ahead[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      Vec value = columns.read(head.value(i), j);
      if constexpr (has_delta) value = fma(seen[j], has_channel_decay ? broadcast(-1.0f) : lost, value);
      written[j] = mul(value, beta);
      sums[j] = zero();
      ahead[j] = zero();
    }
    for (int r = 0; r < key_dim; ++r) {
      float* row = state + r * stride;
      const Vec of_key = broadcast(key[r]);
      const Vec of_query = broadcast(query[r]);
      const Vec kept = has_channel_decay ? broadcast(decay[r]) : decay_of_all;
      [[maybe_unused]] const Vec of_next = kHasLookahead ? broadcast(next[r]) : zero();
      for (int j = 0; j < kVectors; ++j) {
        const Vec changed = fma(of_key, written[j], mul(load(row + j * kLanes), kept));
        store(row + j * kLanes, changed);
        sums[j] = fma(of_query, changed, sums[j]);
        if constexpr (kHasLookahead) ahead[j] = fma(of_next, changed, ahead[j]);
      }
    }
    const Vec skip = broadcast(params.skip != nullptr ? params.skip[head.head] : 0.0f);
    for (int j = 0; j < kVectors; ++j) {
      if (params.skip != nullptr) sums[j] = fma(skip, columns.read(head.value(i), j), sums[j]);
      columns.write(head.result(i), j, sums[j]);
      seen[j] = ahead[j];
    }
  };
  const int last = head.span.count - 1;
  for (int i = 0; i < last; ++i) take_token(i, std::true_type{});
  take_token(last, std::false_type{});
}

template <int kVectors>
inline void recur_columns_of(const HeadSpan& head, const Columns& columns, float* state, size_t stride) {
  const bool has_channel_decay = head.params.decay_width > 1;
  if (head.params.has_delta) {
    has_channel_decay ? recur_columns<kVectors, true, true>(head, columns, state, stride)
                      : recur_columns<kVectors, true, false>(head, columns, state, stride);
  } else {
    has_channel_decay ? recur_columns<kVectors, false, true>(head, columns, state, stride)
                      : recur_columns<kVectors, false, false>(head, columns, state, stride);
  }
}

inline float* state_of(const HeadSpan& head) {
  const RecurrenceParams& params = head.params;
  auto* states = reinterpret_cast<float*>(params.state.state(head.span.page));
  return states +
         static_cast<size_t>(head.head) * static_cast<size_t>(params.key_dim) * static_cast<size_t>(params.value_dim);
}

// At most kVectors vectors of columns from `first` on, in a copy of their state that stays in the first-level cache and
// whose rows are whole vectors.
template <int kVectors>
inline void recur_in_copy(const HeadSpan& head, int first) {
  const RecurrenceParams& params = head.params;
  const auto width = static_cast<size_t>(params.value_dim);
  const Columns columns{first, std::min(kVectors * kLanes, params.value_dim - first)};
  float* state = state_of(head);
  alignas(64) float copy[kMaxKeyDim * kVectors * kLanes];
  constexpr size_t kStride = kVectors * kLanes;
  for (int r = 0; r < params.key_dim; ++r) {
    for (int j = 0; j < kVectors; ++j) {
      const bool is_fresh = head.span.is_fresh != 0;
      store(copy + r * kStride + j * kLanes, is_fresh ? zero() : columns.read(state + r * width, j));
    }
  }
  recur_columns_of<kVectors>(head, columns, copy, kStride);
  for (int r = 0; r < params.key_dim; ++r) {
    for (int j = 0; j < kVectors; ++j) columns.write(state + r * width, j, load(copy + r * kStride + j * kLanes));
  }
}

// kVectors vectors of columns at a time where the state is, as far as whole ones go; returns how many columns.
template <int kVectors>
inline int recur_in_place(const HeadSpan& head, int first) {
  const RecurrenceParams& params = head.params;
  constexpr int kColumns = kVectors * kLanes;
  for (; first + kColumns <= params.value_dim; first += kColumns) {
    recur_columns_of<kVectors>(head, {first, kColumns}, state_of(head) + first, static_cast<size_t>(params.value_dim));
  }
  return first;
}

// All columns of a head, for few tokens. Whole rows of the usual sizes at once, even if not all sums fit in registers:
// what counts is that the state is read from memory in order.
inline void recur_head(const HeadSpan& head) {
  const RecurrenceParams& params = head.params;
  if (head.span.is_fresh != 0) {
    std::memset(state_of(head), 0,
                static_cast<size_t>(params.key_dim) * static_cast<size_t>(params.value_dim) * sizeof(float));
  }
  constexpr int kWideRow = (kLanes > 4 ? 128 : 32) / kLanes;
  const int whole = recur_in_place<1>(head, recur_in_place<kWideRow / 2>(head, recur_in_place<kWideRow>(head, 0)));
  if (whole < params.value_dim) recur_in_copy<1>(head, whole);
}

inline int recurrence_columns() {
  return kChunkColumns;
}

// Columns [first, first + recurrence_columns()) of a head, or, with first -1, all of them.
inline void recur(const RecurrenceParams& params, const HeadsView& q, const HeadsView& k, const HeadsView& v,
                  const StateSpan& span, int head, int first, float* out) {
  const HeadSpan head_span{params, q, k, v, out, span, head};
  first < 0 ? recur_head(head_span) : recur_in_copy<kChunkVectors>(head_span, first);
}

}  // namespace turbomind::TM_ISA
