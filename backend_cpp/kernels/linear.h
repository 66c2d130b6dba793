// y = x W^T + b for weights of 32, 16 or 8 to 4 bits.
//
//   x [rows, in_features]              float32, row-major, densely packed, or what LinearInput makes of such rows
//   bias [out_features]                float32, may be null
//   y [rows, out_features]             float32, row-major; with accumulate, y += instead of y =
//
// Weight formats:
//   float32, bfloat16, float16
//                       [out_features, in_features], row-major. Products and sums are float32 (16 bits are widened
//                       exactly), so y is within in_features 2^-24 sum |x w| of the exact result. Where the
//                       instruction set multiplies bfloat16 (avx512bf16, amx), x is rounded to it for a weight of
//                       bfloat16: (2^-8 + in_features 2^-24) sum |x w|.
//   int8, int4          w = scale (code - zero), a scale and a zero point for each group of `group` neighbouring inputs
//                       of an output (kernels/packed_weight.h), or a scale for all of an output; on the CPU also
//                       w = scale code + min, with a minimum for each group, and int5 and int6. x is rounded to 8
//                       bits for each row and group, with its own scale; products and sums inside a group are exact
//                       integers, sums over groups float32. So beyond the rounding of the weight, y is off by at most
//                       sum over groups of (max |x| / 254) sum |w|.
//   float8              w = scale code, a scale for each group or for all of an output; codes are E4M3,
//                       upcast in registers, exactly. x is float32, or rounded to bfloat16 where the instruction
//                       set multiplies those (avx512bf16, amx); products are exact and sums float32, so y is off by at
//                       most (2^-8 + in_features 2^-24) sum |x w|, or the second part of it. That is less than rounding
//                       x to 8 bits of either kind costs.
//
// Each output element is summed in an order that depends only on in_features and the instruction set: not on rows, on
// the tile or the thread that computes it. So a row's result is bitwise the same alone, in a batch, and in any chunk of
// a prompt, and a row that holds NaN or infinity spoils no other.
//
// Few rows stream the weights once from memory; many rows are blocked so that a tile of x stays in the second-level
// cache while the weights pass by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/types.h"

namespace turbomind {

enum class WeightFormat : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kInt4, kFloat8, kInt5, kInt6 };

inline WeightFormat format_of(DType type) {
  switch (type) {
    case DType::kBFloat16:
      return WeightFormat::kBFloat16;
    case DType::kFloat16:
      return WeightFormat::kFloat16;
    case DType::kFloat32:
      break;
  }
  return WeightFormat::kFloat32;
}

struct LinearWeight {
  const void* data = nullptr;
  WeightFormat format = WeightFormat::kFloat32;
  int out_features = 0;
  int in_features = 0;
  const float* bias = nullptr;

  // Packed formats only: int8 to int4, float8.
  int group = 0;
  const half* scales = nullptr;          // of integers; null: 1
  const uint8_t* zeros = nullptr;        // null: half the range of codes; float8 has none
  const int32_t* input_order = nullptr;  // [in_features]: which input of x each input of the codes is; null: the same
  const float* block_scales = nullptr;   // of float8, for each group; null: 1
  const float* output_scales = nullptr;  // [out_features padded to whole tiles], besides those of groups; null: 1
  const half* mins = nullptr;            // of integers, as many as scales, instead of zeros; CPU only
  // Groups that share one of `scales` and `mins`; if more than 1, each has a factor besides (kernels/packed_weight.h).
  int scale_groups = 1;
  // Of 32 and 16 bits, on the CPU: whether `data` is tiles (kernels/packed_weight.h), else it is row-major.
  bool is_tiled = false;
  // Of 8 bits, on GPUs: whether `data` is rows [whole tiles of outputs, whole groups of inputs], of int8 less 128.
  bool is_row_major = false;

  bool is_packed() const { return format >= WeightFormat::kInt8; }
};

// Input of a linear layer: a matrix, or one with a prologue (norm, gated activation) that is fused into the read.
struct LinearInput {
  // [rows, in_features]
  LinearInput(const float* rows) : x(rows) {}
  // Of one of the types that the layer reads (LinearTypes).
  LinearInput(const ConstTypedRows& rows) : x(rows) {}

  // Of x [rows, in_features]. `workspace` of that size may be filled with them.
  static LinearInput normed(const NormWeight& norm, const float* x, float* workspace) {
    LinearInput input(x);
    input.norm = &norm;
    input.workspace = workspace;
    return input;
  }
  // Of gate_up [rows, 2 in_features], as activate_gated. `workspace` [rows, in_features] may be filled with them.
  static LinearInput gated(Activation activation, const float* gate_up, float* workspace) {
    LinearInput input(gate_up);
    input.gate = activation;
    input.workspace = workspace;
    return input;
  }

