// Operands of the matrix instruction from weights of 16, 8 and 4 bits in their memory order.
//
// Weights are its 16-row operand, activations its 8-column one, so that few rows waste little. The unit of work of a
// warp is a slab: 32 outputs (a stripe) of 32 inputs. The order of outputs within a tile of the instruction and the
// order of inputs within a step are free, so each lane takes what lies together: lane 4 g + t the outputs 4 g .. 4 g +
// 3 of the stripe and the eight inputs of chunk t. That is 16 bytes for int4, twice 16 for int8 and float8
// (kernels/packed_weight.h) and four times 16 for a row-major matrix of 16 bits; and 16 bytes of 16-bit activations, of
// row g. Two tiles of 16 outputs (4 g + 2 tile and the next one are its rows g and g + 8) times two steps of 16 inputs
// make the slab.
//
// Codes of packed weights become half precision numbers: of int8 and int4 scale (code - zero), rounded once, of float8
// code / kFloat8Range, exactly, whose scales act on the sums of a slab. No slab crosses a group: a group's last slab
// may be partly empty. Scales of whole outputs act when y is written. Few rows meet codes otherwise
// (quantized_sums.cuh). Activations are rounded to half precision, divided by kHalfRange first, so that they fit up to
// 2^20; down to 1e-4 that is no coarser than bfloat16. With a weight of bfloat16 activations are rounded to bfloat16.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/quantize/read_rows.cuh"
#include "kernels/linear.h"
#include "kernels/packed_weight.h"

namespace turbomind::cuda {

inline constexpr int kStripe = 32;
inline constexpr int kSlabChunks = 4;       // so that a slab has 32 inputs
inline constexpr float kFloat8Range = 256;  // between the exponents' biases of float8 and half precision

// Inputs of a row of x that has no gaps in its last chunk or group.
inline int padded_inputs(const LinearWeight& weight) {
  return weight.is_packed() ? packed_shape(weight).padded_features() : divide_up(weight.in_features, kChunk) * kChunk;
}

// Factor of a sum of products.
inline float range_of(WeightFormat format) {
  if (format == WeightFormat::kFloat8) return kHalfRange * kFloat8Range;
  return format == WeightFormat::kBFloat16 || format == WeightFormat::kFloat32 ? 1.0f : kHalfRange;
}

template <WeightFormat kFormat>
struct SlabFormat {
  static constexpr bool kIsPacked = kFormat >= WeightFormat::kInt8;
  static constexpr int kLoads = !kIsPacked ? 4 : kFormat == WeightFormat::kInt4 ? 1 : 2;  // of a lane, 16 bytes each
};

template <WeightFormat kFormat>
inline constexpr bool kHasZeros = kFormat == WeightFormat::kInt8 || kFormat == WeightFormat::kInt4;

// The slabs of a stripe, group by group. A weight of 16 bits is one group.
struct SlabShape {
  int chunks;     // of a group
  int per_group;  // slabs
  int total;
};

__host__ __device__ inline SlabShape slab_shape(const LinearWeight& weight, bool is_packed) {
  const int group = is_packed ? weight.group : weight.in_features;
  const int chunks = divide_up(group, kChunk);
  const int per_group = divide_up(chunks, kSlabChunks);
  return {chunks, per_group, per_group * divide_up(weight.in_features, group)};
}

// A lane's way along its stripe in steps of kUnit slabs that never leave a group: 2 where all groups have 64 inputs or
// a multiple of that, and else 1.
template <int kUnit>
class QuantizedWalk {
 public:
  static constexpr int kChunks = kUnit * kSlabChunks;

  __device__ QuantizedWalk(const SlabShape& shape, int step, int lane)
      : chunks_(shape.chunks),
        steps_(steps_of_group(shape)),
        chunk_(step % steps_ * kChunks + lane % kSlabChunks),
        left_(steps_ - step % steps_) {}

  __host__ __device__ static int steps_of_group(const SlabShape& shape) { return divide_up(shape.chunks, kChunks); }
  __host__ __device__ static int steps(const SlabShape& shape) {
    return shape.total / shape.per_group * steps_of_group(shape);
  }
  // The lane's first chunk of a step, of those of its stripe.
  __device__ static int chunk(const SlabShape& shape, int step, int lane) {
    const int of_group = steps_of_group(shape);
    return step / of_group * shape.chunks + step % of_group * kChunks + lane % kSlabChunks;
  }

  // Chunks to the next step.
  __device__ __forceinline__ int advance() {
    if constexpr (kUnit == 1) chunk_ += kChunks;
    if (--left_ > 0) return kChunks;
    left_ = steps_;
    if constexpr (kUnit == 2) return kChunks;
    chunk_ -= steps_ * kChunks;
    return kChunks + chunks_ - steps_ * kChunks;
  }
  // Whether a group begins here.
  __device__ __forceinline__ bool is_first() const { return left_ == steps_; }
  // Whether the group has the lane's chunk of the step.
  __device__ __forceinline__ bool has_chunk() const { return kUnit == 2 || chunk_ < chunks_; }

