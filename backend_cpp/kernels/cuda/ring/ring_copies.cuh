// Copies of operands into the shared memory of ring_kernel.cuh.
#pragma once

#include "kernels/cuda/hopper.h"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/ring/ring_shape.h"

namespace turbomind::cuda {

// kColumns: rows of x
template <WeightFormat kFormat_, int kColumns_, int kTeams_, bool kScalesSums_>
struct Ring {
  static constexpr WeightFormat kFormat = kFormat_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kTeams = kTeams_;
  static constexpr bool kScalesSums = kScalesSums_;
  // Operands of two slabs at a time, for want of registers.
  static constexpr bool kIsTight = kTeams == 4 && kColumns * (kScalesSums ? 2 : 1) > 64;
  static constexpr int kThreads = kTeams * 128;
  static constexpr int kSums = kColumns / 2;  // of a thread
  // Codes of 8 bits are row-major, rows in shared memory so far apart that those read together are in different banks.
  static constexpr bool kHasRows = kFormat != WeightFormat::kInt4;
  static constexpr int kRowBytes = kRingUnit + 16;
  static constexpr int kGapBytes = kHasRows ? kTileOutputs * 16 : 0;
  static constexpr int kTileBytes = kTileOutputs * kRingUnit * (kHasRows ? 8 : 4) / 8 + kGapBytes;
  static constexpr int kScaleBytes = kTileOutputs * (kHasZeros<kFormat> ? 2 : 4);
  static constexpr int kXBytes = kColumns * kRingUnit * 2;
  static constexpr int kQuantizedBytes = kTileBytes + kScaleBytes + kTileOutputs;  // of a warp's stage
  static constexpr int kQuantizedStages = (kFormat == WeightFormat::kInt4 ? 4 : 3) + (kColumns <= 32 ? 1 : 0);
  static constexpr int kQuantizedRingBytes = kTeams * 4 * kQuantizedStages * kQuantizedBytes;

  __host__ __device__ static constexpr int sum_bytes(int across, int ways) {
    return ways > 1 ? across * 128 * kSums * 4 : 0;
  }
};

// Operands of a step.
struct RingItem {
  int first_tile;
  int row_part;
  int split;
  int first;  // unit
  int last;
};

__device__ __forceinline__ RingItem ring_item(const RingPlan& plan, int item) {
  RingItem result;
  result.split = item % plan.splits;
  const int rest = item / plan.splits;
  result.row_part = rest % plan.row_parts;
  result.first_tile = rest / plan.row_parts * plan.tiles;
  result.first = plan.units * result.split / plan.splits;
  result.last = plan.units * (result.split + 1) / plan.splits;
  return result;
}

// A way's steps, one after another.
class RingWalk {
 public:
  __device__ __forceinline__ RingWalk(const RingPlan& plan, int way) : item_(blockIdx.x), way_(way) { begin(plan); }
  __device__ __forceinline__ bool has_step(const RingPlan& plan) const { return item_ < plan.items; }
  __device__ __forceinline__ void advance(const RingPlan& plan) {
    unit_ += plan.ways;
    if (unit_ < last_) return;
    item_ += gridDim.x;
    begin(plan);
  }
  __device__ __forceinline__ int unit() const { return unit_; }
  __device__ __forceinline__ int first_tile() const { return first_tile_; }
  __device__ __forceinline__ int row_part() const { return row_part_; }

 private:
  // The first item that has a step for the way.
  __device__ __forceinline__ void begin(const RingPlan& plan) {
    for (; has_step(plan); item_ += gridDim.x) {
      const RingItem at = ring_item(plan, item_);
      unit_ = at.first + way_;
      last_ = at.last;
      first_tile_ = at.first_tile;
      row_part_ = at.row_part;
      if (unit_ < last_) return;
    }
  }
  int item_;
  int way_;
  int unit_ = 0;
  int last_ = 0;
  int first_tile_ = 0;
  int row_part_ = 0;
};

// Shared memory of a block.
struct RingMemory {
  SharedBarrier* full;   // of stages of x
  SharedBarrier* empty;  // likewise
  int32_t* ranks;        // of teams, among splits
  std::byte* quantized;
  float* sums;
  std::byte* x;
};

template <class Ring>
__device__ __forceinline__ RingMemory ring_memory(const RingPlan& plan) {
  auto* memory = dynamic_shared<std::byte>();
  auto* full = reinterpret_cast<SharedBarrier*>(memory);
  std::byte* quantized = memory + kRingHeadBytes;
  std::byte* sums = quantized + Ring::kQuantizedRingBytes;
  return {full,      full + kMaxRingStages,          reinterpret_cast<int32_t*>(full + 2 * kMaxRingStages),
          quantized, reinterpret_cast<float*>(sums), sums + Ring::sum_bytes(plan.across, plan.ways)};
}

// Brings the codes that a warp works on, and their constants: of int4 a lane the 16 bytes of its number, and every
// 512th; of 8 bits, which are row-major, eight lanes a row, and every fourth.
template <class Ring>
class RingQuantized {
 public:
  __device__ __forceinline__ RingQuantized(const LinearTask& task, const RingPlan& plan, int way, int slot)
      : item_(blockIdx.x), way_(way), slot_(slot) {
    begin(task, plan);
  }

