#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/for_rows.h"
#include "kernels/paged_attention.h"

namespace turbomind {

namespace {

// Rows that one task writes. Tasks begin at even positions: neighbouring tokens may share a byte.
constexpr int kTaskRows = 16;

// Places of the values of one head's key or value in a block.
struct HeadSlot {
  std::byte* head;
  int slot;     // of the token in the block
  bool is_key;  // else a value
  int dim;      // of this head
  int width;    // of the axis that is not summed over: block_len for keys, dim for values
  int depth;    // neighbours on the summed axis that are adjacent

  // Index of dimension d in units of one neighbour.
  size_t at(int d) const {
    const int summed = is_key ? d : slot;
    const int lane = is_key ? slot : d;
    return (static_cast<size_t>(summed / depth) * width + lane) * depth + summed % depth;
  }
};

// kDepth: `depth`, known to the compiler.
template <class T, int kDepth>
void write_unquantized(const HeadSlot& to, const float* x) {
  auto* elements = reinterpret_cast<T*>(to.head) + to.at(0);
  if (to.is_key) {
    const int step = to.width * kDepth;
    for (int d = 0; d < to.dim; ++d) elements[d / kDepth * step + d % kDepth] = from_float<T>(x[d]);
  } else {
    for (int d = 0; d < to.dim; ++d) elements[d * kDepth] = from_float<T>(x[d]);
  }
}

// Rounds a head's values so that their range, and 0, is met; scale and zero point go after the codes.
void write_quantized(const CacheLayout& layout, const HeadSlot& to, const float* x) {
  float low = 0;
  float high = 0;
  float probe = 0;  // NaN and infinity must not vanish: they make the scale not a number
  for (int d = 0; d < to.dim; ++d) {
    low = std::min(low, x[d]);
    high = std::max(high, x[d]);
    probe += x[d] * 0.0f;
  }
  const bool is_int8 = layout.type == CacheType::kInt8;
  const float max_quantized = is_int8 ? 255.0f : 15.0f;
  const half scale = to_half((high - low) / max_quantized + probe);
  const float step = to_float(scale);
  const float inverse = step > 0 ? 1.0f / step : 0.0f;
  // NaN becomes 0.
  const auto quantize = [&](float value) {
    return static_cast<uint8_t>(value > 0 ? std::min(std::nearbyint(value), max_quantized) : 0.0f);
  };
  const uint8_t zero = quantize(-low * inverse);
  auto* quantized = reinterpret_cast<uint8_t*>(to.head);
  for (int d = 0; d < to.dim; ++d) {
    const uint8_t rounded = quantize(x[d] * inverse + static_cast<float>(zero));
    const size_t index = to.at(d);
    if (is_int8) {
      quantized[index] = rounded;
    } else if (index % 2 == 0) {
      quantized[index / 2] = rounded;  // the neighbour comes after
    } else {
      quantized[index / 2] = static_cast<uint8_t>((quantized[index / 2] & 0x0F) | rounded << 4);
    }
  }
  auto* scales = reinterpret_cast<half*>(to.head + layout.quantized_bytes(to.dim));
  scales[to.slot] = scale;
  reinterpret_cast<uint8_t*>(scales + layout.block_len)[to.slot] = zero;
}

void write_head(const CacheLayout& layout, const HeadSlot& to, const float* x) {
  switch (layout.type) {
    case CacheType::kFloat32:
      write_unquantized<float, 1>(to, x);
      break;
    case CacheType::kBFloat16:
      write_unquantized<bf16, 2>(to, x);
      break;
    case CacheType::kInt8:
    case CacheType::kInt4:
      write_quantized(layout, to, x);
  }
}

// Row number r of a span.
void write_row(const AttentionParams& params, const AttentionSpan& span, int r, const HeadsView& k,
               const HeadsView& v) {
  const CacheLayout& layout = params.layout;
  // As write_head() has it.
  const int depth = layout.type == CacheType::kBFloat16 || layout.type == CacheType::kInt4 ? 2 : 1;
  const auto row = static_cast<size_t>(span.first_token + r);
  const int position = span.first_position + r;
  const int slot = position % layout.block_len;
  std::byte* block = params.pool + span.blocks[position / layout.block_len] * layout.block_bytes();
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    const HeadSlot key{
        block + layout.key_offset(params.layer, head), slot, true, layout.key_dim, layout.block_len, depth};
    write_head(layout, key, k.head(row, head));
    const HeadSlot value{
        block + layout.value_offset(params.layer, head), slot, false, layout.value_dim, layout.value_dim, depth};
    write_head(layout, value, v.head(row, head));
  }
}

}  // namespace

void rope_and_write(ThreadPool& pool, const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                    const float* factors, const HeadsView& k, const HeadsView& v) {
  const std::vector<Run> tasks = runs_of(params, kTaskRows);
  pool.parallel_for(static_cast<int>(tasks.size()), [&](int index) {
    const auto& [span, first, count] = tasks[index];
    for (int r = first; r < first + count; ++r) {
      const auto row = static_cast<size_t>(span->first_token + r);
      rope_row(table, row, q, factors);
      rope_row(table, row, k, nullptr);
      write_row(params, *span, r, k, v);
    }
  });
}

}  // namespace turbomind