 private:
  int chunks_;
  int steps_;  // of a group
  int chunk_;  // chunk within the group
  int left_;   // steps of the group, this one too
};

// One lane's place while it walks along a stripe in steps of several slabs.
class SlabCursor {
 public:
  __device__ SlabCursor(const SlabShape& shape, int slab, int step)
      : shape_(shape),
        group_(slab / shape.per_group),
        slab_(slab % shape.per_group),
        step_groups_(step / shape.per_group),
        step_slabs_(step % shape.per_group) {}

  __device__ __forceinline__ void advance() {
    group_ += step_groups_;
    slab_ += step_slabs_;
    if (slab_ >= shape_.per_group) {
      slab_ -= shape_.per_group;
      ++group_;
    }
  }
  __device__ __forceinline__ int chunk(int lane) const { return slab_ * kSlabChunks + lane % 4; }  // within the group
  __device__ __forceinline__ bool has_chunk(int lane) const { return chunk(lane) < shape_.chunks; }
  // The first of the lane's inputs.
  __device__ __forceinline__ int input(int lane) const { return (group_ * shape_.chunks + chunk(lane)) * kChunk; }

 private:
  const SlabShape& shape_;
  int group_;
  int slab_;
  int step_groups_;
  int step_slabs_;
};

// Starts copying what a lane needs of a slab of a weight of 16 bits to its slots in shared memory, `slot_stride` uint4
// apart. What is beyond the weight becomes 0.
template <WeightFormat kFormat>
__device__ __forceinline__ void copy_slab(const LinearWeight& weight, const SlabCursor& cursor, int stripe, int lane,
                                          uint4* slots, int slot_stride) {
  static_assert(!SlabFormat<kFormat>::kIsPacked);
  const bool has_chunk = cursor.has_chunk(lane);
  const int row = stripe * kStripe + lane / 4 * 4;
  const auto* inputs = static_cast<const uint16_t*>(weight.data) + cursor.input(lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool is_valid = has_chunk && row + i < weight.out_features;
    const size_t offset = is_valid ? static_cast<size_t>(row + i) * weight.in_features : 0;
    cp_async_16(slots + i * slot_stride, inputs + offset, is_valid);
  }
}

// Scales and zero points of a lane's four outputs for a group.
template <WeightFormat kFormat>
struct GroupConstants {
  std::conditional_t<kHasZeros<kFormat>, uint2, float4> scales;
  uint32_t zeros;

  // `entry`: number of the first output's scale.
  __device__ __forceinline__ void load(const LinearWeight& weight, uint32_t entry) {
    if constexpr (kHasZeros<kFormat>) {
      constexpr uint32_t kOnes = 0x3C003C00;
      scales = weight.scales == nullptr ? make_uint2(kOnes, kOnes)
                                        : __ldg(reinterpret_cast<const uint2*>(weight.scales + entry));
      zeros = weight.zeros != nullptr          ? __ldg(reinterpret_cast<const uint32_t*>(weight.zeros + entry))
              : kFormat == WeightFormat::kInt4 ? 0x08080808u
                                               : 0x80808080u;
    } else {
      scales = weight.block_scales == nullptr ? make_float4(1, 1, 1, 1)
                                              : __ldg(reinterpret_cast<const float4*>(weight.block_scales + entry));
    }
  }
  __device__ __forceinline__ void scales_of(float (&values)[4]) const {
    if constexpr (kHasZeros<kFormat>) {
      const float2 first = __half22float2(bits_as<__half2>(scales.x));
      const float2 second = __half22float2(bits_as<__half2>(scales.y));
      values[0] = first.x, values[1] = first.y, values[2] = second.x, values[3] = second.y;
    } else {
      values[0] = scales.x, values[1] = scales.y, values[2] = scales.z, values[3] = scales.w;
    }
  }
};

// Eight half precision numbers code - zero from a word of int4, in the order 0 2, 4 6, 1 3, 5 7 of the inputs.
// 0x6400 is 1024, whose last bit is 1 and whose fifth is 16; `low` holds 1024 + zero twice, `high` -(64 + zero).
__device__ __forceinline__ void dequantize_int4(uint32_t word, uint32_t low, uint32_t high, uint32_t (&pairs)[4]) {
  constexpr int kAndOr = (0xF0 & 0xCC) | 0xAA;
  constexpr uint32_t k1024 = 0x64006400;
  constexpr uint32_t kSixteenth = 0x2C002C00;
#pragma unroll
  for (int i = 0; i < 2; ++i, word >>= 8) {
    const auto even = bits_as<__half2>(lop3<kAndOr>(word, 0x000F000Fu, k1024));
    const auto odd = bits_as<__half2>(lop3<kAndOr>(word, 0x00F000F0u, k1024));
    pairs[2 * i] = bits_as<uint32_t>(__hsub2(even, bits_as<__half2>(low)));
    pairs[2 * i + 1] = bits_as<uint32_t>(__hfma2(odd, bits_as<__half2>(kSixteenth), bits_as<__half2>(high)));
  }
}

// Four half precision numbers code - zero from a word of int8, in order; `low` holds 1024 + zero twice.
__device__ __forceinline__ void dequantize_int8(uint32_t word, uint32_t low, uint32_t* pairs) {
  constexpr uint32_t k1024 = 0x64646464;
  const auto first = bits_as<__half2>(__byte_perm(word, k1024, 0x4140));
  const auto second = bits_as<__half2>(__byte_perm(word, k1024, 0x4342));
  pairs[0] = bits_as<uint32_t>(__hsub2(first, bits_as<__half2>(low)));
  pairs[1] = bits_as<uint32_t>(__hsub2(second, bits_as<__half2>(low)));
}

// Four half precision numbers, code / kFloat8Range, from a word of float8, in order.
__device__ __forceinline__ void upcast_float8(uint32_t word, uint32_t* pairs) {
  constexpr unsigned kSelectors[2] = {0x1404, 0x3424};  // each byte above a byte of zeros
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t bytes = __byte_perm(word, 0u, kSelectors[i]);
    pairs[i] = (bytes >> 1 & 0x3F803F80u) | (bytes & 0x80008000u);
  }
}

