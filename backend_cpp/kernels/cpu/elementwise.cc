#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/activation.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/packed_weight.h"
#include "kernels/sampling.h"

namespace turbomind {

namespace {

// Calls body(row, head); an element takes as long as `work` of other loops.
template <class Body>
void for_heads(ThreadPool& pool, const HeadsView& heads, int work, Body&& body) {
  for_rows(pool, heads.rows, work * heads.heads * heads.head_dim, [&](size_t row) {
    for (int head = 0; head < heads.heads; ++head) body(row, head);
  });
}

template <class T>
void embed_rows(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  const auto size = static_cast<size_t>(table.in_features);
  // A tile's rows take turns of `unit` numbers; without tiles each row is one.
  const size_t tile_rows = table.is_tiled ? kTileOutputs : 1;
  const size_t unit = !table.is_tiled ? size : table.format == WeightFormat::kBFloat16 ? 2 : 1;
  const size_t step = tile_rows * unit;
  const size_t tile_size = (size + unit - 1) / unit * step;
  for (int row = 0; row < rows; ++row) {
    const auto token = static_cast<size_t>(tokens[row]);
    const T* source = static_cast<const T*>(table.data) + token / tile_rows * tile_size + token % tile_rows * unit;
    float* target = y + static_cast<size_t>(row) * size;
    for (size_t first = 0; first < size; first += unit, source += step) {
      for (size_t i = first; i < std::min(size, first + unit); ++i) target[i] = to_float(source[i - first]) * scale;
    }
  }
}

}  // namespace

void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  if (table.is_packed()) {
    const auto size = static_cast<size_t>(table.in_features);
    for (int row = 0; row < rows; ++row) {
      float* target = y + static_cast<size_t>(row) * size;
      dequantize_output(table, tokens[row], target);
      for (size_t i = 0; i < size; ++i) target[i] *= scale;
    }
    return;
  }
  if (table.format == WeightFormat::kFloat32) return embed_rows<float>(table, tokens, rows, scale, y);
  if (table.format == WeightFormat::kFloat16) return embed_rows<half>(table, tokens, rows, scale, y);
  return embed_rows<bf16>(table, tokens, rows, scale, y);
}

void norm(ThreadPool& pool, const NormWeight& weight, const HeadsView& x, const HeadsView& y) {
  for_heads(pool, x, 1, [&](size_t row, int head) {
    kernels().norm_row(weight, x.head(row, head), x.head_dim, y.head(row, head));
  });
}

void activate(ThreadPool& pool, Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y) {
  for_heads(pool, y, 4, [&](size_t row, int head) {
    kernels().activate_row(activation, gate.head(row, head), up.first != nullptr ? up.head(row, head) : nullptr,
                           y.head_dim, y.head(row, head));
  });
}

void Xielu::run(ThreadPool& pool) const {
  for_rows(pool, rows, 4 * size,
           [&](size_t row) { kernels().xielu_row(factors, x + row * size, size, y + row * size); });
}

void apply(ThreadPool& pool, const Pointwise& function, const HeadsView& x) {
  using Kind = Pointwise::Kind;
  const int size = x.head_dim;
  for_heads(pool, x, 4, [&](size_t row, int number) {
    float* head = x.head(row, number);
    switch (function.kind) {
      case Kind::kScale:
        return kernels().scale_softcap_row(function.scale, 0, size, head);
      case Kind::kScaleRows:
        return kernels().scale_softcap_row(function.factors[row], 0, size, head);
      case Kind::kCap:
        return kernels().scale_softcap_row(function.scale, function.limit, size, head);
      case Kind::kClamp:
        for (int i = 0; i < size; ++i) head[i] = std::clamp(head[i], -function.limit, function.limit);
        return;
      case Kind::kSigmoid:
        for (int i = 0; i < size; ++i) head[i] = 1.0f / (1.0f + std::exp(-head[i]));
    }
  });
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