  // Constants that the weight does not have: lanes write what they would copy.
  __device__ __forceinline__ void write_defaults(const LinearTask& task, std::byte* stages) const {
    const int lane = threadIdx.x % kWarp;
    if (lane >= kConstantLanes || constants_of(task, lane) != nullptr) return;
    constexpr uint32_t kScale = kHasZeros<Ring::kFormat> ? 0x3C003C00u : 0x3F800000u;  // 1
    constexpr uint32_t kZero = Ring::kFormat == WeightFormat::kInt4 ? 0x08080808u : 0x80808080u;
    const uint32_t word = lane < kScaleLanes ? kScale : kZero;
    for (int i = 0; i < Ring::kQuantizedStages; ++i) {
      *reinterpret_cast<uint4*>(stages + i * Ring::kQuantizedBytes + Ring::kTileBytes + lane * 16) =
          make_uint4(word, word, word, word);
    }
  }
  // Begins to copy the next step's, if there is one.
  __device__ __forceinline__ void copy(const LinearTask& task, const RingPlan& plan, std::byte* stage) {
    if (left_ > 0) {
      const int lane = threadIdx.x % kWarp;
      std::byte* to = stage + lane * 16;
      if (quantized_ != nullptr) {
#pragma unroll
        for (int i = 0; i < (kHasRows ? 4 : 2); ++i) {
          if constexpr (kHasRows) {
            cp_async_16(stage + (4 * i + lane / 8) * Ring::kRowBytes + lane % 8 * 16,
                        quantized_ + 4 * i * plan.units * kRingUnit);
          } else {
            cp_async_16(to + i * kWarp * 16, quantized_ + i * kWarp * 16);
          }
        }
        quantized_ += plan.ways * (kHasRows ? kRingUnit : Ring::kTileBytes);
      }
      if (constants_ != nullptr) {
        cp_async_16(to + Ring::kTileBytes, constants_);
        constants_ += constant_step_;
      }
      if (--left_ == 0) {
        item_ += gridDim.x;
        begin(task, plan);
      }
    }
    cp_async_commit();
  }

 private:
  static constexpr WeightFormat kFormat = Ring::kFormat;
  static constexpr bool kHasRows = Ring::kHasRows;
  static constexpr int kScaleLanes = Ring::kScaleBytes / 16;
  static constexpr int kConstantLanes = kScaleLanes + 1;

  // Of the first unit of the weight.
  __device__ __forceinline__ static const std::byte* constants_of(const LinearTask& task, int lane) {
    const LinearWeight& weight = task.weight;
    if (lane < kScaleLanes) {
      return kHasZeros<kFormat> ? reinterpret_cast<const std::byte*>(weight.scales)
                                : reinterpret_cast<const std::byte*>(weight.block_scales);
    }
    return lane == kScaleLanes && kHasZeros<kFormat> ? reinterpret_cast<const std::byte*>(weight.zeros) : nullptr;
  }
  // The first item that has a step for the way.
  __device__ __forceinline__ void begin(const LinearTask& task, const RingPlan& plan) {
    for (; item_ < plan.items; item_ += gridDim.x) {
      const RingItem at = ring_item(plan, item_);
      left_ = (at.last - at.first - way_ + plan.ways - 1) / plan.ways;
      if (left_ <= 0) continue;
      const int lane = threadIdx.x % kWarp;
      const int tile = at.first_tile + slot_;
      quantized_ = constants_ = nullptr;
      if (slot_ >= plan.tiles || tile * kTileOutputs >= task.weight.out_features) return;
      const size_t unit = static_cast<size_t>(tile) * plan.units + at.first + way_;
      quantized_ = static_cast<const std::byte*>(task.weight.data);
      if constexpr (kHasRows) {
        const size_t row = static_cast<size_t>(tile) * kTileOutputs + lane / 8;
        quantized_ += (row * plan.units + at.first + way_) * kRingUnit + lane % 8 * 16;
      } else {
        quantized_ += unit * Ring::kTileBytes + lane * 16;
      }
      const std::byte* constants = constants_of(task, lane);
      if (constants == nullptr) return;
      const int bytes = lane < kScaleLanes ? Ring::kScaleBytes : kTileOutputs;
      constants_ = constants + unit * bytes + (lane < kScaleLanes ? lane * 16 : 0);
      constant_step_ = plan.ways * bytes;
      return;
    }
    left_ = 0;
  }

  int item_;
  int way_;
  int slot_;
  int left_ = 0;  // steps of the item
  const std::byte* quantized_ = nullptr;
  const std::byte* constants_ = nullptr;
  int constant_step_ = 0;
};

// Brings the activations that a way works on; one thread of the way has it.
template <class Ring>
class RingRows {
 public:
  __device__ __forceinline__ RingRows(const RingPlan& plan, int way) : walk_(plan, way), way_(way), stage_(way) {}

  // All stages of the way.
  __device__ __forceinline__ void begin(const LinearTask& task, const RingPlan& plan, const RingMemory& memory) {
    for (int i = 0; i < plan.stages / plan.ways && walk_.has_step(plan); ++i) copy(task, plan, memory);
  }
  // The next stage, when it has been read.
  __device__ __forceinline__ void advance(const LinearTask& task, const RingPlan& plan, const RingMemory& memory) {
    if (!walk_.has_step(plan)) return;
    memory.empty[stage_].wait(phase_ ^ 1);
    copy(task, plan, memory);
  }

 private:
  __device__ __forceinline__ void copy(const LinearTask& task, const RingPlan& plan, const RingMemory& memory) {
    SharedBarrier& full = memory.full[stage_];
    full.arrive_and_expect(Ring::kXBytes);
    const auto* x = static_cast<const std::byte*>(task.x) +
                    (static_cast<size_t>(walk_.row_part()) * plan.units + walk_.unit()) * Ring::kXBytes;
    bulk_copy(memory.x + stage_ * Ring::kXBytes, x, Ring::kXBytes, full);
    stage_ += plan.ways;
    if (stage_ >= plan.stages) stage_ = way_, phase_ ^= 1;
    walk_.advance(plan);
  }

  RingWalk walk_;
  int way_;
  int stage_;
  uint32_t phase_ = 0;
};

}  // namespace turbomind::cuda