// The weights of a slab as operands, [tile][step].
struct SlabOperands {
  uint32_t a[2][2][4];
};

template <WeightFormat kFormat>
__device__ __forceinline__ SlabOperands read_slab(const GroupConstants<kFormat>& constants, const uint4* slots,
                                                  int slot_stride) {
  using Format = SlabFormat<kFormat>;
  uint4 loads[Format::kLoads];
#pragma unroll
  for (int i = 0; i < Format::kLoads; ++i) loads[i] = slots[i * slot_stride];
  const auto word = [&](int load, int i) {
    return i == 0 ? loads[load].x : i == 1 ? loads[load].y : i == 2 ? loads[load].z : loads[load].w;
  };
  SlabOperands operands;
#pragma unroll
  for (int output = 0; output < 4; ++output) {
    uint32_t pairs[4];
    if constexpr (kFormat == WeightFormat::kInt4) {
      const unsigned selector = 0x4040u + output * 0x0101u;
      const uint32_t low = __byte_perm(constants.zeros, 0x64646464u, selector);
      constexpr uint32_t k960 = 0x63806380;
      const auto high = bits_as<uint32_t>(__hsub2(bits_as<__half2>(k960), bits_as<__half2>(low)));
      dequantize_int4(word(0, output), low, high, pairs);
    } else if constexpr (kFormat == WeightFormat::kInt8) {
      const uint32_t low = __byte_perm(constants.zeros, 0x64646464u, 0x4040u + output * 0x0101u);
      dequantize_int8(word(0, output), low, pairs);
      dequantize_int8(word(1, output), low, pairs + 2);
    } else if constexpr (kFormat == WeightFormat::kFloat8) {
      upcast_float8(word(0, output), pairs);
      upcast_float8(word(1, output), pairs + 2);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = word(output, i);
    }
    if constexpr (kHasZeros<kFormat>) {
      const uint32_t both = output < 2 ? constants.scales.x : constants.scales.y;
      const auto scale = bits_as<__half2>(__byte_perm(both, 0u, output % 2 == 0 ? 0x1010 : 0x3232));
#pragma unroll
      for (uint32_t& pair : pairs) pair = bits_as<uint32_t>(__hmul2(bits_as<__half2>(pair), scale));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) operands.a[output / 2][i / 2][output % 2 + i % 2 * 2] = pairs[i];
  }
  return operands;
}

// Adds the slab times eight rows of x. sums[i][c]: output 4 g + i of the stripe, row 2 t + c of the eight.
template <WeightFormat kFormat>
__device__ __forceinline__ void multiply_slab(const SlabOperands& weights, const GroupConstants<kFormat>& constants,
                                              const uint4& x, float (&sums)[4][2]) {
  const uint32_t steps[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float (&first)[2] = sums[2 * tile];
    float (&second)[2] = sums[2 * tile + 1];
    if constexpr (kFormat == WeightFormat::kFloat8) {
      float of_slab[4] = {0, 0, 0, 0};
      mma_f16(of_slab, weights.a[tile][0], steps[0]);
      mma_f16(of_slab, weights.a[tile][1], steps[1]);
      float scales[4];
      constants.scales_of(scales);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        first[c] = fmaf(scales[2 * tile], of_slab[c], first[c]);
        second[c] = fmaf(scales[2 * tile + 1], of_slab[2 + c], second[c]);
      }
    } else {
      float total[4] = {first[0], first[1], second[0], second[1]};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        if constexpr (kFormat == WeightFormat::kBFloat16) {
          mma_bf16(total, weights.a[tile][step], steps[step]);
        } else {
          mma_f16(total, weights.a[tile][step], steps[step]);
        }
      }
      first[0] = total[0], first[1] = total[1], second[0] = total[2], second[1] = total[3];
    }
  }
}

}  // namespace turbomind::cuda
