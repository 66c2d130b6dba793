// Values of a cache type, as lanes to multiply with. Included by kernels_isa.cc only.
//
// An operand is kDepth neighbours along the summed axis (dimensions of keys, tokens of values) for each of kLanes lanes
// along the other. `offset(i, lane, width)` finds the operand of neighbours i .. i + kDepth - 1 in a matrix whose other
// axis is `width` long. `prepare` turns a row of float factors, in place, into what multiply_add reads.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Codes of a quantized cache as they are, without scale and zero point.
struct Int8Value {
  uint8_t bits;
};
struct Int4Value {
  uint8_t bits;  // two of them
};

template <class T>
struct Operand;

template <>
struct Operand<float> {
  static constexpr int kDepth = 1;
  static size_t offset(int i, int lane, int width) { return static_cast<size_t>(i) * width + lane; }
  static void prepare(float*, int) {}

  Vec value;
  void load(const float* p) { value = TM_ISA::load(p); }
  void load_partial(const float* p, int lanes) { value = TM_ISA::load_partial(p, lanes); }
  void keep_first() {}
  Vec multiply_add(const float* factor, Vec sum) const { return fma(broadcast(*factor), value, sum); }
};

template <>
struct Operand<Int8Value> {
  static constexpr int kDepth = 1;
  static size_t offset(int i, int lane, int width) { return static_cast<size_t>(i) * width + lane; }
  static void prepare(float*, int) {}

  Vec value;
  void load(const Int8Value* p) { value = to_floats(upcast_bytes(&p->bits)); }
  void load_partial(const Int8Value* p, int lanes) {
    Int8Value whole[kLanes] = {};
    std::memcpy(whole, p, static_cast<size_t>(lanes));
    load(whole);
  }
  void keep_first() {}
  Vec multiply_add(const float* factor, Vec sum) const { return fma(broadcast(*factor), value, sum); }
};

template <>
struct Operand<Int4Value> {
  static constexpr int kDepth = 2;
  static size_t offset(int i, int lane, int width) { return static_cast<size_t>(i / 2) * width + lane; }
  static void prepare(float*, int) {}

  Vec first;
  Vec second;
  void load(const Int4Value* p) {
    const IVec both = upcast_bytes(&p->bits);
    first = to_floats(low_halves(both));
    second = to_floats(high_halves(both));
  }
  void load_partial(const Int4Value* p, int lanes) {
    Int4Value whole[kLanes] = {};
    std::memcpy(whole, p, static_cast<size_t>(lanes));
    load(whole);
  }
  void keep_first() { second = zero(); }
  Vec multiply_add(const float* factor, Vec sum) const {
    return fma(broadcast(factor[1]), second, fma(broadcast(factor[0]), first, sum));
  }
};

template <>
struct Operand<bf16> {
  static constexpr int kDepth = 2;
  static size_t offset(int i, int lane, int width) { return static_cast<size_t>(i / 2) * width * 2 + 2 * lane; }

  void load_partial(const bf16* p, int lanes) {
    bf16 whole[2 * kLanes] = {};
    std::memcpy(whole, p, static_cast<size_t>(lanes) * 2 * sizeof(bf16));
    load(whole);
  }

#if defined(__AVX512BF16__)
  // Pairs of factors become pairs of bfloat16 at the even places.
  static void prepare(float* factors, int count) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store_pairs(factors + i, TM_ISA::load(factors + i));
    if (i < count) {
      float rest[kLanes];
      store_pairs(rest, TM_ISA::load_partial(factors + i, count - i));
      std::memcpy(factors + i, rest, static_cast<size_t>(count - i) * sizeof(float));
    }
  }

  IVec pairs;
  void load(const bf16* p) { pairs = load_bytes(reinterpret_cast<const uint8_t*>(p)); }
  void keep_first() { pairs = low_words(pairs); }
  Vec multiply_add(const float* factor, Vec sum) const {
    return dot2(sum, pairs, broadcast_bytes(reinterpret_cast<const int8_t*>(factor)));
  }
#else
  static void prepare(float*, int) {}

  Vec first;
  Vec second;
  void load(const bf16* p) {
    const IVec pairs = load_bytes(reinterpret_cast<const uint8_t*>(p));
    first = low_bf16(pairs);
    second = high_bf16(pairs);
  }
  void keep_first() { second = zero(); }
  Vec multiply_add(const float* factor, Vec sum) const {
    return fma(broadcast(factor[1]), second, fma(broadcast(factor[0]), first, sum));
  }
#endif
};

}  // namespace turbomind::TM_ISA
