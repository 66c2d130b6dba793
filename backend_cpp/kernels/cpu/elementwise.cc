#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kernels/activation.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/isa.h"
#include "kernels/norm.h"
#include "kernels/sampling.h"

namespace turbomind {

void norm(ThreadPool& pool, const NormWeight& weight, const float* x, int rows, int size, float* y) {
  for_rows(pool, rows, size, [&](size_t row) { kernels().norm_row(weight, x + row * size, size, y + row * size); });
}

void norm_heads(ThreadPool& pool, const NormWeight& weight, const HeadsView& heads) {
  for_rows(pool, heads.rows, heads.heads * heads.head_dim, [&](size_t row) {
    for (int h = 0; h < heads.heads; ++h) {
      float* head = heads.head(row, h);
      kernels().norm_row(weight, head, heads.head_dim, head);
    }
  });
}

void activate_gated(ThreadPool& pool, Activation activation, const float* gate_up, int rows, int size, float* y) {
  for_rows(pool, rows, 4 * size, [&](size_t row) {
    const float* gate = gate_up + row * 2 * size;
    kernels().activate_row(activation, gate, gate + size, size, y + row * size);
  });
}

void activate(ThreadPool& pool, Activation activation, const float* x, int rows, int size, float* y) {
  for_rows(pool, rows, 4 * size,
           [&](size_t row) { kernels().activate_row(activation, x + row * size, nullptr, size, y + row * size); });
}

void xielu(ThreadPool& pool, const XieluFactors& factors, const float* x, int rows, int size, float* y) {
  for_rows(pool, rows, 4 * size,
           [&](size_t row) { kernels().xielu_row(factors, x + row * size, size, y + row * size); });
}

void scale_and_cap(ThreadPool& pool, float scale, float softcap, int rows, int size, float* x) {
  for_rows(pool, rows, 4 * size,
           [&](size_t row) { kernels().scale_and_cap_row(scale, softcap, size, x + row * size); });
}

void add_scaled(ThreadPool& pool, float scale, const float* x, int rows, int size, float* y) {
  for_rows(pool, rows, size, [&](size_t row) {
    const float* from = x + row * size;
    float* to = y + row * size;
    for (int i = 0; i < size; ++i) to[i] += scale * from[i];
  });
}

int32_t argmax(const float* logits, int size) {
  return kernels().argmax(logits, size);
}

void chunk_maxima(const float* logits, int size, float* maxima) {
  kernels().chunk_maxima(logits, size, maxima);
}

void exp_weights(const float* logits, int size, float maximum, float factor, float* weights, float* sums) {
  kernels().exp_weights(logits, size, maximum, factor, weights, sums);
}

namespace {

constexpr std::array<uint32_t, 32> kBits = [] {
  std::array<uint32_t, 32> bits{};
  for (uint32_t i = 0; i < 32; ++i) bits[i] = uint32_t{1} << i;
  return bits;
}();

// Selects in vectors: which tokens may come is no pattern that a processor predicts.
void apply_word(uint32_t bits, float* logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < kBits.size(); ++i) logits[i] = (bits & kBits[i]) != 0 ? logits[i] : kNever;
}

}  // namespace

void apply_mask(const int32_t* mask, int size, float* logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < size; first += 32) {
    const auto bits = static_cast<uint32_t>(mask[first / 32]);
    if (bits == ~uint32_t{0}) continue;
    const int count = std::min(32, size - first);
    if (bits == 0) {
      std::fill(logits + first, logits + first + count, kNever);
      continue;
    }
    if (count == 32) {
      apply_word(bits, logits + first);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if ((bits >> i & 1u) == 0) logits[first + i] = kNever;
    }
  }
}

}  // namespace turbomind