  bool has_prologue() const { return norm != nullptr || gate.has_value(); }
  bool is_float32() const { return !has_prologue() && x.type == DType::kFloat32; }
  // Those from row `first` on; they are of `inputs` inputs.
  LinearInput from_row(int first, int inputs) const {
    LinearInput rest = *this;
    rest.x = x.from(static_cast<size_t>(first) * inputs * (gate.has_value() ? 2 : 1));
    return rest;
  }

  ConstTypedRows x;  // float32 where they are a norm's
  const NormWeight* norm = nullptr;
  std::optional<Activation> gate;
  const float* bias = nullptr;  // [columns of x], to be added to x where it is gated; null: 0
  float* workspace = nullptr;
};

// Types that a linear layer reads and writes in addition to float32, for a number of rows.
struct LinearTypes {
  // Of rows as they are: the type that it would round them to.
  DType rows = DType::kFloat32;
  // Of results that nothing is added to; a layer with a bias has none. kFloat16 is of y / kHalfRange (the device's), so
  // y may be up to 2^20, and one under 1e-3 is off by up to 2^-21 instead of 2^-11 |y|; kBFloat16 is off by up to
  // 2^-9 |y|. It holds a multiple of 16 rows.
  DType result = DType::kFloat32;
  // Whether it fuses norms and activations into the read; gated ones may read the type of any layer's results.
  bool makes_rows = false;
};

// The linear layers of a gated MLP, down(act(gate(x)) * up(x)), and workspace between them in any form.
struct GatedMlp {
  const LinearWeight& gate_up;  // the first half of its outputs is gate, the second up
  Activation activation;
  const LinearWeight& down;
  float* projected;  // workspace [rows, gate_up.out_features]
  float* activated;  // workspace [rows, down.in_features]

  LinearInput between() const { return LinearInput::gated(activation, projected, activated); }
};

// Layout of prepared activations: [blocks of `interleave` rows, features / unit, interleave, unit].
struct RowsLayout {
  int interleave = 1;   // rows that are adjacent
  int unit = 4;         // neighbouring inputs of a row that do
  size_t features = 0;  // in_features padded

  size_t blocks(int rows) const { return (static_cast<size_t>(rows) + interleave - 1) / interleave; }
  size_t elements(int rows) const { return blocks(rows) * interleave * features; }
  // Where the first unit of a row is; the next one is interleave * unit elements on.
  size_t offset(size_t row) const { return row / interleave * interleave * features + row % interleave * unit; }
};

// Rows that share what the first-level cache holds of a weight.
inline constexpr int kLinearRowBlock = 48;

// Format of a weight's activations, and how many rows it is best multiplied with at a time.
struct RowsPlan {
  enum class Kind : uint8_t { kAsTheyAre, kQuantized, kWide };
  Kind kind = Kind::kAsTheyAre;
  RowsLayout layout;
  int block_rows = kLinearRowBlock;  // a multiple of layout.interleave
  int block_tiles = 1;               // tiles of outputs that a thread takes at least
};

// Activations rounded for a packed weight.
struct QuantizedRows {
  int rows;
  RowsLayout layout;
  int groups;       // of the weight
  int zero_factor;  // minus the weight's zero code, or -1 if it varies or there are minima
  int8_t* quantized;
  float* scales;     // [blocks of `interleave` rows, groups, interleave]
  int32_t* offsets;  // likewise; sum of the codes times zero_factor

  int8_t* row(size_t index) const { return quantized + layout.offset(index); }
  // Where the scale of a row's first group is; the next one is `interleave` on.
  size_t entry(size_t index) const {
    const auto together = static_cast<size_t>(layout.interleave);
    return index / together * together * static_cast<size_t>(groups) + index % together;
  }
};

// Activations in the type and order in which the instruction set multiplies a float8 or bfloat16 weight.
struct ConvertedRows {
  int rows;
  RowsLayout layout;
  void* values;  // float32 or bfloat16
};

// Workspace of the activations of one call; grows to the largest seen.
class LinearScratch {
 public:
  QuantizedRows reserve_quantized(const LinearWeight& weight, const RowsLayout& layout, int rows);
  ConvertedRows reserve_converted(const RowsLayout& layout, int rows);

 private:
  std::vector<int8_t> quantized_;
  std::vector<float> scales_;
  std::vector<int32_t> offsets_;
  std::vector<float> values_;
};

void linear(ThreadPool& pool, LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input, int rows,
            float* y, bool accumulate);

// y[row] = scale table[tokens[row]]. table [vocab, size] float32, bfloat16 or float16; y [rows, size] float32
void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y);

// One GEMM of grouped_gemm.
struct LinearJob {
  const LinearWeight& weight;
  LinearInput input;
  int rows;
  float* y;
};

// The GEMMs of all jobs, each as in `linear`, with two barriers in all: many small ones are as fast as a large one.
// `scratch` has an element for each job at least, or grows.
void grouped_gemm(ThreadPool& pool, std::vector<LinearScratch>& scratch, std::span<const LinearJob> jobs);

}  // namespace turbomind
